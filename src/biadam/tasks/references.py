"""Simple answers to the cleaning of labels, which every method must be seen beside.

Each is the minimiser of the task's inner loss with other weights than the learned ones.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .. import __version__, driver
from ..data import FullBatch
from ..data.files import cache_folder
from ..problem import Problem
from ..solvers.newton_cg import newton_cg
from .base import Reference, detection
from .images import Corrupted, cross_entropy, fitted, start
from .out_of_fold import FOLDS, PRECISION, RIDGES, given, out_of_fold

STEP_SIZE, TOLERANCE, STEPS = 0.2, 1e-2, 400  # for the bilevel optimum
SLOW = 3.0  # seconds, from which on results are kept on disk


def references(images: Corrupted, free: Problem, ridge: float, seed: int) -> list[Reference]:
    """Answers by simpler means, and the optimum of one free weight for each example.

    * Uniform weights: one half for each example, where the methods start.
    * The clean set alone: trained on the validation data, so that its validation loss is a training
      loss. Its score for a wrong label is the loss that its model gives it.
    * The true clean subset: weight one for each right label, none for each wrong one.
    * Pruned out of fold, without any clean label: weight one for each example whose label is the
      most probable one for models that have not seen it. Its score is how improbable the label is.
    * The bilevel optimum: deterministic descent along exact hypergradients.

    What took long is kept on disk.
    """
    return _remembered(_recipe(images, ridge, seed), lambda: _references(images, free, ridge, seed))


def _references(images: Corrupted, free: Problem, ridge: float, seed: int) -> list[Reference]:
    examples, clean, wrong = images.examples, images.clean, images.wrong

    def judge(y: Array, suspicion: np.ndarray | None = None) -> dict[str, float]:
        found = {
            "validation_loss": float(jnp.mean(cross_entropy(y, clean))),
            "test_accuracy": images.accuracy(y),
            **({} if suspicion is None else detection(suspicion, wrong)),
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def weighted(weight: Any) -> Array:
        return fitted(examples, np.asarray(weight, float), ridge)

    alone = fitted(clean, np.ones(len(clean.label)), ridge)
    loss_alone = np.asarray(cross_entropy(alone, examples))
    probability = out_of_fold(examples, seed)
    kept, doubt = probability.argmax(axis=1) == images.given, -given(examples, probability)
    x = _optimum(images, free)
    return [
        Reference("uniform weights", judge(weighted(np.full(len(wrong), 0.5)))),
        Reference("the clean set alone", judge(alone, loss_alone)),
        Reference("the true clean subset", judge(weighted(~wrong))),
        Reference("pruned out of fold", judge(weighted(kept), doubt)),
        Reference("bilevel optimum", judge(weighted(jax.nn.sigmoid(x)), -np.asarray(x))),
    ]


def _optimum(images: Corrupted, free: Problem) -> Array:
    """The free weights' logits after descent on all data."""
    return driver.run(
        free,
        newton_cg(optax.adam(STEP_SIZE), tolerance=TOLERANCE),
        FullBatch(images.clean, images.examples),
        jnp.zeros(len(images.given), images.examples.features.dtype),
        start(images.examples),
        steps=STEPS,
        every=STEPS,
        key=jax.random.key(0),
        progress=False,
    ).x


def _remembered(recipe: str, work: Callable[[], list[Reference]]) -> list[Reference]:
    path = cache_folder() / "references" / f"{recipe}.json"
    if path.exists():
        return [Reference(**row) for row in json.loads(path.read_text())]
    begun = time.perf_counter()
    found = work()
    if time.perf_counter() - begun > SLOW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([row._asdict() for row in found]))
    return found


def _recipe(images: Corrupted, ridge: float, seed: int) -> str:
    """A name for all that the references depend on."""
    numbers = (__version__, ridge, seed, STEP_SIZE, TOLERANCE, STEPS, FOLDS, RIDGES, PRECISION)
    name = hashlib.sha256(repr(numbers).encode())
    for part in jax.tree.leaves((images.examples, images.clean, images.test, images.wrong)):
        name.update(np.asarray(part).tobytes())
    return name.hexdigest()

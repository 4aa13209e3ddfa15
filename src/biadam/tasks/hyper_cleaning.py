r"""Data hyper-cleaning: learn a weight for every training example from clean validation data.

.. math::
    \min_z \; \frac1m \sum_{j} \ell(a_j' \theta^*(z), b_j) \quad \text{with} \quad
    \theta^*(z) = \operatorname{argmin}_\theta \; \frac1n \sum_i \sigma(z_i) \ell(a_i' \theta, b_i)
        + C \|\theta\|^2

x is z, one number for each training example, and y is theta, a linear softmax classifier with a
bias. The paper prints C inside the mean over the data, which makes the inner problem all but
degenerate (kappa about 1e7); outside, as here, is what its predecessors run.
"""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import errors
from ..data import Minibatches, as_blocks
from ..hypergradients import NeumannRandom
from ..problem import Problem
from ..schedules import PowerDecay
from .base import Task, detection
from .images import Labelled, corrupted, cross_entropy, start
from .references import references


def plain_loss(x: Array, y: Array, of: Labelled) -> Array:
    """f: the mean loss of the linear model y, whatever the weights."""
    return jnp.mean(cross_entropy(y, of))


class WeightedLoss(eqx.Module):
    """g: the weighted mean loss and the ridge.

    A module, not a closure: equal to that of another seed, so that they share a compiled program.
    """

    ridge: float

    def __call__(self, x: Array, y: Array, of: Labelled) -> Array:
        """The loss on a minibatch."""
        weight = jax.nn.sigmoid(x[of.index])
        ridge = jnp.asarray(self.ridge, y.dtype)
        return jnp.mean(weight * cross_entropy(y, of)) + ridge * jnp.sum(y**2)


def hyper_cleaning(
    data: str = "digits",
    *,
    noise: float = 0.6,
    train: int | None = None,
    validation: int | None = None,
    batch: int = 128,
    ridge: float = 1e-3,
    seed: int = 0,
) -> Task:
    """Clean a data set of which a share of the training labels is wrong.

    Args:
        data: ``digits`` or ``mnist``.
        noise: share of the training labels that is replaced by another class.
        train: number of training examples.
        validation: number of clean examples.
        batch: size of a minibatch, of either loss.
        ridge: C.
        seed: names the split and the corruption.
    """
    errors.number("ridge", ridge, above=0)
    images = corrupted(data, noise, train, validation, seed)
    examples, clean = images.examples, images.clean

    validation_loss = jax.jit(lambda x, y: plain_loss(x, y, clean))

    def evaluate(x: Array, y: Array) -> dict[str, float]:
        return {
            "validation_loss": float(validation_loss(x, y)),
            "test_accuracy": images.accuracy(y),
            **detection(-np.asarray(x), images.wrong),
        }

    def keep(x: Array, y: Array) -> dict[str, np.ndarray]:
        weight = np.asarray(jax.nn.sigmoid(x))
        suspects = np.argsort(weight, kind="stable")[:40]
        return {
            "weight": weight,
            "wrong": images.wrong,
            **images.shown(suspects, "suspect"),
        }

    problem = Problem(outer=plain_loss, inner=WeightedLoss(ridge))
    source = Minibatches(outer=clean, inner=examples, size=batch)
    return Task(
        name="hyper-cleaning",
        data=data,
        problem=problem,
        source=source,
        sources={"saba": as_blocks(source)},
        x0=jnp.zeros(len(images.given), examples.features.dtype),
        y0=start(examples),
        curves={"validation_loss": validation_loss},
        evaluate=evaluate,
        solver="biadam_tracked",
        settings=_settings(examples),
        steps=10_000 if data == "mnist" else 5_000,
        keep=keep,
        references=cache(lambda: references(images, problem, ridge, seed)),
    )


def _settings(examples: Labelled) -> dict[str, dict[str, Any]]:
    """What works for each method, by a coarse grid on the digits and a seed that none reports.

    The gradient of a weight comes from one example in n and enters through a mean, so that steps
    that are not normalised grow with n; inner steps shrink with the curvature of the features.
    """
    features = np.asarray(examples.features)
    n = float(len(features))
    pace = 7.0 / float(np.linalg.eigvalsh(features.T @ features / n)[-1])
    slow = PowerDecay(scale=55.0, offset=3000.0, power=1 / 2)
    printed = {"step_size": (2.0, 0.5), "hypergradient": NeumannRandom(length=3, step_size=0.5)}
    tracked = {"step_size": (0.4, 0.1), "mixing": slow}
    authors = {"step_size": (0.4, 5e-4)}
    pairs = {
        (0.02, 1.0): ("f2sa",),
        (0.1, 1.0): ("saba",),
        (0.1, 1 / 3): ("aid_cg", "bome", "stable"),
        (0.5, 1.0): ("alset", "bsa", "fsla", "ma_soba", "smb", "soba", "srba", "ttsa"),
        (0.5, 1 / 2): ("f2ba", "pbgd_gradient", "pbgd_value"),
        (0.5, 1 / 3): ("aid_fp", "amigo", "fsla_plain", "mstsa", "stocbio", "svrb"),
        (2.0, 1.0): ("mrbo", "reverse", "sustain", "vrbo"),
    }
    plain = {
        name: {"step_size": (outer * n, inner * pace)}
        for (outer, inner), names in pairs.items()
        for name in names
    }
    return {
        **plain,
        "adambo": {"step_size": (0.05, pace)},
        "biadam": printed,
        "biadam_authors": authors,
        "biadam_tracked": tracked,
        "bo_rep": {"step_size": (0.1, pace)},
        "d_tfbo": {"step_size": (100.0, 1.0)},
        "newton_cg": {"rate": 5.0, "tolerance": 1e-3},
        "s_tfbo": {"step_size": (100.0, 1.0)},
        "slip": {"step_size": (0.1, pace)},
        "vr_biadam": printed,
        "vr_biadam_authors": authors,
        "vr_biadam_tracked": tracked,
    }

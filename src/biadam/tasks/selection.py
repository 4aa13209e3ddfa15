r"""Selection: choose the best m of n training examples, of which many have wrong labels.

.. math::
    \min_{x} \; \frac1v \sum_j \ell(a_j' \theta^*(x), b_j) \quad \text{with} \quad
    \theta^*(x) = \operatorname{argmin}_\theta \; \frac1m \sum_i x_i \ell(a_i' \theta, b_i)
        + C \|\theta\|^2, \qquad 0 \le x_i \le 1, \quad \sum_i x_i = m

x is one weight for each training example, and y is theta, a linear softmax classifier with a bias.
The weights live in the convex hull of the choices of m examples, and nearly all end at 0 or 1.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .. import errors
from ..data import Minibatches
from ..problem import Problem
from ..sets import CappedSimplex
from .base import Task
from .images import Corrupted, Labelled, corrupted, cross_entropy, fitted, start
from .weights import entries

RANDOM_CHOICES = 5


def selection(
    data: str = "digits",
    *,
    choose: int | None = None,
    noise: float = 0.6,
    train: int | None = None,
    validation: int | None = None,
    batch: int = 128,
    ridge: float = 1e-3,
    seed: int = 0,
) -> Task:
    """Choose the training examples to learn from, by a few clean ones.

    Args:
        data: ``digits`` or ``mnist``.
        choose: m, how many examples; by default a quarter of them.
        noise: share of the training labels that is replaced by another class.
        train: number of training examples.
        validation: number of clean examples.
        batch: size of a minibatch, of either loss.
        ridge: C.
        seed: names the split, the corruption, and the random choices compared with.
    """
    errors.number("ridge", ridge, above=0)
    images = corrupted(data, noise, train, validation, seed)
    n = len(images.given)
    m = max(1, n // 4) if choose is None else choose
    errors.count("choose", m)
    if m > n:
        raise errors.Mistake(
            f"`choose` must be at most the {n} training examples, but it is {m}; lower it or "
            f"raise `train`."
        )
    examples, clean = images.examples, images.clean

    def outer(x: Array, y: Array, of: Labelled) -> Array:
        return jnp.mean(cross_entropy(y, of))

    def inner(x: Array, y: Array, of: Labelled) -> Array:
        # The mean over all n examples times n / m is the sum over m.
        return n / m * jnp.mean(entries(x, of, n) * cross_entropy(y, of)) + ridge * jnp.sum(y**2)

    validation_loss = jax.jit(lambda x, y: outer(x, y, clean))

    @cache
    def references() -> dict[str, float]:
        draw = np.random.default_rng(seed)
        some = [_accuracy(images, draw.permutation(n) < m, ridge) for _ in range(RANDOM_CHOICES)]
        return {
            "random_test_accuracy": float(np.mean(some)),
            "all_test_accuracy": _accuracy(images, np.ones(n, bool), ridge),
        }

    def evaluate(x: Array, y: Array) -> dict[str, float]:
        taken = chosen(np.asarray(x), m)
        return {
            "validation_loss": float(validation_loss(x, y)),
            "test_accuracy": images.accuracy(y),
            "chosen_test_accuracy": _accuracy(images, taken, ridge),
            **references(),
            "chosen_right": float(np.mean(~images.wrong[taken])),
            "base_right": float(np.mean(~images.wrong)),
        }

    def keep(x: Array, y: Array) -> dict[str, np.ndarray]:
        weight = np.asarray(x)
        order = np.argsort(-weight, kind="stable")
        return {
            "weight": weight,
            "wrong": images.wrong,
            "chosen": chosen(weight, m),
            **images.shown(order[:20], "best"),
            **images.shown(order[-20:], "worst"),
        }

    return Task(
        name="selection",
        data=data,
        problem=Problem(outer=outer, inner=inner, outer_set=CappedSimplex(m, 1.0)),
        source=Minibatches(outer=clean, inner=examples, size=batch),
        x0=jnp.full(n, m / n, examples.features.dtype),
        y0=start(examples),
        curves={"validation_loss": validation_loss},
        evaluate=evaluate,
        solver="biadam_tracked",
        settings={
            "biadam_tracked": {"step_size": (0.03, 0.1)},
            "vr_biadam_tracked": {"step_size": (0.03, 0.1)},
        },
        steps=5_000,
        options={
            "data": data,
            "choose": m,
            "noise": noise,
            "train": n,
            "validation": len(clean.label),
            "batch": batch,
            "ridge": ridge,
        },
        keep=keep,
    )


def chosen(weight: np.ndarray, count: int) -> Bool[np.ndarray, " n"]:
    """The so many examples of largest weight."""
    taken = np.zeros(len(weight), bool)
    taken[np.argsort(-weight, kind="stable")[:count]] = True
    return taken


def _accuracy(images: Corrupted, taken: np.ndarray, ridge: float) -> float:
    """Of the model that learns from these examples alone, all of one weight."""
    return images.accuracy(fitted(images.examples, taken / taken.mean(), ridge))

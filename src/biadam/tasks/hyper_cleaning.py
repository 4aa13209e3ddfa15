r"""Data hyper-cleaning: learn a weight for every training example from clean validation data.

.. math::
    \min_z \; \frac1m \sum_{j} \ell(a_j' \theta^*(z), b_j) \quad \text{with} \quad
    \theta^*(z) = \operatorname{argmin}_\theta \; \frac1n \sum_i \sigma(z_i) \ell(a_i' \theta, b_i)
        + C \|\theta\|^2

x is z, one number for each training example, or the coefficients of a function that gives each
example its z; y is theta, a linear softmax classifier with a bias. The paper prints C inside the
mean over the data, which makes the inner problem all but degenerate (kappa about 1e7); outside, as
here, is what its predecessors run.
"""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import errors
from ..data import Minibatches, as_blocks
from ..problem import Problem
from .base import Task, detection
from .images import Labelled, corrupted, cross_entropy, start
from .references import references
from .weights import AbstractWeighting, FreeWeights, OnePerExample, Weights


def plain_loss(x: Array, y: Array, of: Labelled) -> Array:
    """f: the mean loss of the linear model y, whatever the weights."""
    return jnp.mean(cross_entropy(y, of))


class WeightedLoss(eqx.Module):
    """g: the weighted mean loss and the ridge.

    A module, not a closure: equal to that of another seed, so that they share a compiled program.
    """

    ridge: float
    weighting: AbstractWeighting

    def __call__(self, x: Array, y: Array, of: Labelled) -> Array:
        """The loss on a minibatch."""
        weight = jax.nn.sigmoid(self.weighting(x, of))
        ridge = jnp.asarray(self.ridge, y.dtype)
        return jnp.mean(weight * cross_entropy(y, of)) + ridge * jnp.sum(y**2)


def hyper_cleaning(
    data: str = "digits",
    *,
    noise: float = 0.6,
    train: int | None = None,
    validation: int | None = None,
    weights: Weights = FreeWeights(),
    batch: int = 128,
    ridge: float = 1e-3,
    ridge_inside_mean: bool = False,
    seed: int = 0,
) -> Task:
    """Clean a data set of which a share of the training labels is wrong.

    Args:
        data: ``digits`` or ``mnist``.
        noise: share of the training labels that is replaced by another class.
        train: number of training examples.
        validation: number of clean examples.
        weights: what x is, ``FreeWeights()``, one for each example, or ``WeightFunction()``, the
            coefficients of a small function of each example, which few clean examples determine.
        batch: size of a minibatch, of either loss.
        ridge: C.
        ridge_inside_mean: put C inside the mean over the data, as the paper prints it: C / n.
        seed: names the split and the corruption.
    """
    errors.number("ridge", ridge, above=0)
    images = corrupted(data, noise, train, validation, seed)
    examples, clean = images.examples, images.clean
    weighting = weights(images, seed)
    penalty = ridge / len(images.given) if ridge_inside_mean else ridge

    validation_loss = jax.jit(lambda x, y: plain_loss(x, y, clean))

    def evaluate(x: Array, y: Array) -> dict[str, float]:
        return {
            "validation_loss": float(validation_loss(x, y)),
            "test_accuracy": images.accuracy(y),
            **detection(-np.asarray(weighting(x, examples)), images.wrong),
        }

    def keep(x: Array, y: Array) -> dict[str, np.ndarray]:
        weight = np.asarray(jax.nn.sigmoid(weighting(x, examples)))
        suspects = np.argsort(weight, kind="stable")[:40]
        return {
            "weight": weight,
            "wrong": images.wrong,
            **images.shown(suspects, "suspect"),
        }

    cleaning = lambda weighting: Problem(outer=plain_loss, inner=WeightedLoss(penalty, weighting))
    source = Minibatches(outer=clean, inner=examples, size=batch)
    return Task(
        name="hyper-cleaning",
        data=data,
        problem=cleaning(weighting),
        source=source,
        sources={"saba": as_blocks(source)},
        x0=weighting.start(examples),
        y0=start(examples),
        curves={"validation_loss": validation_loss},
        evaluate=evaluate,
        solver="biadam_tracked",
        settings=weighting.settings(examples, penalty),
        steps=10_000 if data == "mnist" else 5_000,
        options={
            "data": data,
            "noise": noise,
            "train": len(images.given),
            "validation": len(clean.label),
            "weights": repr(weights),
            "batch": batch,
            "ridge": ridge,
            "ridge_inside_mean": ridge_inside_mean,
        },
        keep=keep,
        references=cache(
            lambda: references(images, cleaning(OnePerExample(len(images.given))), penalty, seed)
        ),
    )

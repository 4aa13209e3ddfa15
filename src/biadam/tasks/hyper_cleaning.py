r"""Data hyper-cleaning: learn a weight for every training example from clean validation data.

.. math::
    \min_z \; \frac1m \sum_{j} \ell(a_j' \theta^*(z), b_j) \quad \text{with} \quad
    \theta^*(z) = \operatorname{argmin}_\theta \; \frac1n \sum_i \sigma(z_i) \ell(a_i' \theta, b_i)
        + C \|\theta\|^2

x is z, one number for each training example, and y is theta, a linear softmax classifier with a
bias. The paper prints C inside the mean over the data, which makes the inner problem all but
degenerate (kappa about 1e7); outside, as here, is what its predecessors run.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from .. import errors
from ..data import Minibatches, as_blocks
from ..data.images import Images, corrupt, split
from ..hypergradients import NeumannRandom
from ..problem import Problem
from ..schedules import PowerDecay
from .base import Task


class Labelled(eqx.Module):
    """Examples of one use; the index says which weight is an example's."""

    features: Float[Array, "*batch n features"]
    label: Int[Array, "*batch n"]
    index: Int[Array, "*batch n"]


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
    parts = split(data, train, validation, seed)
    classes = 10
    given = corrupt(parts.train.label, noise, classes, seed)
    wrong = given != parts.train.label
    examples = _labelled(Images(parts.train.image, given))
    clean, test = _labelled(parts.validation), _labelled(parts.test)

    def loss(y: Array, of: Labelled) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(of.features @ y, of.label)

    def outer(x: Array, y: Array, of: Labelled) -> Array:
        return jnp.mean(loss(y, of))

    def inner(x: Array, y: Array, of: Labelled) -> Array:
        return jnp.mean(jax.nn.sigmoid(x[of.index]) * loss(y, of)) + ridge * jnp.sum(y**2)

    validation_loss = jax.jit(lambda x, y: outer(x, y, clean))
    found = jax.jit(lambda y: jnp.argmax(test.features @ y, axis=1))
    accuracy = lambda y: np.mean(np.asarray(found(y)) == parts.test.label)

    def evaluate(x: Array, y: Array) -> dict[str, float]:
        return {
            "validation_loss": float(validation_loss(x, y)),
            "test_accuracy": float(accuracy(y)),
            **detection(-np.asarray(x), wrong),
        }

    def keep(x: Array, y: Array) -> dict[str, np.ndarray]:
        weight = np.asarray(jax.nn.sigmoid(x))
        suspects = np.argsort(weight, kind="stable")[:40]
        return {
            "weight": weight,
            "wrong": wrong,
            "suspect_image": (255 * parts.train.image[suspects]).astype(np.uint8),
            "suspect_given": given[suspects],
            "suspect_true": parts.train.label[suspects],
        }

    printed = NeumannRandom(length=3, step_size=0.5)
    slow = PowerDecay(scale=55.0, offset=3000.0, power=1 / 2)
    source = Minibatches(outer=clean, inner=examples, size=batch)
    return Task(
        name="hyper-cleaning",
        data=data,
        problem=Problem(outer=outer, inner=inner),
        source=source,
        sources={"saba": as_blocks(source)},
        x0=jnp.zeros(len(given), examples.features.dtype),
        y0=jnp.zeros((examples.features.shape[1], classes), examples.features.dtype),
        curves={"validation_loss": validation_loss},
        evaluate=evaluate,
        solver="biadam_tracked",
        settings={
            "biadam": {"step_size": (2.0, 0.5), "hypergradient": printed},
            "vr_biadam": {"step_size": (2.0, 0.5), "hypergradient": printed},
            "biadam_tracked": {"step_size": (0.4, 0.1), "mixing": slow},
            "vr_biadam_tracked": {"step_size": (0.4, 0.1), "mixing": slow},
        },
        steps=10_000 if data == "mnist" else 5_000,
        keep=keep,
    )


def detection(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How well a score finds the wrong labels: area under the ROC curve, and the best F1.

    Both are NaN where no label, or every label, is wrong.
    """
    from sklearn.metrics import precision_recall_curve, roc_auc_score

    if wrong.all() or not wrong.any():
        return {"auc": float("nan"), "f1": float("nan")}
    precision, recall, _ = precision_recall_curve(wrong, suspicion)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return {"auc": float(roc_auc_score(wrong, suspicion)), "f1": float(f1.max())}


def _labelled(images: Images) -> Labelled:
    n = len(images.label)
    flat = images.image.reshape(n, -1)
    features = np.concatenate([flat, np.ones((n, 1), flat.dtype)], axis=1)
    return Labelled(jnp.asarray(features), jnp.asarray(images.label), jnp.arange(n))

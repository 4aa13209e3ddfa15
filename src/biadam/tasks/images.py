"""What the tasks on images with wrong labels share: the data, the model, the judges."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from ..data.images import Images, Split, corrupt, split

CLASSES = 10


class Labelled(eqx.Module):
    """Examples of one use; the index says which weight is an example's."""

    features: Float[Array, "*batch n features"]
    label: Int[Array, "*batch n"]
    index: Int[Array, "*batch n"]


class Corrupted(NamedTuple):
    """A split data set of which some training labels are wrong."""

    parts: Split  # with the true labels
    given: Int[np.ndarray, " n"]  # the training labels one sees
    wrong: Bool[np.ndarray, " n"]
    examples: Labelled  # to train on, with the labels one sees
    clean: Labelled  # to validate on
    test: Labelled

    def accuracy(self, y: Array) -> float:
        """The share of the test images that a linear model names."""
        return float(np.mean(np.asarray(_named(y, self.test)) == self.parts.test.label))

    def shown(self, index: np.ndarray, name: str) -> dict[str, np.ndarray]:
        """Training images for a figure, with the label they came with and the true one."""
        return {
            f"{name}_image": (255 * self.parts.train.image[index]).astype(np.uint8),
            f"{name}_given": self.given[index],
            f"{name}_true": self.parts.train.label[index],
        }


def corrupted(
    data: str, noise: float, train: int | None, validation: int | None, seed: int
) -> Corrupted:
    """Split a data set and put wrong labels on a share of its training examples."""
    parts = split(data, train, validation, seed)
    given = corrupt(parts.train.label, noise, CLASSES, seed)
    return Corrupted(
        parts,
        given,
        given != parts.train.label,
        _labelled(Images(parts.train.image, given)),
        _labelled(parts.validation),
        _labelled(parts.test),
    )


def cross_entropy(y: Array, of: Labelled) -> Array:
    """The loss of a linear model at every example."""
    return optax.softmax_cross_entropy_with_integer_labels(of.features @ y, of.label)


def fitted(
    of: Labelled, weight: Float[np.ndarray, " n"], ridge: float, precision: float = 1e-4
) -> Array:
    """The linear model that minimises ``mean of weight times loss + ridge |y|^2``.

    By L-BFGS until no entry of the gradient exceeds the precision.
    """
    from scipy.optimize import minimize

    first = start(of)
    share, penalty = jnp.asarray(weight, first.dtype), jnp.asarray(ridge, first.dtype)

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        y = jnp.asarray(flat, first.dtype).reshape(first.shape)
        value, slope = _weighted_loss(y, of, share, penalty)
        return float(value), np.asarray(slope, np.float64).ravel()

    options = {"gtol": precision, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000}
    found = minimize(
        value_and_slope, np.zeros(first.size), jac=True, method="L-BFGS-B", options=options
    )
    return jnp.asarray(found.x, first.dtype).reshape(first.shape)


def start(of: Labelled) -> Array:
    """The linear model that names every class alike."""
    return jnp.zeros((of.features.shape[1], CLASSES), of.features.dtype)


@jax.jit
def _weighted_loss(y: Array, of: Labelled, weight: Array, ridge: Array) -> tuple[Array, Array]:
    def loss(y: Array) -> Array:
        return jnp.mean(weight * cross_entropy(y, of)) + ridge * jnp.sum(y**2)

    return jax.value_and_grad(loss)(y)


@jax.jit
def _named(y: Array, of: Labelled) -> Array:
    return jnp.argmax(of.features @ y, axis=1)


def _labelled(images: Images) -> Labelled:
    n = len(images.label)
    flat = images.image.reshape(n, -1)
    features = np.concatenate([flat, np.ones((n, 1), flat.dtype)], axis=1)
    return Labelled(jnp.asarray(features), jnp.asarray(images.label), jnp.arange(n))

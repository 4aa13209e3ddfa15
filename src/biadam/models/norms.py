"""Normalisation of the channels between two layers: over which images, and with which statistics.

Images lie last here, ``[channels, height, width, n]``; see `biadam.models.encoder` for why.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .. import errors

FLOOR = 1e-5  # of a variance


class Moments(NamedTuple):
    """Mean and variance of each channel over many images."""

    mean: Float[Array, " channels"]
    variance: Float[Array, " channels"]


class AbstractNorm(eqx.Module):
    """Brings the channels to mean 0 and variance 1, in some sense."""

    @abc.abstractmethod
    def __call__(
        self, x: Float[Array, "channels height width n"], known: Moments | None
    ) -> tuple[Float[Array, "channels height width n"], Moments | None]:
        """The normalised channels, and the moments that were used if they are of many images.

        Args:
            x: the channels.
            known: moments to use in place of those of ``x``.
        """


class BatchNorm(AbstractNorm):
    """By the moments of each channel over all the images given together, or by known ones.

    Unless they are known, what is computed of an image depends on the others beside it.
    """

    def __call__(
        self, x: Float[Array, "channels height width n"], known: Moments | None
    ) -> tuple[Float[Array, "channels height width n"], Moments | None]:
        """See `AbstractNorm`."""
        used = Moments(*_moments(x, (1, 2, 3))) if known is None else known
        wide = lambda a: a.reshape(-1, 1, 1, 1)
        return _normal(x, wide(used.mean), wide(used.variance)), used


class GroupNorm(AbstractNorm):
    """By the moments of each image over groups of its channels; one group makes it a layer norm."""

    groups: int = eqx.field(static=True)

    def __init__(self, groups: int):
        errors.count("GroupNorm.groups", groups)
        self.groups = groups

    def __call__(
        self, x: Float[Array, "channels height width n"], known: Moments | None
    ) -> tuple[Float[Array, "channels height width n"], Moments | None]:
        """See `AbstractNorm`."""
        if x.shape[0] % self.groups:
            raise errors.Mistake(
                f"`GroupNorm.groups` must divide the {x.shape[0]} channels, but it is "
                f"{self.groups}."
            )
        part = x.reshape(self.groups, -1, *x.shape[1:])
        wide = lambda a: a[:, None, None, None]
        mean, variance = _moments(part, (1, 2, 3))
        return _normal(part, wide(mean), wide(variance)).reshape(x.shape), None


class NoNorm(AbstractNorm):
    """Leaves the channels as they are."""

    def __call__(
        self, x: Float[Array, "channels height width n"], known: Moments | None
    ) -> tuple[Float[Array, "channels height width n"], Moments | None]:
        """See `AbstractNorm`."""
        return x, None


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """In one pass over the data; rounding may not make a variance negative."""
    mean = jnp.mean(x, axis=axes)
    return mean, jnp.maximum(jnp.mean(x**2, axis=axes) - mean**2, 0)


def _normal(x: Array, mean: Array, variance: Array) -> Array:
    factor = lax.rsqrt(variance + FLOOR)
    return x * factor - mean * factor

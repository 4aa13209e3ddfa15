"""What a linear head sees of features: their scale decides how large its Hessian is."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .. import errors


class AbstractScaling(eqx.Module):
    """Turns raw features into those of the head."""

    @abc.abstractmethod
    def __call__(self, feature: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """The features of the head, one row an image."""


class Raw(AbstractScaling):
    """The features as they are."""

    def __call__(self, feature: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """See `AbstractScaling`."""
        return feature


class Sphere(AbstractScaling):
    """Features of one length, and a constant 1 as the last of them, for a bias.

    The Hessian of a softmax loss is then at most ``(radius ** 2 + 1) / 2``, whatever the encoder
    has learned, so that one inner step size serves the whole run.
    """

    radius: float | Array

    def __init__(self, radius: float | Array = 10**0.5):
        errors.number("Sphere.radius", radius, above=0)
        self.radius = radius

    def __call__(self, feature: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """See `AbstractScaling`."""
        square = jnp.sum(feature**2, axis=1, keepdims=True)
        long = feature * (self.radius * lax.rsqrt(square + 1e-8))  # a blank image has no direction
        return jnp.concatenate([long, jnp.ones_like(long[:, :1])], axis=1)

r"""Where the variables live: convex sets, projected onto in the norm of the adaptive matrix.

The step of the paper, :math:`\operatorname{argmin}_{u \in X} \langle w, u \rangle +
\tfrac{1}{2\gamma} \|u - x\|_A^2`, is the projection of :math:`x - \gamma A^{-1} w` onto X in the
norm of A. The Euclidean projection of the same point is another step, and a wrong one.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .errors import Mistake
from .proximal import AbstractProximal


class AbstractSet(AbstractProximal):
    """A closed convex set of pytrees."""

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """The projection: the indicator function of a set has no scale."""
        return self.project(point, matrix)

    @abc.abstractmethod
    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Return the member ``u`` of least ``(u - point)' diag(matrix) (u - point)``.

        ``matrix`` has the structure of ``point``; each of its leaves has the shape of the leaf of
        ``point`` or is a single number, for a multiple of the identity.
        """

    @abc.abstractmethod
    def check(self, name: str, point: PyTree) -> None:
        """Raise a `Mistake` that names the variable if its shape does not fit the set."""


class Free(AbstractSet):
    """The whole space."""

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Return ``point``."""
        return point

    def check(self, name: str, point: PyTree) -> None:
        """Anything fits."""


class Box(AbstractSet):
    """``lower <= u <= upper``, with a number for all coordinates or a pytree like the variable.

    The set is separable, so the projection is the same for every diagonal matrix.
    """

    lower: PyTree
    upper: PyTree

    def __init__(self, lower: PyTree, upper: PyTree):
        if jax.tree.structure(lower) == jax.tree.structure(upper) and any(
            np.any(np.asarray(low) > np.asarray(high))
            for low, high in zip(jax.tree.leaves(lower), jax.tree.leaves(upper), strict=True)
        ):
            raise Mistake("`Box` is empty: some entry of `lower` is above that of `upper`.")
        self.lower, self.upper = lower, upper

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Clip."""
        lower, upper = _spread(self.lower, point), _spread(self.upper, point)
        return jax.tree.map(lambda u, low, high: jnp.clip(u, low, high), point, lower, upper)

    def check(self, name: str, point: PyTree) -> None:
        """Refuse bounds of another structure or shape than the variable's."""
        for bound, value in (("lower", self.lower), ("upper", self.upper)):
            fits(f"Box.{bound}", value, name, point)


def fits(what: str, value: PyTree, name: str, point: PyTree) -> None:
    """Refuse a pytree of numbers that can't be spread over the variable ``name``."""
    if _is_number(value):
        return
    if jax.tree.structure(value) != jax.tree.structure(point):
        raise Mistake(
            f"`{what}` must be a number or a pytree like {name}, {jax.tree.structure(point)}, "
            f"but it is {jax.tree.structure(value)}."
        )
    for part, leaf in zip(jax.tree.leaves(value), jax.tree.leaves(point), strict=True):
        if jnp.ndim(part) and jnp.shape(part) != jnp.shape(leaf):
            raise Mistake(
                f"`{what}` must have the shape {jnp.shape(leaf)} of {name}, "
                f"but it has {jnp.shape(part)}."
            )


def _is_number(value: Any) -> bool:
    return jax.tree.structure(value) == jax.tree.structure(0) and jnp.ndim(value) == 0


def _spread(value: PyTree, point: PyTree) -> PyTree:
    """A number for every leaf of ``point``, or the pytree as it is."""
    return jax.tree.map(lambda _: value, point) if _is_number(value) else value

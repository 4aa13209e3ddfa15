"""Arithmetic on pytrees, and on the levels of a bilevel point, beyond what optax.tree has.

Scalars are cast to the type of the leaf they meet, so that a number of a solver never promotes a
variable of lower precision.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

L = TypeVar("L", bound=tuple[Any, ...])


def scale(rate: Any, tree: PyTree) -> PyTree:
    """``rate * tree``."""
    return jax.tree.map(lambda a: jnp.asarray(rate, a.dtype) * a, tree)


def add_scale(tree: PyTree, rate: Any, other: PyTree) -> PyTree:
    """``tree + rate * other``."""
    return jax.tree.map(lambda a, b: a + jnp.asarray(rate, a.dtype) * b, tree, other)


def mix(rate: Any, new: PyTree, old: PyTree) -> PyTree:
    """``rate * new + (1 - rate) * old``; exactly ``new`` at rate 1.

    From the nearer of the two, a part of the way to the other: the two weights of a sum would not
    add up to 1 after rounding, and a point that is mixed again and again would leave its set.
    """

    def one(new: Array, old: Array) -> Array:
        r = jnp.asarray(rate, new.dtype)
        near = r < 0.5
        return jnp.where(near, old, new) + jnp.where(near, r, r - 1) * (new - old)

    return jax.tree.map(one, new, old)


def ratio(a: Array, b: Array) -> Array:
    """``a / b`` of norms: 0 where b is 0, and never a number where one of them is a NaN."""
    return a / jnp.where(b == 0, jnp.inf, b)


def with_arrays(tree: PyTree) -> PyTree:
    """The same with arrays for Python's floats, so that a compiler sees types and not values."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, tree)


def real(tree: PyTree) -> PyTree:
    """The same with floats for Python's whole numbers, which say the same and compile alike."""
    whole = lambda leaf: isinstance(leaf, int) and not isinstance(leaf, bool)
    return jax.tree.map(lambda leaf: float(leaf) if whole(leaf) else leaf, tree)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no leaf holds an infinity or a NaN."""
    leaves = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.array(True)


def each(fn: Callable[..., Any], first: L, *rest: tuple[Any, ...]) -> L:
    """Apply ``fn`` level by level; a level that is ``None`` in ``first`` is absent and stays so."""
    rows = zip(first, *rest, strict=True)
    kind: Any = type(first)
    return kind(*(None if row[0] is None else fn(*row) for row in rows))

"""Second derivatives as dense matrices, for the methods that keep running estimates of them.

Time and memory grow with (d + p) p numbers and O(p^3) operations, for d outer and p inner
variables: for small problems only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from . import errors, tree
from .problem import Calls, Levels, Problem

MOST = 4_000_000  # numbers in the matrices, unless the user says how many


class Matrices(NamedTuple):
    """The second derivatives of g, or estimates of them."""

    hessian: Float[Array, "p p"]  # H
    cross: Float[Array, "d p"]  # J


def matrices(problem: Problem, point: Levels, batch: PyTree) -> tuple[Matrices, Calls]:
    """H and J on one minibatch, a column of both from each backward pass.

    One pass after the other: what follows takes longer, and p passes at once need p times the
    memory of one. A stage is passed forward once, and backward with each column of J.
    """
    x, y, _ = point
    stage = problem.stage
    seen, pull = (
        (x, lambda cross: (cross,)) if stage is None else jax.vjp(lambda x: stage(x, batch), x)
    )
    behind = problem if stage is None else Problem(problem.outer, problem.inner)
    flat, unravel = ravel_pytree(y)

    def column(u: Array) -> tuple[Array, Array]:
        hessian, cross = behind.products(seen, y, batch, unravel(u))
        return ravel_pytree(hessian)[0], ravel_pytree(pull(cross)[0])[0].astype(flat.dtype)

    hessian, cross = lax.map(column, jnp.eye(flat.size, dtype=flat.dtype))
    return Matrices(hessian, cross.T), Calls(0, 0, flat.size, flat.size)


def zeros(x: PyTree, y: PyTree) -> Matrices:
    """Matrices of the right shapes."""
    d, p = _sizes(x, y)
    dtype = jnp.result_type(*jax.tree.leaves(y))
    return Matrices(jnp.zeros((p, p), dtype), jnp.zeros((d, p), dtype))


def between(
    matrix: Float[Array, "p p"], low: Array | float, high: Array | float = jnp.inf
) -> Float[Array, "p p"]:
    """The nearest symmetric matrix with its eigenvalues in [low, high]."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    bound = lambda a: jnp.asarray(a, matrix.dtype)
    return (vectors * jnp.clip(values, bound(low), bound(high))[None]) @ vectors.T


def at_most(matrix: Float[Array, "d p"], bound: Array | float) -> Float[Array, "d p"]:
    """The nearest matrix of spectral norm at most ``bound``."""
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    return (left * jnp.minimum(values, jnp.asarray(bound, matrix.dtype))[None]) @ right


def solve(hessian: Float[Array, "p p"], b: Float[Array, " p"]) -> Float[Array, " p"]:
    """``H^{-1} b`` for a positive definite H."""
    return jax.scipy.linalg.solve(hessian, b, assume_a="pos")


def hypergradient(estimates: Matrices, f_x: PyTree, f_y: PyTree) -> PyTree:
    """``f_x - J H^{-1} f_y`` from estimates of its parts."""
    s = solve(estimates.hessian, ravel_pytree(f_y)[0])
    flat, unravel = ravel_pytree(f_x)
    return tree.add_scale(f_x, -1.0, unravel((estimates.cross @ s).astype(flat.dtype)))


def refuse_size(name: str, x: PyTree, y: PyTree, most: int) -> None:
    """Refuse more numbers than the matrices should hold."""
    d, p = _sizes(x, y)
    if (d + p) * p > most:
        raise errors.Mistake(
            f"`{name}` keeps dense second derivatives and takes at most {most} numbers in them, "
            f"but {d} outer and {p} inner variables make {(d + p) * p}; "
            f"choose a method that tracks the linear system, such as soba."
        )


def _sizes(x: PyTree, y: PyTree) -> tuple[int, int]:
    size = lambda tree: sum(int(jnp.size(a)) for a in jax.tree.leaves(tree))
    return size(x), size(y)

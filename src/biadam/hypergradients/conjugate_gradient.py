"""Conjugate gradients for the linear system, on one sample (AID-CG)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.tree
from jax import lax
from jaxtyping import Array, PyTree

from .. import errors, tree
from ..problem import Levels, Problem, Sample
from .base import AbstractImplicit, Solved


class Solution(NamedTuple):
    """An approximate solution of ``A s = b``."""

    s: PyTree
    residual: Array  # |A s - b| / |b|
    products: Array  # products with A that were used
    definite: Array  # False if a direction with <p, A p> <= 0 was met: A is not positive definite


def conjugate_gradient(
    operator: Callable[[PyTree], PyTree], b: PyTree, *, steps: Any, tolerance: Any
) -> Solution:
    """Solve ``A s = b`` from 0 until ``|A s - b| <= tolerance |b|`` or for ``steps`` products.

    `jax.scipy.sparse.linalg.cg` tells neither its residual nor its number of products nor that the
    operator is not positive definite; an honest hypergradient needs all three. The residual is
    that of the recursion, which drifts from the true one over many steps on an ill-conditioned A;
    `refined` does not trust it. What is not finite in A or b is not finite in s.
    """
    size = _dot(b, b)
    goal = size * jnp.asarray(tolerance, size.dtype) ** 2

    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, _, _, rr, i, definite = carry
        return (i < steps) & ((rr > goal) | ~jnp.isfinite(rr)) & definite

    def iterate(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        s, r, p, rr, i, _ = carry
        ap = operator(p)
        curvature = _dot(p, ap)
        flat = curvature <= 0
        a = jnp.where(flat, 0, rr / jnp.where(flat, 1, curvature))
        s, r = tree.add_scale(s, a, p), tree.add_scale(r, -a, ap)
        new = _dot(r, r)
        p = tree.add_scale(r, new / rr, p)
        return s, r, p, new, i + 1, curvature > 0

    zero = jax.tree.map(jnp.zeros_like, b)
    start = (zero, b, b, size, jnp.zeros((), jnp.int32), jnp.array(True))
    s, _, _, rr, products, definite = lax.while_loop(unfinished, iterate, start)
    return Solution(s, jnp.sqrt(tree.ratio(rr, size)), products, definite)


def refined(
    operator: Callable[[PyTree], PyTree], b: PyTree, *, steps: Any, tolerance: Any
) -> Solution:
    """Conjugate gradients that start again from the true residual until it meets the tolerance.

    A product after each round computes it; once ``steps`` products are spent no round begins.
    """
    size = optax.tree.norm(b)
    goal = jnp.asarray(tolerance, size.dtype)

    def unfinished(carry: tuple[PyTree, Solution]) -> Array:
        _, at = carry
        return (at.residual > goal) & (at.products < steps) & at.definite

    def again(carry: tuple[PyTree, Solution]) -> tuple[PyTree, Solution]:
        r, at = carry
        left = steps - at.products
        found = conjugate_gradient(operator, r, steps=left, tolerance=goal / at.residual)
        s = tree.add_scale(at.s, 1.0, found.s)
        r = tree.add_scale(b, -1.0, operator(s))
        residual = tree.ratio(optax.tree.norm(r), size)
        return r, Solution(s, residual, at.products + found.products + 1, found.definite)

    zero = jax.tree.map(jnp.zeros_like, b)
    start = Solution(zero, tree.ratio(size, size), jnp.zeros((), jnp.int32), jnp.array(True))
    return lax.while_loop(unfinished, again, (b, start))[1]


def _dot(u: PyTree, v: PyTree) -> Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda a, b: jnp.sum(a * b), u, v))


class ConjugateGradient(AbstractImplicit):
    """``(H + damping I) s = f_y`` by at most ``steps`` conjugate gradients on one sample.

    A fresh sample per product would make no sense of the conjugacy, so one minibatch serves all
    products and J; another one g_y.

    Reference: R. Grazzi, L. Franceschi, M. Pontil, S. Salzo, On the Iteration Complexity of
    Hypergradient Computation, 2020, arXiv:2006.16218.
    """

    steps: int = eqx.field(static=True, default=10)
    tolerance: float = 0.0  # relative residual at which to stop early
    damping: float = 0.0
    batches = 2

    def __check_init__(self) -> None:
        errors.count("ConjugateGradient.steps", self.steps)
        errors.number("ConjugateGradient.tolerance", self.tolerance, least=0)
        errors.number("ConjugateGradient.damping", self.damping, least=0)

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Conjugate gradients from 0."""
        x, y, _ = point
        batch = sample.batch(1)

        def operator(u: PyTree) -> PyTree:
            return tree.add_scale(problem.hessian_product(x, y, batch, u), self.damping, u)

        found = conjugate_gradient(operator, f_y, steps=self.steps, tolerance=self.tolerance)
        return Solved(found.s, found.products, found.residual)

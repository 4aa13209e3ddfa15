"""Fixed-point iteration for the linear system, on one sample (AID-FP)."""

from typing import Any

import equinox as eqx
from jax import lax
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Levels, Problem, Sample
from .base import AbstractImplicit, Solved


class FixedPoint(AbstractImplicit):
    r"""``u <- (I - beta H) u + f_y`` from 0, ``steps`` times, then ``s = beta u``.

    The adjoint of the inner map :math:`y - \beta g_y(x, y)`, which must be a contraction. Consumes
    the minibatches zeta (for g_y) and one more, shared by all products and by J.

    Reference: R. Grazzi, L. Franceschi, M. Pontil, S. Salzo, On the Iteration Complexity of
    Hypergradient Computation, 2020, arXiv:2006.16218.
    """

    steps: int = eqx.field(static=True, default=10)
    step_size: float = 0.5  # beta
    batches = 2

    def __check_init__(self) -> None:
        errors.count("FixedPoint.steps", self.steps)
        errors.number("FixedPoint.step_size", self.step_size, above=0)

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Iterate; the first iterate from 0 is f_y itself and costs no product."""
        x, y, _ = point
        batch = sample.batch(1)

        def iterate(_: Any, u: PyTree) -> PyTree:
            shrunk = tree.add_scale(u, -self.step_size, problem.hessian_product(x, y, batch, u))
            return tree.add_scale(shrunk, 1.0, f_y)

        u = lax.fori_loop(1, self.steps, iterate, f_y)
        return Solved(tree.scale(self.step_size, u), self.steps - 1)

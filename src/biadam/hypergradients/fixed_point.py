"""Fixed-point iteration for the linear system, on one sample (AID-FP)."""

from typing import Any

import equinox as eqx
from jax import lax
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Levels, Problem, Sample
from .base import AbstractHypergradient, Field, implicit


class FixedPoint(AbstractHypergradient):
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

    def __call__(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The field at ``point``."""
        x, y, _ = point
        batch = sample.batch(1)
        outer = problem.outer_gradients(x, y, sample.outer)

        def iterate(_: Any, u: PyTree) -> PyTree:
            shrunk = tree.add_scale(u, -self.step_size, problem.hessian_product(x, y, batch, u))
            return tree.add_scale(shrunk, 1.0, outer[1])

        # The first iterate from 0 is f_y itself and costs no product.
        u = lax.fori_loop(1, self.steps, iterate, outer[1])
        return implicit(
            problem,
            point,
            sample,
            cross_batch=batch,
            outer=outer,
            s=tree.scale(self.step_size, u),
            hessian_products=self.steps - 1,
        )

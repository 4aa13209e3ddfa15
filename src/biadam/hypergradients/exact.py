"""The dense solution of the linear system, for tests and tiny problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .. import errors
from ..problem import Levels, Problem, Sample
from .base import AbstractImplicit, Solved


class Exact(AbstractImplicit):
    """``s = H^{-1} f_y`` with the Hessian of one minibatch as a dense matrix.

    Costs p products and O(p^3) operations for p inner variables, and refuses more than ``most``.
    Consumes the minibatches zeta (for g_y) and one more, shared by H and J.
    """

    most: int = eqx.field(static=True, default=2000)
    batches = 2

    def __check_init__(self) -> None:
        errors.count("Exact.most", self.most)

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Build the Hessian column by column and factor it."""
        x, y, _ = point
        batch = sample.batch(1)
        flat, unravel = ravel_pytree(f_y)
        if flat.size > self.most:
            raise errors.Mistake(
                f"`Exact` builds a dense Hessian and takes at most {self.most} inner variables, "
                f"but y has {flat.size}; use `ConjugateGradient` or `LinearSystem`."
            )
        column = lambda u: ravel_pytree(problem.hessian_product(x, y, batch, unravel(u)))[0]
        hessian = jax.vmap(column)(jnp.eye(flat.size, dtype=flat.dtype))
        return Solved(unravel(jnp.linalg.solve(hessian, flat)), flat.size, 0.0)

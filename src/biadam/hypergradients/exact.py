"""The dense solution of the linear system, for tests and tiny problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .. import errors
from ..problem import Levels, Problem, Sample
from .base import AbstractHypergradient, Field, implicit


class Exact(AbstractHypergradient):
    """``s = H^{-1} f_y`` with the Hessian of one minibatch as a dense matrix.

    Costs p products and O(p^3) operations for p inner variables, and refuses more than ``most``.
    Consumes the minibatches zeta (for g_y) and one more, shared by H and J.
    """

    most: int = eqx.field(static=True, default=2000)
    batches = 2

    def __check_init__(self) -> None:
        errors.count("Exact.most", self.most)

    def __call__(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The field at ``point``."""
        x, y, _ = point
        batch = sample.batch(1)
        outer = problem.outer_gradients(x, y, sample.outer)
        flat, unravel = ravel_pytree(outer[1])
        if flat.size > self.most:
            raise errors.Mistake(
                f"`Exact` builds a dense Hessian and takes at most {self.most} inner variables, "
                f"but y has {flat.size}; use `ConjugateGradient` or `LinearSystem`."
            )
        column = lambda u: ravel_pytree(problem.hessian_product(x, y, batch, unravel(u)))[0]
        hessian = jax.vmap(column)(jnp.eye(flat.size, dtype=flat.dtype))
        return implicit(
            problem,
            point,
            sample,
            cross_batch=batch,
            outer=outer,
            s=unravel(jnp.linalg.solve(hessian, flat)),
            hessian_products=flat.size,
        )

"""The dense solution of the linear system, for tests and tiny problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .. import errors
from ..problem import Levels, Problem, Sample
from .base import AbstractImplicit, Solved


class Exact(AbstractImplicit):
    """``s = H^{-1} f_y`` with the Hessian of one minibatch as a dense matrix.

    Costs p products and O(p^3) operations for p inner variables, and refuses more than ``most``.
    Consumes the minibatches zeta (for g_y) and one more, shared by H and J.

    With ``blocks`` y is an array of p / n blocks of n on its leading axis that do not see each
    other, such as the heads of fresh tasks. H is then as many matrices of n rows, which cost n
    products together, and ``most`` is of n.
    """

    most: int = eqx.field(static=True, default=2000)
    blocks: bool = eqx.field(static=True, default=False)
    batches = 2

    def __check_init__(self) -> None:
        errors.count("Exact.most", self.most)

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Build the Hessian column by column and factor it."""
        x, y, _ = point
        batch = sample.batch(1)
        flat, unravel = ravel_pytree(f_y)
        rows = flat.reshape(self._count(f_y), -1)
        size = rows.shape[1]
        if size > self.most:
            raise errors.Mistake(
                f"`Exact` builds a dense Hessian and takes at most {self.most} inner variables"
                f"{' of a block' if self.blocks else ''}, but y has {size}; use "
                f"`ConjugateGradient` or `LinearSystem`."
            )

        def column(u: Array) -> Array:
            """The same column of every block, for no block sees what the others move along."""
            along = unravel(jnp.broadcast_to(u, rows.shape).reshape(-1))
            return ravel_pytree(problem.hessian_product(x, y, batch, along))[0].reshape(rows.shape)

        hessian = jax.vmap(column, out_axes=1)(jnp.eye(size, dtype=flat.dtype))
        s = jnp.linalg.solve(hessian, rows[..., None])
        return Solved(unravel(s.reshape(-1)), size, 0.0)

    def _count(self, y: PyTree) -> int:
        """How many blocks there are."""
        if not self.blocks:
            return 1
        shapes = [leaf.shape for leaf in jax.tree.leaves(y)]
        if len(shapes) > 1 or not shapes[0]:
            raise errors.Mistake(
                f"`Exact.blocks` needs y to be one array with the blocks on its first axis, but "
                f"it has arrays of the shapes {shapes}."
            )
        return int(shapes[0][0])

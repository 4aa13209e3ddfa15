"""The tracked linear system: s follows the solution of H s = f_y along with x and y."""

from typing import Any

import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import PyTree

from .. import errors, schedules, tree
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..sets import AbstractSet, Free
from .base import AbstractHypergradient, Field


class LinearSystem(AbstractHypergradient):
    r"""The field :math:`(f_x - J s,\; g_y,\; H s - f_y)` on the point (x, y, s).

    One minibatch zeta serves ``g_y``, ``H s`` and ``J s``, which share a forward and a backward
    pass; nothing is truncated, so the bias vanishes as s converges. The start is ``s = 0``.

    Args:
        step_size: of the descent on :math:`\tfrac12 s' H s - f_y' s`, before the factor eta.
        domain: where s lives; a ball of radius C_fy / mu in some theories.

    Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization
    that enables stochastic and global variance reduction algorithms, 2022, arXiv:2201.13409.
    """

    step_size: Number = 0.1
    domain: AbstractSet = Free()
    batches = 1

    def __check_init__(self) -> None:
        schedules.check_number("LinearSystem.step_size", self.step_size)
        errors.part("LinearSystem.domain", self.domain, AbstractSet, "sets")

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """``(x, y, 0)``."""
        self.domain.check("s", y)
        return Levels(x, y, jax.tree.map(jnp.zeros_like, y))

    @property
    def system(self) -> tuple[Any, AbstractSet]:
        """Step size and feasible set of s."""
        return self.step_size, self.domain

    def field(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """See `AbstractHypergradient`."""
        x, y, s = point
        f_x, f_y = problem.outer_gradients(x, y, sample.outer)
        inner, hessian, cross = problem.gradient_and_products(x, y, sample.batch(0), s)
        gap = tree.add_scale(hessian, -1.0, f_y)
        residual = tree.ratio(optax.tree.norm(gap), optax.tree.norm(f_y))
        return Field(
            Levels(tree.add_scale(f_x, -1.0, cross), inner, gap),
            f_x,
            jnp.asarray(residual, jnp.float32),
            Calls(1, 1, 1, 1),
        )

"""Reverse-mode differentiation through inner gradient steps (ITD)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Calls, Levels, Problem, Sample
from .base import UNKNOWN, AbstractHypergradient, Field


class Unrolling(NamedTuple):
    """An inner trajectory and the gradient of the outer loss at its end."""

    y: PyTree  # y^T
    w: PyTree  # d f(x, y^T(x)) / dx, through the last steps
    partial: PyTree  # f_x at the end
    calls: Calls


class Unrolled(AbstractHypergradient):
    r"""The gradient of :math:`f(x, y^T(x))` through ``y^{t+1} = y^t - beta g_y(x, y^t; zeta_t)``.

    Backward in t, with ``a = f_y`` and ``h = f_x`` at the end: ``h <- h - beta J a`` and then
    ``a <- a - beta H a``, on the minibatch that the step used; only the last ``truncation`` steps
    if that is given. The start ``y^0`` counts as independent of x, also when it is warm. Consumes
    the minibatches zeta (for g_y) and one per step.

    Reference: L. Franceschi, P. Frasconi, S. Salzo, R. Grazzi, M. Pontil, Bilevel Programming for
    Hyperparameter Optimization and Meta-Learning, 2018, arXiv:1806.04910.
    """

    steps: int = eqx.field(static=True, default=10)  # T
    step_size: float = 0.5  # beta
    truncation: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        errors.count("Unrolled.steps", self.steps)
        errors.number("Unrolled.step_size", self.step_size, above=0)
        if self.truncation is not None:
            errors.count("Unrolled.truncation", self.truncation)
            if self.truncation > self.steps:
                raise errors.Mistake(
                    f"`Unrolled.truncation` must be at most `steps`, {self.steps}, "
                    f"but it is {self.truncation}."
                )

    @property
    def batches(self) -> int:
        """zeta, and one for each inner step."""
        return self.steps + 1

    def unroll(self, problem: Problem, x: PyTree, y: PyTree, sample: Sample) -> Unrolling:
        """Run the inner steps from y and differentiate through the last of them."""
        kept = self.steps if self.truncation is None else self.truncation

        def forward(y: PyTree, i: Any) -> tuple[PyTree, PyTree]:
            step = problem.inner_gradient(x, y, sample.batch(i + 1))
            return tree.add_scale(y, -self.step_size, step), y

        dropped = self.steps - kept
        y = lax.fori_loop(0, dropped, lambda i, y: forward(y, i)[0], y)
        order = jnp.arange(dropped, self.steps)
        y, path = lax.scan(forward, y, order)
        f_x, f_y = problem.outer_gradients(x, y, sample.outer)

        def backward(carry: tuple[PyTree, PyTree], at: tuple[Any, PyTree]) -> tuple[Any, None]:
            h, a = carry
            i, y = at
            hessian, cross = problem.products(x, y, sample.batch(i + 1), a)
            beta = self.step_size
            return (tree.add_scale(h, -beta, cross), tree.add_scale(a, -beta, hessian)), None

        (w, _), _ = lax.scan(backward, (f_x, f_y), (order, path), reverse=True)
        return Unrolling(y, w, f_x, Calls(1, self.steps, kept, kept))

    def field(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The trajectory starts at the point's y."""
        x, y, _ = point
        end = self.unroll(problem, x, y, sample)
        inner = problem.inner_gradient(x, y, sample.batch(0))
        return Field(
            Levels(end.w, inner),
            end.partial,
            jnp.asarray(UNKNOWN, jnp.float32),
            end.calls.plus(Calls(inner_gradient=1)),
        )

r"""Inner problems that come with the sample, as tasks do: solved anew for each.

.. math:: \min_x E_\xi f(x, y^*_\xi(x); \xi) \quad \text{with} \quad
          y^*_\xi(x) = \operatorname{argmin}_y g(x, y; \xi).

There is no inner variable to keep from step to step. Every evaluation starts at the same y, finds
the solution of the sample's own inner problem, and takes a hypergradient there. An estimator that
looks at two points solves the same problems at both.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Calls, Levels, Problem, Sample
from .base import AbstractHypergradient, Field
from .newton import newton


class Fitted(NamedTuple):
    """What an inner solver found."""

    y: PyTree
    calls: Calls


class AbstractInner(eqx.Module):
    """How the inner problem of one minibatch is solved."""

    @abc.abstractmethod
    def __call__(self, problem: Problem, x: PyTree, y: PyTree, batch: PyTree) -> Fitted:
        """The solution, starting at y."""


class Steps(AbstractInner):
    """``count`` steps ``y <- y - lambda g_y``; none to start a hypergradient at y itself."""

    count: int = eqx.field(static=True, default=16)  # D
    step_size: float = 0.4  # lambda

    def __check_init__(self) -> None:
        errors.count("Steps.count", self.count, least=0)
        errors.number("Steps.step_size", self.step_size, above=0)

    def __call__(self, problem: Problem, x: PyTree, y: PyTree, batch: PyTree) -> Fitted:
        """Descend."""

        def step(_: Any, y: PyTree) -> PyTree:
            return tree.add_scale(y, -self.step_size, problem.inner_gradient(x, y, batch))

        return Fitted(lax.fori_loop(0, self.count, step, y), Calls(inner_gradient=self.count))


class Newton(AbstractInner):
    """Damped Newton steps until the gradient is ``tolerance`` times that at the start."""

    tolerance: float = 1e-3
    steps: int = eqx.field(static=True, default=20)  # at most
    products: int = eqx.field(static=True, default=100)  # at most, in one step

    def __check_init__(self) -> None:
        errors.number("Newton.tolerance", self.tolerance, above=0)
        errors.count("Newton.steps", self.steps)
        errors.count("Newton.products", self.products)

    def __call__(self, problem: Problem, x: PyTree, y: PyTree, batch: PyTree) -> Fitted:
        """Solve."""
        dtype = jnp.result_type(*jax.tree.leaves(y))
        found, _ = newton(
            problem,
            x,
            y,
            batch,
            jnp.zeros((), dtype),
            jnp.asarray(self.tolerance, dtype),
            steps=self.steps,
            products=self.products,
        )
        calls = Calls(inner_gradient=found.gradients, hessian_product=found.products)
        return Fitted(found.y, calls)


class PerSample(AbstractHypergradient):
    """The hypergradient at the solution of the sample's own inner problem.

    The level y of the point holds the start of every solution and does not move. The inner problem
    is that of the sample's inner minibatch 0; `of` takes the others as it does elsewhere, or the
    same one from a source that has no other.

    Args:
        of: the hypergradient at the solution, of those without a level of their own. `Unrolled`
            solves the problem itself, by its steps; give it ``Steps(0)``.
        solver: how the inner problem is solved.
    """

    of: AbstractHypergradient
    solver: AbstractInner = Newton()

    def __check_init__(self) -> None:
        errors.part("PerSample.of", self.of, AbstractHypergradient, "hypergradients")
        errors.part(
            "PerSample.solver", self.solver, AbstractInner, "hypergradients, an inner solver"
        )

    @property
    def batches(self) -> int:
        """Those of the hypergradient."""
        return self.of.batches

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """Refuse what keeps a linear system from step to step: every task has its own."""
        if self.of.lift(x, y).s is not None:
            raise errors.Mistake(
                f"`PerSample.of` must be a hypergradient without a state of its own, but it is "
                f"{type(self.of).__name__}; take for example ConjugateGradient."
            )
        return Levels(x, y)

    def field(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """See `AbstractHypergradient`."""
        x, start, _ = point
        fitted = self.solver(problem, x, start, sample.batch(0))
        seen = self.of.field(problem, Levels(x, fitted.y), sample)
        # The inner gradient at the solution is nobody's direction, and is not computed.
        calls = seen.calls.plus(fitted.calls).plus(Calls(inner_gradient=-1))
        value = Levels(seen.value.x, jax.tree.map(jnp.zeros_like, start))
        return seen._replace(value=value, calls=calls)

"""Stochastic vector fields: what the noise-free method follows, at a point, with a sample."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import tree
from ..problem import Calls, Levels, Problem, Sample
from ..sets import AbstractSet, Free


class Field(NamedTuple):
    """What a hypergradient sees at a point."""

    value: Levels  # of x the hypergradient, of y the inner gradient, of s the residual H s - f_y
    partial: PyTree  # f_x, the part of the hypergradient that is the paper's literal signal for A
    residual: Array  # |H s - f_y| / |f_y| on the sample, NaN where the estimator does not know it
    calls: Calls


class AbstractHypergradient(eqx.Module):
    """An estimator of ``f_x - J H^{-1} f_y`` (and of ``g_y``), pure in (point, sample).

    That purity is all that variance reduction asks for: every draw comes from the sample.
    """

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many inner minibatches one evaluation consumes."""

    @abc.abstractmethod
    def field(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The field at ``point``, of a problem without a stage."""

    def __call__(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The field at ``point``, with the problem's stage done once."""
        view = problem.view(point.x, sample)
        seen = self.field(view.problem, point._replace(x=view.x), view.sample)
        value = seen.value._replace(x=view.pull(seen.value.x))
        return seen._replace(value=value, partial=view.pull(seen.partial))

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """The starting point of the method, given the user's."""
        return Levels(x, y)

    @property
    def system(self) -> tuple[Any, AbstractSet]:
        """Step size and feasible set of the level s, for the estimators that track it."""
        return 0.0, Free()


UNKNOWN = float("nan")


class Solved(NamedTuple):
    """An approximate solution of H s = f_y."""

    s: PyTree
    products: Any  # Hessian products spent
    residual: Any = UNKNOWN  # |H s - f_y| / |f_y|, if known


class Implicit(NamedTuple):
    """An estimate of the hypergradient alone."""

    w: PyTree  # f_x - J s
    partial: PyTree  # f_x
    residual: Array
    calls: Calls


class AbstractImplicit(AbstractHypergradient):
    """Solve ``H s = f_y`` in some way, then ``w = f_x - J s``.

    The sample's inner minibatches are, in this order: zeta for ``g_y``, zeta^0 for J, and those
    of the solution.
    """

    @abc.abstractmethod
    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """The solution of the linear system at ``point``, from the minibatches 1, 2, ..."""

    def implicit(self, problem: Problem, point: Levels, sample: Sample) -> Implicit:
        """The hypergradient without the inner gradient; minibatch 0 is not looked at.

        Like `field` it takes the problem as it is; a stage is the caller's to do.
        """
        x, y, _ = point
        f_x, f_y = problem.outer_gradients(x, y, sample.outer)
        s, products, residual = self.solve(problem, point, sample, f_y)
        cross = problem.cross_product(x, y, sample.batch(1), s)
        w = tree.add_scale(f_x, -1.0, cross)
        return Implicit(w, f_x, jnp.asarray(residual, jnp.float32), Calls(1, 0, products, 1))

    def field(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """See `AbstractHypergradient`."""
        w, partial, residual, calls = self.implicit(problem, point, sample)
        inner = problem.inner_gradient(point.x, point.y, sample.batch(0))
        return Field(Levels(w, inner), partial, residual, calls.plus(Calls(inner_gradient=1)))

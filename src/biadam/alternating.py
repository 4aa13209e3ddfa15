"""The alternating method: the inner levels move first, the outer direction is estimated there."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from . import errors, schedules
from .estimators import AbstractEstimator
from .hypergradients import Field
from .metrics import AbstractMetric
from .problem import Calls, Levels, Problem, Sample
from .schedules import Number
from .solver import AbstractSolver, Info, info_of, proximal_step, refuse_sets


class AlternatingState(NamedTuple):
    """What the next step of an alternating method needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k (and s_k)
    last: PyTree  # x_{k-1}: the outer direction was estimated at (x_{k-1}, y_k)
    direction: PyTree  # w
    memory: Any  # what the outer metric remembers


class Inner(NamedTuple):
    """The inner levels after their move, and how to look from there."""

    point: Levels  # x_k, y_{k+1} (and s_{k+1})
    field: Callable[[Levels], Field]  # the hypergradient alone; only the level x has a value
    direction: PyTree  # what y followed
    calls: Calls  # of the move
    residual: Any  # |H s - f_y| / |f_y|, if known


class AbstractAlternating(AbstractSolver):
    r"""Gauss-Seidel: y (and s) first, then x along an estimate at the new inner point.

    The estimator compares :math:`(x_k, y_{k+1})` with :math:`(x_{k-1}, y_k)` on one sample, and
    starts with the fresh hypergradient.
    """

    step_size: eqx.AbstractVar[tuple[Number, Number]]
    rate: eqx.AbstractVar[Number]
    estimator: eqx.AbstractVar[AbstractEstimator]
    outer_metric: eqx.AbstractVar[AbstractMetric]

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        errors.part("estimator", self.estimator, AbstractEstimator, "estimators")
        errors.part("outer_metric", self.outer_metric, AbstractMetric, "metrics")

    @abc.abstractmethod
    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """The starting point of the method, given the user's."""

    @abc.abstractmethod
    def move(
        self, problem: Problem, point: Levels, sample: Sample, step: Array, step_size: Array
    ) -> Inner:
        """Move the inner levels, y by ``step_size``."""

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[AlternatingState, Info]:
        """Nothing is looked at before the first inner move."""
        refuse_sets(problem, type(self).__name__.lower(), outer=False)
        zero = jax.tree.map(jnp.zeros_like, x)
        memory = self.outer_metric.init(x)
        state = AlternatingState(jnp.ones((), jnp.int32), self.lift(x, y), x, zero, memory)
        return state, info_of(Calls(), jnp.ones(()), zero, jax.tree.map(jnp.zeros_like, y))

    def step(
        self, problem: Problem, state: AlternatingState, sample: Sample
    ) -> tuple[AlternatingState, Info]:
        """The inner move, the estimate, the outer step."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        inner = self.move(problem, state.point, sample, state.step, inner_step)
        one = jnp.ones(())
        rate = jnp.minimum(one, schedules.at(self.rate, state.step))
        direction, fresh, calls = self.estimator(
            inner.field,
            inner.point,
            state.point._replace(x=state.last),
            Levels(state.direction, None),
            Levels(jnp.where(state.step == 1, one, rate), None),
        )
        w, x = direction.x, state.point.x
        memory = self.outer_metric.update(state.memory, fresh.value.x, w, fresh.partial)
        matrix = self.outer_metric.matrix(memory, x)
        new = proximal_step(x, w, matrix, outer_step, problem.outer_set)
        state = AlternatingState(state.step + 1, inner.point._replace(x=new), x, w, memory)
        return state, info_of(inner.calls.plus(calls), one, w, inner.direction, inner.residual)

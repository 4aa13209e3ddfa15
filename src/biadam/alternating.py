"""The alternating method: y moves first, and the outer direction is estimated at the new one."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from . import errors, schedules
from .double_loop import inner_clips, inner_move
from .estimators import AbstractEstimator
from .hypergradients import Field
from .metrics import AbstractMetric
from .problem import Calls, Levels, Problem, Sample, View
from .schedules import Number
from .solver import AbstractSolver, Draw, Info, info_of, proximal_step


class AlternatingState(NamedTuple):
    """What the next step of an alternating method needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k (and s_k)
    last: PyTree  # x_{k-1}: the outer direction was estimated at (x_{k-1}, y_k)
    direction: PyTree  # w
    memory: tuple[PyTree, PyTree]  # what the metrics remember, outer and inner


class Inner(NamedTuple):
    """The inner levels after their moves, and how to look from there."""

    point: Levels  # x_k, y_{k+1} (and s_{k+1})
    field: Callable[[Levels], Field]  # the hypergradient alone; only the level x has a value
    calls: Calls  # of the move of s
    residual: Any  # |H s - f_y| / |f_y|, if known


class AbstractAlternating(AbstractSolver):
    r"""Gauss-Seidel: y (and s) first, then x along an estimate at the new inner point.

    .. math::
        y_{k+1} &= \operatorname{prox}_Y(y_k - \lambda_k B_k^{-1} g_y(x_k, y_k; \zeta)), \\
        x_{k+1} &= \operatorname{prox}_X(x_k - \gamma_k A_k^{-1} w_k).

    The estimator compares :math:`(x_k, y_{k+1})` with :math:`(x_{k-1}, y_k)` on one sample, and
    starts with the fresh hypergradient.
    """

    step_size: eqx.AbstractVar[tuple[Number, Number]]
    rate: eqx.AbstractVar[Number]
    estimator: eqx.AbstractVar[AbstractEstimator]
    outer_metric: eqx.AbstractVar[AbstractMetric]  # A
    inner_metric: eqx.AbstractVar[AbstractMetric]  # B

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        errors.part("estimator", self.estimator, AbstractEstimator, "estimators")
        errors.part("outer_metric", self.outer_metric, AbstractMetric, "metrics")
        errors.part("inner_metric", self.inner_metric, AbstractMetric, "metrics")

    @abc.abstractmethod
    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """The starting point of the method, given the user's."""

    @abc.abstractmethod
    def follow(
        self, problem: Problem, view: View, point: Levels, sample: Sample, step: Array
    ) -> Inner:
        """What comes after y has moved to that of ``point``; ``view`` is that from its x."""

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[AlternatingState, Info]:
        """Nothing is looked at before the first inner move."""
        zero = jax.tree.map(jnp.zeros_like, x)
        memory = (self.outer_metric.init(x), self.inner_metric.init(y))
        state = AlternatingState(jnp.ones((), jnp.int32), self.lift(x, y), x, zero, memory)
        return state, info_of(Calls(), jnp.ones(()), zero, jax.tree.map(jnp.zeros_like, y))

    def step(
        self, problem: Problem, state: AlternatingState, sample: Sample
    ) -> tuple[AlternatingState, Info]:
        """The inner move, the estimate, the outer step."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        (x, y, _), (above, below) = state.point, state.memory
        view = problem.view(x, sample)
        q = view.problem.inner_gradient(view.x, y, view.sample.batch(0))
        move, below = inner_move(problem, y, q, self.inner_metric, below, inner_step)
        moved = state.point._replace(y=proximal_step(*move))
        inner = self.follow(problem, view, moved, sample, state.step)
        one = jnp.ones(())
        rate = jnp.minimum(one, schedules.at(self.rate, state.step))
        direction, fresh, calls = self.estimator(
            inner.field,
            inner.point,
            state.point._replace(x=state.last),
            Levels(state.direction, None),
            Levels(jnp.where(state.step == 1, one, rate), None),
        )
        w = direction.x
        above = self.outer_metric.update(above, fresh.value.x, w, fresh.partial)
        matrix = self.outer_metric.matrix(above, x)
        new = proximal_step(x, w, matrix, outer_step, problem.outer_set)
        point, memory = inner.point._replace(x=new), (above, below)
        state = AlternatingState(state.step + 1, point, x, w, memory)
        calls = calls.plus(inner.calls).plus(Calls(inner_gradient=1))
        return state, info_of(calls, one, w, q, inner.residual)

    def clips(self, problem: Problem, state: AlternatingState, sample: Draw) -> Bool[Array, ""]:
        """Look at the step of y that could come next."""
        step = schedules.at(self.step_size[1], state.step)
        return inner_clips(problem, state.point, self.inner_metric, state.memory[1], step, sample)

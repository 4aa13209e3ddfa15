"""The method of two loops: some inner steps from the last y, then one outer step at the new one."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.tree
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from . import errors, schedules, tree
from .hypergradients import AbstractImplicit
from .hypergradients.base import Solved
from .metrics import AbstractMetric, Identity
from .problem import Calls, Levels, Problem, Sample, View
from .schedules import Number
from .solver import (
    LOOKS,
    AbstractSolver,
    Draw,
    Info,
    Move,
    check_implicit,
    held_back,
    info_of,
    proximal_step,
    refuse_sets,
)


class DoubleState(NamedTuple):
    """What the next step of a double-loop method needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k, and s_k where the hypergradient starts from the last solution
    direction: PyTree  # w, the average of the hypergradients so far
    memory: tuple[PyTree, PyTree]  # what the metrics remember, outer and inner
    start: PyTree = None  # where every inner loop begins, if not at the last y


class Seen(NamedTuple):
    """What one of the two loops leaves for the `Info`."""

    direction: PyTree  # w or the last g_y
    residual: Array  # |H s - f_y| / |f_y|, NaN where it is not known
    calls: Calls


class DoubleLoop(AbstractSolver):
    r"""``D`` inner steps, then the hypergradient at the *new* y, then an outer step.

    .. math::
        y^0 = y_k, \quad
        y^{j+1} = \operatorname{prox}_Y(y^j - \lambda_k B^{-1} g_y(x_k, y^j; \zeta_j)), \quad
        y_{k+1} = y^D, \\
        w_k = r\, (h(x_k, y_{k+1}) + c\, x_k) + (1 - r) w_{k-1}, \quad
        x_{k+1} = \operatorname{prox}_X(x_k - \gamma_k A^{-1} w_k).

    With D = 1 this is the alternating single-loop scheme. The sample holds D inner minibatches for
    the steps, then those of the hypergradient. The schedules of the outer level count from its
    first step, after the warm-up; a hypergradient that is `Amortized` starts from the last s.
    Without a warm start every inner loop begins at the user's y.
    """

    step_size: tuple[Number, Number]  # gamma_k, lambda_k
    hypergradient: AbstractImplicit
    inner_steps: int = eqx.field(static=True, default=1)  # D
    rate: Number = 1.0  # r, the weight of the fresh hypergradient; 1 is plain descent
    outer_metric: AbstractMetric = Identity()
    inner_metric: AbstractMetric = Identity()
    decay: float = 0.0  # c, the weight decay of x
    period: int = eqx.field(static=True, default=1)  # y moves in one of so many iterations
    warm_up: int = eqx.field(static=True, default=0)  # first iterations, in which y alone moves
    warm_start: bool = eqx.field(static=True, default=True)  # begin the inner loop at the last y
    name: str = eqx.field(static=True, default="DoubleLoop")
    sets: tuple[bool, bool] = eqx.field(static=True, default=(True, True))  # constraints it takes

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        check_implicit(self.hypergradient)
        errors.part("outer_metric", self.outer_metric, AbstractMetric, "metrics")
        errors.part("inner_metric", self.inner_metric, AbstractMetric, "metrics")
        errors.number("decay", self.decay, least=0)
        errors.count("inner_steps", self.inner_steps)
        errors.count("period", self.period)
        errors.count("warm_up", self.warm_up, least=0)

    @property
    def batches(self) -> int:
        """One for each inner step, and those of the hypergradient but its own for g_y."""
        return self.inner_steps + self.hypergradient.batches - 1

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[DoubleState, Info]:
        """Nothing is looked at before the first inner step."""
        refuse_sets(problem, self.name, outer=not self.sets[0], inner=not self.sets[1])
        zero = jax.tree.map(jnp.zeros_like, x)
        memory = (self.outer_metric.init(x), self.inner_metric.init(y))
        point = self.hypergradient.lift(x, y)
        start = None if self.warm_start else y
        state = DoubleState(jnp.ones((), jnp.int32), point, zero, memory, start)
        return state, info_of(Calls(), jnp.ones(()), zero, jax.tree.map(jnp.zeros_like, y))

    def step(
        self, problem: Problem, state: DoubleState, sample: Sample
    ) -> tuple[DoubleState, Info]:
        """One pass through both loops."""
        started = state.step > self.warm_up
        view = problem.view(state.point.x, sample)
        due = ~started | ((state.step - self.warm_up - 1) % self.period == 0)
        idle = Seen(jax.tree.map(jnp.zeros_like, state.point.y), _unknown(), _counted(Calls()))
        inner = lambda state: self._descend(view, state)
        state, below = _when(due, self.period > 1, inner, lambda state: (state, idle), state)

        rest = lambda state: (state, Seen(state.direction, _unknown(), _counted(Calls())))
        outer = lambda state: self._ascend(problem, view, state)
        state, above = _when(started, self.warm_up > 0, outer, rest, state)

        info = info_of(
            above.calls.plus(below.calls),
            jnp.ones(()),
            above.direction,
            below.direction,
            above.residual,
        )
        return state._replace(step=state.step + 1), info

    def clips(self, problem: Problem, state: DoubleState, sample: Draw) -> Bool[Array, ""]:
        """Look at an inner step that could come next."""
        step = schedules.at(self.step_size[1], state.step)
        return inner_clips(problem, state.point, self.inner_metric, state.memory[1], step, sample)

    def _descend(self, view: View, state: DoubleState) -> tuple[DoubleState, Seen]:
        """The inner loop."""
        problem, x, sample, _ = view
        y = state.point.y if self.warm_start else state.start
        outer_memory, inner_memory = state.memory
        inner_step = schedules.at(self.step_size[1], state.step)

        def descend(j: Array, carry: tuple[PyTree, PyTree, PyTree]) -> tuple[PyTree, ...]:
            y, memory, _ = carry
            q = problem.inner_gradient(x, y, sample.batch(j))
            move, memory = inner_move(problem, y, q, self.inner_metric, memory, inner_step)
            return proximal_step(*move), memory, q

        start = (y, inner_memory, jax.tree.map(jnp.zeros_like, y))
        y, inner_memory, q = lax.fori_loop(0, self.inner_steps, descend, start)
        state = state._replace(point=state.point._replace(y=y), memory=(outer_memory, inner_memory))
        return state, Seen(q, _unknown(), _counted(Calls(inner_gradient=self.inner_steps)))

    def _ascend(self, problem: Problem, view: View, state: DoubleState) -> tuple[DoubleState, Seen]:
        """The hypergradient, and the step along its average."""
        x, y, s = state.point
        seen, at = view.problem, state.point._replace(x=view.x)
        outer_memory, inner_memory = state.memory
        t = state.step - self.warm_up

        # The hypergradient's own minibatches follow; its first, for g_y, it does not look at here.
        sample = view.sample.after(self.inner_steps - 1)
        f_x, f_y = seen.outer_gradients(view.x, y, sample.outer)
        solved = self.hypergradient.solve(seen, at, sample, f_y)
        cross = seen.cross_product(view.x, y, sample.batch(1), solved.s)
        h = view.pull(tree.add_scale(f_x, -1.0, cross))
        h = tree.add_scale(h, self.decay, x)

        one = jnp.ones(())
        rate = jnp.where(t == 1, one, jnp.minimum(one, schedules.at(self.rate, t)))
        w = tree.mix(rate, h, state.direction)
        outer_memory = self.outer_metric.update(outer_memory, h, w, view.pull(f_x))
        matrix = self.outer_metric.matrix(outer_memory, x)
        outer_step = schedules.at(self.step_size[0], t)
        x = proximal_step(x, w, matrix, outer_step, problem.outer_set)

        point = Levels(x, y, None if s is None else solved.s)
        memory = outer_memory, inner_memory
        state = state._replace(point=point, direction=w, memory=memory)
        residual = jnp.asarray(solved.residual, jnp.float32)
        return state, Seen(w, residual, _counted(Calls(1, 0, solved.products, 1)))


def inner_move(
    problem: Problem,
    y: PyTree,
    q: PyTree,
    metric: AbstractMetric,
    memory: PyTree,
    step_size: Array,
) -> tuple[Move, PyTree]:
    """The step of y along q in a matrix that has seen q, and what the metric then remembers."""
    memory = metric.update(memory, q, q, q)
    return Move(y, q, metric.matrix(memory, y), step_size, problem.inner_set), memory


def inner_clips(
    problem: Problem,
    point: Levels,
    metric: AbstractMetric,
    memory: PyTree,
    step_size: Array,
    sample: Draw,
) -> Bool[Array, ""]:
    """Whether the set holds back a step of y along the mean inner gradient of many samples.

    One sample alone would send y over a border that is near.
    """
    x, y, _ = point

    def add(j: Array, mean: PyTree) -> PyTree:
        fresh = problem.inner_gradient(x, y, sample(j).batch(0))
        return tree.mix(1 / (j + 1), fresh, mean)

    q = lax.fori_loop(0, LOOKS, add, jax.tree.map(jnp.zeros_like, y))
    return held_back(inner_move(problem, y, q, metric, memory, step_size)[0])


class Amortized(AbstractImplicit):
    r"""Stochastic descent on :math:`\tfrac12 s' H s - f_y' s` from the last s, for `DoubleLoop`.

    ``s <- s - rho (H(zeta^n) s - f_y)`` with a fresh minibatch for each of the ``steps`` and f_y of
    one outer minibatch for all; no series is truncated, so the bias vanishes as s converges. The
    start of all is ``s = 0``. Consumes the minibatches zeta (for g_y), zeta^0 (for J) and zeta^1
    .. zeta^N. The residual that it knows is the one before its last step.

    Reference: M. Arbel, J. Mairal, Amortized Implicit Differentiation for Stochastic Bilevel
    Optimization, 2022, arXiv:2111.14580.
    """

    steps: int = eqx.field(static=True, default=1)  # N
    step_size: float = 0.5  # rho

    def __check_init__(self) -> None:
        errors.count("Amortized.steps", self.steps)
        errors.number("Amortized.step_size", self.step_size, above=0)

    @property
    def batches(self) -> int:
        """zeta, zeta^0 and zeta^1 .. zeta^N."""
        return self.steps + 2

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """``(x, y, 0)``."""
        return Levels(x, y, jax.tree.map(jnp.zeros_like, y))

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Descend from the point's s."""
        x, y, s = point
        size = optax.tree.norm(f_y)

        def descend(n: Any, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            s, _ = carry
            product = problem.hessian_product(x, y, sample.batch(n + 2), s)
            gap = tree.add_scale(product, -1.0, f_y)
            return tree.add_scale(s, -self.step_size, gap), optax.tree.norm(gap)

        s, gap = lax.fori_loop(0, self.steps, descend, (s, jnp.zeros_like(size)))
        return Solved(s, self.steps, tree.ratio(gap, size))


Carry = TypeVar("Carry")
Branch = Callable[[Carry], tuple[Carry, Seen]]


def _when(
    due: Bool[Array, ""], ever: bool, then: Branch[Carry], otherwise: Branch[Carry], carry: Carry
) -> tuple[Carry, Seen]:
    """A branch only where there is something to choose."""
    return lax.cond(due, then, otherwise, carry) if ever else then(carry)


def _unknown() -> Array:
    return jnp.full((), jnp.nan, jnp.float32)


def _counted(calls: Calls) -> Calls:
    return Calls(*(jnp.asarray(n, jnp.int32) for n in calls))

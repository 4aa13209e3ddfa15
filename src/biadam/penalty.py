"""What the penalty methods share: the gap of inner values, multipliers, and two ways to descend.

They replace ``y = y*(x)`` by a large multiple of the gap ``g(x, y) - min over z of g(x, z)``,
whose gradients need no second derivative: where z minimises g(x, .), they are
``g_x(x, y) - g_x(x, z)`` in x and ``g_y(x, y)`` in y.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from . import errors, schedules, tree
from .metrics import Identity
from .problem import Calls, Levels, Problem, Sample
from .proximal import AbstractProximal
from .schedules import Number
from .solver import AbstractSolver, Info, info_of, proximal_step, refuse_sets


class PowerGrowth(eqx.Module):
    r""":math:`\lambda_t = k (m + t)^p`, the multiplier of F2SA."""

    scale: float = 1.0  # k
    offset: float = 0.0  # m
    power: float = 1 / 7  # p

    def __check_init__(self) -> None:
        errors.number("PowerGrowth.scale", self.scale, above=0)
        errors.number("PowerGrowth.offset", self.offset, least=0)
        errors.number("PowerGrowth.power", self.power, least=0)

    def __call__(self, step: Array) -> Array:
        """The value at step t, counted from 1."""
        t = jnp.asarray(step, jnp.result_type(float))
        return self.scale * (self.offset + t) ** self.power


class Ramp(eqx.Module):
    """From ``start`` at step 1 in a line to ``end``, which is reached ``steps`` steps later."""

    start: float = 0.0
    end: float = 10.0
    steps: float = 1000.0

    def __check_init__(self) -> None:
        errors.number("Ramp.start", self.start, least=0)
        errors.number("Ramp.end", self.end, above=0)
        errors.number("Ramp.steps", self.steps, above=0)

    def __call__(self, step: Array) -> Array:
        """The value at step t, counted from 1."""
        done = (jnp.asarray(step, jnp.result_type(float)) - 1) / self.steps
        return self.start + (self.end - self.start) * jnp.minimum(jnp.ones_like(done), done)


class PenaltyState(NamedTuple):
    """What the next step of a penalty method needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k
    z: PyTree  # the estimate of y*(x_k), None where a step does not begin with the last one


def _begin(x: PyTree, y: PyTree, z: PyTree) -> tuple[PenaltyState, Info]:
    zeros = jax.tree.map(jnp.zeros_like, (x, y))
    state = PenaltyState(jnp.ones((), jnp.int32), Levels(x, y), z)
    return state, info_of(Calls(), jnp.ones(()), *zeros)


def _move(z: PyTree, direction: PyTree, step_size: Any, home: AbstractProximal) -> PyTree:
    return proximal_step(z, direction, Identity().matrix(None, z), step_size, home)


class Pull(NamedTuple):
    """What a penalty sees at a point."""

    gradient: tuple[PyTree, PyTree]  # of the penalty, in x and y
    z: PyTree  # for the next state
    calls: Calls


class AbstractPenalty(eqx.Module):
    """A function of (x, y), zero where y is optimal and positive elsewhere."""

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many inner minibatches its gradient takes."""

    @abc.abstractmethod
    def begin(self, y: PyTree) -> PyTree:
        """What the first state remembers."""

    @abc.abstractmethod
    def __call__(
        self, problem: Problem, point: Levels, z: PyTree, sample: Sample, step: Array
    ) -> Pull:
        """Its gradient at ``point``."""


class ValueGap(AbstractPenalty):
    r"""``g(x, y) - g(x, z)``, z the end of T inner steps and a constant to the gradient.

    The steps begin at the last z if it is tracked, and at y otherwise. They take the minibatches
    0 .. T - 1; the minibatch T serves all three inner gradients of the gap, whose noise then
    cancels as y and z meet.
    """

    inner_steps: int = eqx.field(static=True)  # T
    step_size: Number
    tracked: bool = eqx.field(static=True)

    def __check_init__(self) -> None:
        errors.count("inner_steps", self.inner_steps)
        schedules.check_number("solution_step", self.step_size)

    @property
    def batches(self) -> int:
        """One for each inner step, and one for the gap."""
        return self.inner_steps + 1

    def begin(self, y: PyTree) -> PyTree:
        """See `AbstractPenalty`."""
        return y if self.tracked else None

    def __call__(
        self, problem: Problem, point: Levels, z: PyTree, sample: Sample, step: Array
    ) -> Pull:
        """See `AbstractPenalty`."""
        x, y, _ = point
        size = schedules.at(self.step_size, step)

        def descend(i: Array, z: PyTree) -> PyTree:
            slope = problem.inner_gradient(x, z, sample.batch(i))
            return _move(z, slope, size, problem.inner_set)

        z = lax.fori_loop(0, self.inner_steps, descend, z if self.tracked else y)
        batch = sample.batch(self.inner_steps)
        above, slope = problem.inner_gradients(x, y, batch)
        below, _ = problem.inner_gradients(x, z, batch)
        gradient = (tree.add_scale(above, -1.0, below), slope)
        calls = Calls(inner_gradient=self.inner_steps + 2)
        return Pull(gradient, z if self.tracked else None, calls)


class AbstractMultiplier(eqx.Module):
    """How f and the penalty are weighed against each other."""

    @abc.abstractmethod
    def __call__(
        self, f: tuple[PyTree, PyTree], q: tuple[PyTree, PyTree], step: Array
    ) -> tuple[Array, Array]:
        """The weights of f and of the penalty, given the gradients of both."""


class PenaltyDescent(AbstractSolver):
    r"""``(x, y) <- prox((x, y) - step (c_f grad f + c_q q))``, q the gradient of a penalty.

    Both levels move from the same point.
    """

    step_size: tuple[Number, Number]
    penalty: AbstractPenalty
    multiplier: AbstractMultiplier
    name: str = eqx.field(static=True)  # of the factory, for messages
    sets: tuple[bool, bool] = eqx.field(static=True, default=(False, False))  # taken on (x, y)

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)

    @property
    def batches(self) -> int:
        """Those of the penalty."""
        return self.penalty.batches

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[PenaltyState, Info]:
        """Nothing is looked at before the first step."""
        refuse_sets(problem, self.name, outer=not self.sets[0], inner=not self.sets[1])
        return _begin(x, y, self.penalty.begin(y))

    def step(
        self, problem: Problem, state: PenaltyState, sample: Sample
    ) -> tuple[PenaltyState, Info]:
        """One step of both levels."""
        x, y, _ = state.point
        q, z, calls = self.penalty(problem, state.point, state.z, sample, state.step)
        f = problem.outer_gradients(x, y, sample.outer)
        loss, pull = self.multiplier(f, q, state.step)
        w, v = (tree.add_scale(tree.scale(loss, a), pull, b) for a, b in zip(f, q, strict=True))
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        x = _move(x, w, outer_step, problem.outer_set)
        y = _move(y, v, inner_step, problem.inner_set)
        info = info_of(calls.plus(Calls(outer_gradient=1)), jnp.ones(()), w, v)
        return PenaltyState(state.step + 1, Levels(x, y), z), info


class FullyFirstOrder(AbstractSolver):
    r"""Two inner descents, on :math:`f / \lambda + g` and on g, then an outer step on their gap.

    .. math::
        y^{i+1} &= y^i - \rho \beta (f_y(x, y^i; \xi) / \lambda + g_y(x, y^i; \zeta_i)), \qquad
        z^{i+1} = z^i - \beta\, g_y(x, z^i; \zeta'_i), \qquad i = 0, \dots, T - 1, \\
        w &= f_x(x, y^T; \xi) + \lambda (g_x(x, y^T; \zeta_T) - g_x(x, z^T; \zeta'_T)),
        \qquad x \leftarrow x - \alpha w.

    The sample holds :math:`\zeta_0, \dots, \zeta_T` and, unless paired,
    :math:`\zeta'_0, \dots, \zeta'_T` after them.
    """

    step_size: tuple[Number, Number]  # alpha, beta
    penalty: Number  # lambda
    ratio: Number  # rho
    inner_steps: int = eqx.field(static=True)  # T
    tracked: bool = eqx.field(static=True)  # z begins where it last ended, and not at y
    paired: bool = eqx.field(static=True)  # zeta' is zeta
    name: str = eqx.field(static=True)  # of the factory, for messages

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("penalty", self.penalty)
        schedules.check_number("ratio", self.ratio)
        errors.count("inner_steps", self.inner_steps)

    @property
    def batches(self) -> int:
        """One for each inner step and for the outer one, of y and of z."""
        return (1 if self.paired else 2) * (self.inner_steps + 1)

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[PenaltyState, Info]:
        """Both descents begin at y."""
        refuse_sets(problem, self.name)
        return _begin(x, y, y if self.tracked else None)

    def step(
        self, problem: Problem, state: PenaltyState, sample: Sample
    ) -> tuple[PenaltyState, Info]:
        """One pass through both loops."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        penalty, ratio = (schedules.at(n, state.step) for n in (self.penalty, self.ratio))
        x, y, _ = state.point
        steps, xi = self.inner_steps, sample.outer
        other = 0 if self.paired else steps + 1

        def descend(i: Array, carry: tuple[PyTree, PyTree, PyTree]) -> tuple[PyTree, ...]:
            y, z, _ = carry
            _, f_y = problem.outer_gradients(x, y, xi)
            v = tree.add_scale(problem.inner_gradient(x, y, sample.batch(i)), 1 / penalty, f_y)
            slope = problem.inner_gradient(x, z, sample.batch(i + other))
            y = tree.add_scale(y, -inner_step, tree.scale(ratio, v))
            return y, tree.add_scale(z, -inner_step, slope), v

        begin = (y, state.z if self.tracked else y, jax.tree.map(jnp.zeros_like, y))
        y, z, v = lax.fori_loop(0, steps, descend, begin)

        f_x, _ = problem.outer_gradients(x, y, xi)
        above, _ = problem.inner_gradients(x, y, sample.batch(steps))
        below, _ = problem.inner_gradients(x, z, sample.batch(steps + other))
        w = tree.add_scale(f_x, penalty, tree.add_scale(above, -1.0, below))
        x = tree.add_scale(x, -outer_step, w)

        calls = Calls(outer_gradient=steps + 1, inner_gradient=2 * steps + 2)
        state = PenaltyState(state.step + 1, Levels(x, y), z if self.tracked else None)
        return state, info_of(calls, jnp.ones(()), w, v)

"""One step of a method: the contract of all, and the single-loop method that most of them fill."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array, Bool, Int, PyTree

from . import errors, schedules, tree
from .estimators import AbstractEstimator
from .hypergradients import AbstractHypergradient, AbstractImplicit, Field
from .metrics import AbstractMetric, Identity
from .problem import Calls, Levels, Problem, Sample
from .proximal import AbstractProximal
from .schedules import AbstractRates, Number
from .sets import Free


class State(NamedTuple):
    """What the next step of a single-loop method needs."""

    step: Int[Array, ""]  # t
    point: Levels  # x_t, y_t (and s_t)
    direction: Levels  # w_t, v_t
    memory: Levels  # what the metrics remember; A_t and B_t are read from it


class Info(NamedTuple):
    """What a plot of one step needs."""

    calls: Calls  # oracle calls of this step
    eta: Array  # eta_t
    outer_norm: Array  # |w|
    inner_norm: Array  # |v|
    residual: Array  # |H s - f_y| / |f_y|, NaN where the method does not know it


class Move(NamedTuple):
    """What decides the step of one level, in the order that `proximal_step` takes it."""

    point: PyTree
    direction: PyTree
    matrix: PyTree
    step_size: Array
    home: AbstractProximal


Draw = Callable[[Any], Sample]  # of the number of a sample
LOOKS = 100  # states, or samples, that tell whether the inner set holds y back


class AbstractSolver(eqx.Module):
    """A method: two pure functions, whose state has a ``step`` and a ``point``."""

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many inner minibatches the sample of one step must hold."""

    @abc.abstractmethod
    def init(self, problem: Problem, x: PyTree, y: PyTree, sample: Sample) -> tuple[Any, Info]:
        """The state at the start, after a first look."""

    @abc.abstractmethod
    def step(self, problem: Problem, state: Any, sample: Sample) -> tuple[Any, Info]:
        """The next state. Equal states and samples give equal results."""

    def remarks(self, problem: Problem, state: Any) -> list[str]:
        """What a user should know about a run that reached this state, a sentence each."""
        return []

    def clips(self, problem: Problem, state: Any, sample: Draw) -> Bool[Array, ""]:
        """Whether a step of y from here is held back by ``inner_set``, as by a border at y*(x).

        There the implicit formula is not the gradient of F. Methods that do not use it, or can't
        tell, answer no. Those that keep no direction of y look at samples, `LOOKS` of them.
        """
        return jnp.array(False)


class SingleLoop(AbstractSolver):
    r"""Descend in the metric, then look again: every level moves from the same point.

    .. math::
        \tilde z &= \operatorname{argmin}_{u \in Z} \langle d_t, u \rangle
            + \tfrac{1}{2\gamma} \|u - z_t\|_{A_t}^2, \qquad
        z_{t+1} = z_t + \eta_t (\tilde z - z_t) \qquad \text{for each level } z = x, y (, s) \\
        d_{t+1} &= \text{the estimator at } (x_{t+1}, y_{t+1}) \text{ with fresh samples}

    Numbers are leaves, so that changing one never recompiles and a grid of them is a vmap.
    """

    step_size: tuple[Number, Number]  # gamma, lambda
    hypergradient: AbstractHypergradient
    estimator: AbstractEstimator
    outer_metric: AbstractMetric  # A_t
    inner_metric: AbstractMetric  # B_t
    mixing: Number  # t -> eta_t
    rates: AbstractRates  # eta_t -> beta_{t+1}, alpha_{t+1}

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("mixing", self.mixing)
        errors.part("hypergradient", self.hypergradient, AbstractHypergradient, "hypergradients")
        errors.part("estimator", self.estimator, AbstractEstimator, "estimators")
        errors.part("outer_metric", self.outer_metric, AbstractMetric, "metrics")
        errors.part("inner_metric", self.inner_metric, AbstractMetric, "metrics")
        errors.part("rates", self.rates, AbstractRates, "schedules")

    @property
    def batches(self) -> int:
        """Those of the hypergradient."""
        return self.hypergradient.batches

    def init(self, problem: Problem, x: PyTree, y: PyTree, sample: Sample) -> tuple[State, Info]:
        """w_1 and v_1 are the fresh field at the start."""
        point = self.hypergradient.lift(x, y)
        fresh = self.hypergradient(problem, point, sample)
        if fresh.value.s is None:
            refuse_system("a single loop", self.hypergradient, x, y)
        memory = tree.each(lambda m, h: m.init(h), self._metrics(point), fresh.value)
        state = State(
            jnp.ones((), jnp.int32), point, fresh.value, self._learn(memory, fresh, fresh.value)
        )
        return state, self._info(state, fresh, fresh.calls, self._eta(state.step))

    def step(self, problem: Problem, state: State, sample: Sample) -> tuple[State, Info]:
        """Lines 4 to 9 of Algorithms 1 and 2."""
        eta = self._eta(state.step)
        point = self._descend(problem, state, eta)
        direction, fresh, calls = self.estimator(
            lambda z: self.hypergradient(problem, z, sample),
            point,
            state.point,
            state.direction,
            self.rates(eta),
        )
        memory = self._learn(state.memory, fresh, direction)
        state = State(state.step + 1, point, direction, memory)
        return state, self._info(state, fresh, calls, eta)

    def remarks(self, problem: Problem, state: State) -> list[str]:
        """Say when an adaptive matrix has had nothing to adapt to."""
        names = Levels("outer_metric", "inner_metric", None)
        metrics = self._metrics(state.point)
        return [
            f"the driving signal of `{name}` has been exactly zero so far, so its matrix is a "
            f"multiple of the identity and adapts to nothing; drive it by the hypergradient, "
            f"signal=biadam.metrics.fresh."
            for name, metric, memory in zip(names, metrics, state.memory, strict=True)
            if name is not None and bool(metric.idle(memory))
        ]

    def clips(self, problem: Problem, state: State, sample: Draw) -> Bool[Array, ""]:
        """Look at the step of y that would come next."""
        return held_back(self.moves(problem, state).y)

    def moves(self, problem: Problem, state: State) -> Levels:
        """The `Move` of each level that the next step will make."""
        outer, inner = self.step_size
        system, domain = self.hypergradient.system
        sizes = Levels(*(schedules.at(s, state.step) for s in (outer, inner, system)))
        homes = Levels(problem.outer_set, problem.inner_set, domain)
        metrics = self._metrics(state.point)
        read = lambda z, metric, memory: metric.matrix(memory, z)
        matrices = tree.each(read, state.point, metrics, state.memory)
        return tree.each(Move, state.point, state.direction, matrices, sizes, homes)

    def _info(self, state: State, fresh: Field, calls: Calls, eta: Array) -> Info:
        return info_of(calls, eta, state.direction.x, state.direction.y, fresh.residual)

    def _eta(self, step: Array) -> Array:
        eta = schedules.at(self.mixing, step)
        return jnp.minimum(eta, jnp.ones((), eta.dtype))

    def _metrics(self, point: Levels) -> Levels:
        system = None if point.s is None else Identity()
        return Levels(self.outer_metric, self.inner_metric, system)

    def _descend(self, problem: Problem, state: State, eta: Array) -> Levels:
        step = lambda move, z: tree.mix(eta, proximal_step(*move), z)
        return tree.each(step, self.moves(problem, state), state.point)

    def _learn(self, memory: Levels, fresh: Field, direction: Levels) -> Levels:
        partial = Levels(fresh.partial, fresh.value.y, fresh.value.s)
        update = lambda h, metric, m, d, p: metric.update(m, h, d, p)
        metrics = self._metrics(fresh.value)
        return tree.each(update, fresh.value, metrics, memory, direction, partial)


def proximal_step(
    z: PyTree, direction: PyTree, matrix: PyTree, step_size: Any, home: AbstractProximal
) -> PyTree:
    r""":math:`\operatorname{argmin}_u \langle d, u \rangle + \tfrac{1}{2\gamma} \|u - z\|_A^2`
    over the set, or with the proximal term added.
    """
    weight = jax.tree.map(lambda a: a / jnp.asarray(step_size, a.dtype), matrix)
    return home.prox(_free_step(z, direction, matrix, step_size), weight)


def held_back(move: Move) -> Bool[Array, ""]:
    """Whether the set or term takes away more than a tenth of the free step.

    At a border that holds the limit it takes all of it; at a limit inside nothing. What lies
    between is a run on its way, or noise near a border.
    """
    free = _free_step(*move[:4])
    size = lambda one, other: optax.tree.norm(tree.add_scale(one, -1.0, other))
    taken, step = size(proximal_step(*move), free), size(free, move.point)
    round_off = 100 * float(jnp.finfo(taken.dtype).eps) * optax.tree.norm(move.point)
    return (taken > HELD_BACK * step) & (taken > round_off)


HELD_BACK = 0.1


def _free_step(z: PyTree, direction: PyTree, matrix: PyTree, step_size: Any) -> PyTree:
    def descend(z: Array, d: Array, a: Array) -> Array:
        return z - jnp.asarray(step_size, z.dtype) * d / a

    return jax.tree.map(descend, z, direction, matrix)


def refuse_sets(problem: Problem, name: str, *, outer: bool = True, inner: bool = True) -> None:
    """Refuse the constraints that a method has no step for."""
    for refused, home, what in (
        (outer, problem.outer_set, "outer_set"),
        (inner, problem.inner_set, "inner_set"),
    ):
        if refused and not isinstance(home, Free):
            raise errors.Mistake(
                f"`{name}` takes no `{what}`, but the problem has {type(home).__name__}; "
                f"choose a method that does, such as biadam."
            )


def check_implicit(hypergradient: Any) -> None:
    """Refuse what does not solve a linear system at a point that the method gives it."""
    errors.part("hypergradient", hypergradient, AbstractHypergradient, "hypergradients")
    if not isinstance(hypergradient, AbstractImplicit):
        raise errors.Mistake(
            f"`hypergradient` must solve the linear system at the point that it is given, but it "
            f"is {type(hypergradient).__name__}; take for example NeumannSum or ConjugateGradient."
        )


def refuse_system(name: str, hypergradient: AbstractHypergradient, x: PyTree, y: PyTree) -> None:
    """Refuse a hypergradient whose linear system this method would not carry on."""
    if hypergradient.lift(x, y).s is not None:
        raise errors.Mistake(
            f"`hypergradient` must be one whose linear system {name} can carry from step to step, "
            f"but it is {type(hypergradient).__name__}; take for example NeumannSum, or a method "
            f"that tracks the system, such as biadam_tracked or amigo."
        )


def info_of(calls: Calls, eta: Array, w: PyTree, v: PyTree, residual: Any = float("nan")) -> Info:
    """An `Info` with its counts as integers and the directions as norms."""
    return Info(
        Calls(*(jnp.asarray(n, jnp.int32) for n in calls)),
        eta,
        optax.tree.norm(w),
        optax.tree.norm(v),
        jnp.asarray(residual, jnp.float32),
    )

"""The method of two loops: some inner steps from the last y, then one outer step at the new one."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from . import errors, schedules, tree
from .hypergradients import AbstractImplicit
from .metrics import AbstractMetric, Identity
from .problem import Calls, Levels, Problem, Sample
from .schedules import Number
from .solver import AbstractSolver, Info, info_of, proximal_step


class DoubleState(NamedTuple):
    """What the next step of a double-loop method needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k
    direction: PyTree  # w, the average of the hypergradients so far
    memory: tuple[PyTree, PyTree]  # what the metrics remember, outer and inner


class DoubleLoop(AbstractSolver):
    r"""``D`` inner steps, then the hypergradient at the *new* y, then an outer step.

    .. math::
        y^0 = y_k, \quad y^{j+1} = \operatorname{prox}_Y(y^j - \lambda_k B^{-1} g_y(x_k, y^j; \zeta_j)),
        \quad y_{k+1} = y^D, \\
        w_k = r\, h(x_k, y_{k+1}) + (1 - r) w_{k-1}, \quad
        x_{k+1} = \operatorname{prox}_X(x_k - \gamma_k A^{-1} w_k).

    With D = 1 this is the alternating single-loop scheme. The sample holds D inner minibatches for
    the steps, then those of the hypergradient.
    """

    step_size: tuple[Number, Number]  # gamma_k, lambda_k
    hypergradient: AbstractImplicit
    inner_steps: int = eqx.field(static=True, default=1)  # D
    rate: Number = 1.0  # r, the weight of the fresh hypergradient; 1 is plain descent
    outer_metric: AbstractMetric = Identity()
    inner_metric: AbstractMetric = Identity()

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        errors.count("inner_steps", self.inner_steps)

    @property
    def batches(self) -> int:
        """One for each inner step, and those of the hypergradient but its own for g_y."""
        return self.inner_steps + self.hypergradient.batches - 1

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[DoubleState, Info]:
        """Nothing is looked at before the first inner step."""
        zero = jax.tree.map(jnp.zeros_like, x)
        memory = (self.outer_metric.init(x), self.inner_metric.init(y))
        state = DoubleState(jnp.ones((), jnp.int32), Levels(x, y), zero, memory)
        return state, info_of(Calls(), jnp.ones(()), zero, jax.tree.map(jnp.zeros_like, y))

    def step(
        self, problem: Problem, state: DoubleState, sample: Sample
    ) -> tuple[DoubleState, Info]:
        """One pass through both loops."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        x, y, _ = state.point
        outer_memory, inner_memory = state.memory

        def descend(j: Array, carry: tuple[PyTree, PyTree, PyTree]) -> tuple[PyTree, ...]:
            y, memory, _ = carry
            q = problem.inner_gradient(x, y, sample.batch(j))
            memory = self.inner_metric.update(memory, q, q, q)
            matrix = self.inner_metric.matrix(memory, y)
            return proximal_step(y, q, matrix, inner_step, problem.inner_set), memory, q

        start = (y, inner_memory, jax.tree.map(jnp.zeros_like, y))
        y, inner_memory, q = lax.fori_loop(0, self.inner_steps, descend, start)

        # The hypergradient's own minibatches follow; its first, for g_y, it does not look at here.
        rest = jax.tree.map(lambda a: a[self.inner_steps - 1 :], sample.inner)
        look = self.hypergradient.implicit(problem, Levels(x, y), sample._replace(inner=rest))
        one = jnp.ones(())
        rate = jnp.where(
            state.step == 1, one, jnp.minimum(one, schedules.at(self.rate, state.step))
        )
        w = tree.mix(rate, look.w, state.direction)
        outer_memory = self.outer_metric.update(outer_memory, look.w, w, look.partial)
        matrix = self.outer_metric.matrix(outer_memory, x)
        x = proximal_step(x, w, matrix, outer_step, problem.outer_set)

        calls = look.calls.plus(Calls(inner_gradient=self.inner_steps))
        state = DoubleState(state.step + 1, Levels(x, y), w, (outer_memory, inner_memory))
        return state, info_of(calls, one, w, q, look.residual)

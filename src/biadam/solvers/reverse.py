r"""Reverse-mode hypergradients through the inner loop (ITD).

From the last y, T inner steps on the minibatches :math:`\zeta_0 \ldots \zeta_{T-1}`, and back:

.. math::
    y^0 &= y_k, & y^{t+1} &= y^t - \lambda\, g_y(x_k, y^t; \zeta_t), & y_{k+1} &= y^T, \\
    a &= f_y(x_k, y^T), & w &= f_x(x_k, y^T), && \\
    w &\leftarrow w - \lambda J(x_k, y^t; \zeta_t)\, a, &
    a &\leftarrow a - \lambda H(x_k, y^t; \zeta_t)\, a, & t &= T - 1, \ldots, T - K, \\
    x_{k+1} &= P_X(x_k - \gamma w). &&&&

K = T differentiates the whole loop, K < T only its end (truncated back-propagation). At a fixed
point of the inner loop, w is the hypergradient with K terms of the Neumann series of step
:math:`\lambda`, so what it converges to is off by :math:`H^{-1} (I - \lambda H)^K`.

Deterministic theory, for :math:`\|\nabla F\|^2 \le \epsilon`: :math:`O(\kappa^3 / \epsilon)`
gradients of f and :math:`O(\kappa^4 / \epsilon)` of g, JVPs and HVPs, with constant steps and T of
order :math:`\kappa \log(\kappa / \epsilon)`.

Reference: L. Franceschi, P. Frasconi, S. Salzo, R. Grazzi, M. Pontil, Bilevel Programming for
Hyperparameter Optimization and Meta-Learning, 2018, arXiv:1806.04910.

Departures:
    * The inner loop starts from the last y, which counts as independent of x; a fixed start would
      need more steps for the same accuracy.
    * The minibatch of an inner step serves its pull-back too; f_x and f_y share one outer
      minibatch.
    * The inner steps are not projected: the pull-back is that of plain descent.
    * No default of a step size is the paper's, whose steps belong to its experiments.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import schedules
from ..hypergradients import Unrolled
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, proximal_step, refuse_sets
from .about import About, method


class ReverseState(NamedTuple):
    """What the next step needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k
    start: PyTree = None  # where every inner loop begins, if not at the last y


class Reverse(AbstractSolver):
    """Unroll the inner loop, differentiate through it, step."""

    step_size: tuple[Number, Number]  # gamma, lambda
    inner_steps: int = eqx.field(static=True)  # T
    truncation: int | None = eqx.field(static=True)  # K, or None for T
    warm_start: bool = eqx.field(static=True)  # begin at the last y, or always at the user's

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        self._path()

    def _path(self) -> Unrolled:
        """The unrolled loop, still without its step size."""
        return Unrolled(self.inner_steps, truncation=self.truncation)

    @property
    def batches(self) -> int:
        """Those of the unrolled loop."""
        return self._path().batches

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[ReverseState, Info]:
        """Nothing is looked at before the first inner step."""
        refuse_sets(problem, "reverse", outer=False)
        zero = jax.tree.map(jnp.zeros_like, (x, y))
        start = None if self.warm_start else y
        state = ReverseState(jnp.ones((), jnp.int32), Levels(x, y), start)
        return state, info_of(Calls(), jnp.ones(()), *zero)

    def step(
        self, problem: Problem, state: ReverseState, sample: Sample
    ) -> tuple[ReverseState, Info]:
        """Forward, backward, and a step."""
        gamma, rate = (schedules.at(s, state.step) for s in self.step_size)
        x, y = state.point.x, state.point.y if self.warm_start else state.start
        path = eqx.tree_at(lambda path: path.step_size, self._path(), rate)
        view = problem.view(x, sample)
        end = path.unroll(view.problem, view.x, y, view.sample)
        w = view.pull(end.w)
        ones = jax.tree.map(lambda a: jnp.ones((), a.dtype), x)
        x = proximal_step(x, w, ones, gamma, problem.outer_set)
        # The inner level has no direction of its own: its displacement is what a plot can show.
        moved = jax.tree.map(jnp.subtract, y, end.y)
        state = ReverseState(state.step + 1, Levels(x, end.y), state.start)
        return state, info_of(end.calls, jnp.ones(()), w, moved)


@method(
    About(
        "Franceschi, Frasconi, Salzo, Grazzi, Pontil, reverse",
        2018,
        "1806.04910",
        "double",
        "det. eps^-2",
        (True, False),
    )
)
def reverse(
    step_size: tuple[Number, Number] = (0.02, 0.5),
    *,
    inner_steps: int = 10,
    truncation: int | None = None,
    warm_start: bool = True,
) -> Reverse:
    r"""Build reverse-mode differentiation.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: T.
        truncation: K, the last inner steps to differentiate through; all of them if None.
        warm_start: begin the inner steps at the last y; otherwise always at the user's y.
    """
    return Reverse(step_size, inner_steps, truncation, warm_start)

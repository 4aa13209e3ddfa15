r"""SVRB: STORM on every derivative that the hypergradient is made of.

Five estimates e, of :math:`g_y, f_x, f_y, J` and :math:`H`, follow

.. math:: e_t = G(z_t; \xi_t, \zeta_t) + (1 - a_t) (e_{t-1} - G(z_{t-1}; \xi_t, \zeta_t)),

where z = (x, y), and then, with :math:`v, u_x, u_y, \hat J, \hat H` in this order,

.. math::
    w_t &= u_x - \hat J (P_{\mu I \preceq \cdot \preceq L I} \hat H)^{-1} u_y, \\
    x_{t+1} &= x_t - \gamma_t w_t, \qquad y_{t+1} = y_t - \lambda_t v_t.

Needs :math:`\tilde O(\epsilon^{-3})` samples with steps of the order :math:`t^{-1/3}` and a of
:math:`t^{-2/3}`, and :math:`O(p^3)` operations a step.

Reference: Z. Guo, T. Yang, Randomized Stochastic Variance-Reduced Methods for (Multi-Task)
Stochastic Bilevel Optimization, 2021, arXiv:2105.02266.

Departures:
    * The case of one task. One weight a serves all estimates.
    * H is projected where it is inverted and not in its recursion, which would lose the
      cancellation of the two samples' noise; J and u_y are not clipped.
    * ``convexity`` and ``smoothness`` are constants of the problem, for which the defaults are
      guesses. A mu above the least eigenvalue of H, or an L below the largest, biases the
      hypergradient for good; where they are far on the safe side, noise is not cut. Give mu what
      the inner loss has by construction, 2 C for a penalty :math:`C \|y\|^2` as in hyper-cleaning,
      and L the largest curvature, or a large number for none.
    * The slots are fixed: STORM stands on the parts of the hypergradient and not on itself, so that
      there is no estimate of it to exchange. There is no metric and no set either; as a geometry
      for variance-reduced descent take `mrbo`, whose cost does not grow with :math:`p^3`.
    * It refuses matrices of more numbers than ``most``.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import dense, errors, schedules, tree
from ..dense import Matrices
from ..estimators import Storm
from ..hypergradients import Field
from ..hypergradients.base import UNKNOWN
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number, PowerDecay
from ..solver import AbstractSolver, Info, info_of, refuse_sets
from .about import About, method


class Parts(NamedTuple):
    """What the hypergradient is made of."""

    f_x: PyTree
    f_y: PyTree
    second: Matrices


class SvrbState(NamedTuple):
    """What the next step of SVRB needs."""

    step: Int[Array, ""]  # t
    point: Levels  # x_t, y_t
    previous: Levels  # x_{t-1}, y_{t-1}
    estimates: Levels  # Parts at the level x, v at the level y


class Svrb(AbstractSolver):
    """The method, on one minibatch of either loss."""

    step_size: tuple[Number, Number]
    rate: Number
    convexity: float
    smoothness: float
    most: int = eqx.field(static=True)
    batches = 1

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        errors.number("convexity", self.convexity, above=0)
        errors.number("smoothness", self.smoothness, above=0)
        errors.count("most", self.most)

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[SvrbState, Info]:
        """Nothing is looked at yet."""
        refuse_sets(problem, "svrb")
        dense.refuse_size("svrb", x, y, self.most)
        point, zero = Levels(x, y), jax.tree.map(jnp.zeros_like, (x, y))
        nothing = Levels(Parts(zero[0], zero[1], dense.zeros(x, y)), zero[1])
        state = SvrbState(jnp.ones((), jnp.int32), point, point, nothing)
        return state, info_of(Calls(), jnp.ones(()), *zero)

    def step(self, problem: Problem, state: SvrbState, sample: Sample) -> tuple[SvrbState, Info]:
        """The estimates, then both steps from one point."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        (x, y, _), one, batch = state.point, jnp.ones(()), sample.batch(0)

        def field(z: Levels) -> Field:
            f_x, f_y = problem.outer_gradients(z.x, z.y, sample.outer)
            second, calls = dense.matrices(problem, z, batch)
            q = problem.inner_gradient(z.x, z.y, batch)
            value = Levels(Parts(f_x, f_y, second), q)
            return Field(value, f_x, jnp.asarray(UNKNOWN), calls.plus(Calls(1, 1)))

        rate = jnp.minimum(one, schedules.at(self.rate, state.step))
        rate = jnp.where(state.step == 1, one, rate)
        estimates, _, calls = Storm()(
            field, state.point, state.previous, state.estimates, Levels(rate, rate)
        )
        (u_x, u_y, second), v, _ = estimates
        hessian = dense.between(second.hessian, self.convexity, self.smoothness)
        w = dense.hypergradient(Matrices(hessian, second.cross), u_x, u_y)
        new = Levels(tree.add_scale(x, -outer_step, w), tree.add_scale(y, -inner_step, v))
        return SvrbState(state.step + 1, new, state.point, estimates), info_of(calls, one, w, v)


@method(
    About("Guo, Yang, SVRB", 2021, "2105.02266", "single", "O~(eps^-3)", (False, False), dense=True)
)
def svrb(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.2, offset=300.0, power=1 / 3),
        PowerDecay(scale=1.0, offset=300.0, power=1 / 3),
    ),
    *,
    rate: Number = PowerDecay(scale=5.0, offset=300.0, power=2 / 3),
    convexity: float = 1e-2,
    smoothness: float = 10.0,
    most: int = dense.MOST,
) -> Svrb:
    r"""Build SVRB.

    Args:
        step_size: :math:`(\gamma_t, \lambda_t)`, numbers or schedules.
        rate: :math:`a_t`, the weight of the fresh derivatives.
        convexity: :math:`\mu`, the least eigenvalue of H.
        smoothness: :math:`L`, the largest.
        most: how many numbers the matrices may hold.
    """
    return Svrb(step_size, rate, convexity, smoothness, most)

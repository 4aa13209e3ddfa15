r"""STABLE: tracked second derivatives, and an inner step that corrects the drift of y*(x).

.. math::
    \hat J_k &= P_{\|\cdot\| \le C} (J(z_k; \phi_k)
        + (1 - \tau_k) (\hat J_{k-1} - J(z_{k-1}; \phi_k))), \\
    \hat H_k &= P_{\succeq \mu I} (H(z_k; \phi_k)
        + (1 - \tau_k) (\hat H_{k-1} - H(z_{k-1}; \phi_k))), \\
    x_{k+1} &= P_X(x_k - \alpha_k (f_x(z_k; \xi_k) - \hat J_k \hat H_k^{-1} f_y(z_k; \xi_k))), \\
    y_{k+1} &= y_k - \beta_k g_y(z_k; \zeta_k) - \hat H_k^{-1} \hat J_k' (x_{k+1} - x_k),

where z = (x, y). The last term is the change of y*(x) to first order. With alpha, beta and tau of
the order :math:`K^{-1/2}` it needs :math:`O(\epsilon^{-4})` samples, and :math:`O(p^3)` operations
a step.

Reference: T. Chen, Y. Sun, Q. Xiao, W. Yin, A Single-Timescale Method for Stochastic Bilevel
Optimization, 2022, arXiv:2102.04671.

Departures:
    * The first estimates are the matrices of the first sample; they are projected like the others,
      since the first step inverts them.
    * ``convexity`` and ``cross_bound`` are constants of the problem, for which the defaults are
      guesses. A mu above the least eigenvalue of H, or a C below the norm of J, biases the
      hypergradient for good; where they are far on the safe side, noise is not cut. Give mu what
      the inner loss has by construction, 2 C for a penalty :math:`C \|y\|^2` as in hyper-cleaning,
      and C a bound of the mixed derivatives, or a large number for none.
    * The slots are fixed: the correction of y takes the tracked matrices themselves, whatever they
      are tracked by, and moves y outside of any metric of its own.
    * It refuses matrices of more numbers than ``most``.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, PyTree

from .. import dense, errors, schedules, tree
from ..dense import Matrices
from ..estimators import Storm
from ..hypergradients import Field
from ..hypergradients.base import UNKNOWN
from ..metrics import Identity
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number, PowerDecay
from ..solver import AbstractSolver, Info, info_of, proximal_step, refuse_sets
from .about import About, method


class StableState(NamedTuple):
    """What the next step of STABLE needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k
    previous: Levels  # where the matrices were last seen
    matrices: Matrices  # the projected estimates


class Stable(AbstractSolver):
    """The method; the sample's inner minibatches are zeta and phi."""

    step_size: tuple[Number, Number]
    rate: Number
    cross_bound: float
    convexity: float
    most: int = eqx.field(static=True)
    batches = 2

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        schedules.check_number("rate", self.rate)
        errors.number("cross_bound", self.cross_bound, above=0)
        errors.number("convexity", self.convexity, above=0)
        errors.count("most", self.most)

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[StableState, Info]:
        """Nothing is looked at yet."""
        refuse_sets(problem, "stable", outer=False)
        dense.refuse_size("stable", x, y, self.most)
        point = Levels(x, y)
        state = StableState(jnp.ones((), jnp.int32), point, point, dense.zeros(x, y))
        zero = jax.tree.map(jnp.zeros_like, (x, y))
        return state, info_of(Calls(), jnp.ones(()), *zero)

    def step(
        self, problem: Problem, state: StableState, sample: Sample
    ) -> tuple[StableState, Info]:
        """Matrices, outer step, corrected inner step."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        (x, y, _), one = state.point, jnp.ones(())

        def field(z: Levels) -> Field:
            seen, calls = dense.matrices(problem, z, sample.batch(1))
            return Field(Levels(seen, None), None, jnp.asarray(UNKNOWN), calls)

        rate = jnp.minimum(one, schedules.at(self.rate, state.step))
        rate = jnp.where(state.step == 1, one, rate)
        (raw, _, _), _, calls = Storm()(
            field, state.point, state.previous, Levels(state.matrices, None), Levels(rate, None)
        )
        hessian = dense.between(raw.hessian, self.convexity)
        cross = dense.at_most(raw.cross, self.cross_bound)

        f_x, f_y = problem.outer_gradients(x, y, sample.outer)
        w = dense.hypergradient(Matrices(hessian, cross), f_x, f_y)
        new = proximal_step(x, w, Identity().matrix(None, x), outer_step, problem.outer_set)
        q = problem.inner_gradient(x, y, sample.batch(0))
        moved = ravel_pytree(tree.add_scale(new, -1.0, x))[0].astype(hessian.dtype)
        drift = ravel_pytree(y)[1](dense.solve(hessian, cross.T @ moved))
        y = tree.add_scale(tree.add_scale(y, -inner_step, q), -1.0, drift)

        state = StableState(state.step + 1, Levels(new, y), state.point, Matrices(hessian, cross))
        return state, info_of(calls.plus(Calls(1, 1)), one, w, q)


@method(
    About(
        "Chen, Sun, Xiao, Yin, STABLE",
        2022,
        "2102.04671",
        "single",
        "O(eps^-4)",
        (True, False),
        True,
    )
)
def stable(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.2, offset=100.0, power=1 / 2),
        PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    ),
    *,
    rate: Number = 0.5,
    cross_bound: float = 10.0,
    convexity: float = 1e-2,
    most: int = dense.MOST,
) -> Stable:
    r"""Build STABLE.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`, numbers or schedules.
        rate: :math:`\tau_k`, the weight of the fresh matrices.
        cross_bound: C, the largest spectral norm of J.
        convexity: :math:`\mu`, the least eigenvalue of H.
        most: how many numbers the matrices may hold.
    """
    return Stable(step_size, rate, cross_bound, convexity, most)

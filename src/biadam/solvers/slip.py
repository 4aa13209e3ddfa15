r"""SLIP: MA-SOBA with outer steps of a given length, after a warm start of the inner level.

.. math::
    w_t &= \theta (f_x(x_t, y_t; \xi_t) - J(x_t, y_t; \zeta_t) s_t) + (1 - \theta) w_{t-1}, \\
    x_{t+1} &= x_t + \eta_t (P_X(x_t - \gamma_t w_t / (\|w_t\| + \epsilon)) - x_t), \\
    y_{t+1} &= y_t + \eta_t (P_Y(y_t - \lambda g_y(x_t, y_t; \zeta_t)) - y_t), \\
    s_{t+1} &= s_t - \rho \eta_t (H(x_t, y_t; \zeta_t) s_t - f_y(x_t, y_t; \xi_t)),

with :math:`\eta_t = 1` by default, while x stands still for the first steps. The length of a step
is bounded however large the gradient is, which is what an outer loss of unbounded smoothness asks
for. Needs :math:`\tilde O(\epsilon^{-4})` samples.

Reference: X. Gong, J. Hao, M. Liu, A Nearly Optimal Single Loop Algorithm for Stochastic Bilevel
Optimization under Unbounded Smoothness, 2024, arXiv:2412.20017.

Departures:
    * The normalisation is a metric, A = (|w| + epsilon) I, and so combines with sets: the step is
      proximal.
    * The warm start is made of ordinary steps with a negligible outer one (`After`), so that it
      draws fresh minibatches; it moves s too, and w goes on averaging.
    * The paper has neither sets nor eta.
    * As in `ma_soba`, all derivatives are taken at the same point.
    * The theory has a constant gamma of the order of epsilon; here it decreases as
      :math:`t^{-1/2}`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import errors, schedules
from ..estimators import AbstractEstimator, MovingAverage
from ..hypergradients import AbstractHypergradient, LinearSystem
from ..metrics import AbstractMetric, Identity, Norm, momentum
from ..schedules import AbstractRates, Constant, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method


class After(eqx.Module):
    """A step size from step number ``start`` + 1 on, and a billionth of it before.

    Not zero, which would leave nothing of the metric in a proximal step.
    """

    value: Number
    start: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        schedules.check_number("After.value", self.value)
        errors.count("After.start", self.start, least=0)

    def __call__(self, step: Array) -> Array:
        """The value at step t, counted from 1."""
        value = schedules.at(self.value, jnp.maximum(step - self.start, 1))
        return jnp.where(step > self.start, value, 1e-9 * value)


@method(About("Gong, Hao, Liu, SLIP", 2024, "2412.20017", "single", "O~(eps^-4)", (True, True)))
def slip(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.3, offset=100.0, power=1 / 2),
        0.5,
    ),
    *,
    warm_steps: int = 5,
    hypergradient: AbstractHypergradient = LinearSystem(step_size=0.5),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Norm(decay=0.0, floor=1e-8, signal=momentum),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = 1.0,
    rates: AbstractRates = Constant(outer=0.1),
) -> SingleLoop:
    r"""Build SLIP; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`; gamma is the length of the outer step, a schedule of
            it begins after the warm start.
        warm_steps: how many steps of the inner levels come before the first outer one.
        hypergradient: the tracked system; its step size is rho.
        estimator: how the directions follow the field.
        outer_metric: the norm of w, whose floor is epsilon.
        inner_metric: the geometry of y.
        mixing: a common factor of all steps, of at most 1.
        rates: weights of the fresh field; the outer one is theta.
    """
    outer, inner = schedules.check_pair("step_size", step_size)
    return SingleLoop(
        (After(outer, warm_steps), inner),
        hypergradient,
        estimator,
        outer_metric,
        inner_metric,
        mixing,
        rates,
    )

r"""MA-SOBA: SOBA with a moving average of the hypergradient.

.. math::
    w_t &= \theta (f_x(x_t, y_t; \xi_t) - J(x_t, y_t; \zeta_t) s_t) + (1 - \theta) w_{t-1}, \\
    x_{t+1} &= x_t + \eta_t (P_X(x_t - \gamma w_t) - x_t), \\
    y_{t+1} &= y_t + \eta_t (P_Y(y_t - \lambda g_y(x_t, y_t; \zeta_t)) - y_t), \\
    s_{t+1} &= s_t - \rho \eta_t (H(x_t, y_t; \zeta_t) s_t - f_y(x_t, y_t; \xi_t)).

With theta and all steps of the order :math:`T^{-1/2}` it needs :math:`O(\epsilon^{-4})` samples
under plain smoothness of the losses.

Reference: X. Chen, T. Xiao, K. Balasubramanian, Optimal Algorithms for Stochastic Bilevel
Optimization under Relaxed Smoothness Conditions, 2023, arXiv:2306.12067.

Departures:
    * All derivatives are taken at the same point, so that the inner ones share a backward pass;
      code in public moves y, s and x in turn. x follows the average that includes the newest
      hypergradient.
    * The constrained step could not be compared with the paper; the one above is the projection of
      a full step followed by a convex combination, which keeps x feasible.
    * :math:`P_Y` is not the paper's; without a set y takes the plain step.
    * The average begins with the first hypergradient instead of zero.
"""

from ..estimators import AbstractEstimator, MovingAverage
from ..hypergradients import AbstractHypergradient, LinearSystem
from ..metrics import AbstractMetric, Identity
from ..schedules import AbstractRates, Constant, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method


@method(
    About(
        "Chen, Xiao, Balasubramanian, MA-SOBA", 2023, "2306.12067", "single", "O(eps^-4)",
        (True, True),
    )
)  # fmt: skip
def ma_soba(
    step_size: tuple[Number, Number] = (0.005, 0.5),
    *,
    hypergradient: AbstractHypergradient = LinearSystem(step_size=0.5),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = PowerDecay(scale=30.0, offset=900.0, power=1 / 2),
    rates: AbstractRates = Constant(outer=0.1),
) -> SingleLoop:
    r"""Build MA-SOBA; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`, before the factor eta.
        hypergradient: the tracked system; its step size is rho.
        estimator: how the directions follow the field.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: :math:`\eta_t`, the common factor of all steps.
        rates: weights of the fresh field; the outer one is theta.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

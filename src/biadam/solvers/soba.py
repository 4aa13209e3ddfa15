r"""SOBA: plain descent of x, y and a tracked linear system, all at once.

.. math::
    y_{t+1} &= y_t + \eta_t (P_Y(y_t - \lambda g_y(x_t, y_t; \zeta_t)) - y_t), \\
    s_{t+1} &= s_t - \rho \eta_t (H(x_t, y_t; \zeta_t) s_t - f_y(x_t, y_t; \xi_t)), \\
    x_{t+1} &= x_t + \eta_t (P_X(x_t
        - \gamma (f_x(x_t, y_t; \xi_t) - J(x_t, y_t; \zeta_t) s_t)) - x_t),

on one pair of minibatches, from one backward pass for the inner loss. The theory has steps
:math:`\lambda \eta_t = \rho \eta_t \sim t^{-2/5}`, :math:`\gamma \eta_t \sim t^{-3/5}` and
:math:`E \|\nabla F\|^2 = O(T^{-2/5})`; with smoother losses, or an average as in `ma_soba`, all
steps may go as :math:`t^{-1/2}` and :math:`O(\epsilon^{-4})` samples suffice.

Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that
enables stochastic and global variance reduction algorithms, 2022, arXiv:2201.13409.

Departures:
    * s has the other sign than in the paper, so that it solves H s = f_y.
    * One factor eta_t, which starts near 1 and ends as :math:`t^{-1/2}`, decreases all steps;
      schedules in ``step_size`` give x and y exponents of their own.
    * The theory has no sets. A projected step is mixed in by eta, which keeps the point feasible;
      without sets the steps are the paper's, of sizes gamma eta and lambda eta.
"""

from ..estimators import AbstractEstimator, MovingAverage
from ..hypergradients import AbstractHypergradient, LinearSystem
from ..metrics import AbstractMetric, Identity
from ..schedules import AbstractRates, Constant, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method


@method(
    About(
        "Dagréou, Ablin, Vaiter, Moreau, SOBA", 2022, "2201.13409", "single", "O(eps^-5)",
        (True, True),
    )
)  # fmt: skip
def soba(
    step_size: tuple[Number, Number] = (0.01, 0.5),
    *,
    hypergradient: AbstractHypergradient = LinearSystem(step_size=0.5),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = PowerDecay(scale=30.0, offset=900.0, power=1 / 2),
    rates: AbstractRates = Constant(),
) -> SingleLoop:
    r"""Build SOBA; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`, before the factor eta.
        hypergradient: the tracked system; its step size is rho, the paper's lambda as well.
        estimator: how the directions follow the field.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: :math:`\eta_t`, the common factor of all steps.
        rates: weights of the fresh field; 1 is plain descent.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

r"""MRBO: STORM on both levels with the whole Neumann sum, in a single loop.

.. math::
    w_t &= h(x_t, y_t; \bar\xi_t) + (1 - \alpha_t) (w_{t-1} - h(x_{t-1}, y_{t-1}; \bar\xi_t)),
        & x_{t+1} &= x_t - \gamma \eta_t w_t, \\
    v_t &= g_y(x_t, y_t; \zeta_t) + (1 - \beta_t) (v_{t-1} - g_y(x_{t-1}, y_{t-1}; \zeta_t)),
        & y_{t+1} &= y_t - \lambda \eta_t v_t,

with h the hypergradient of the truncated series, on the same minibatches at both points,
:math:`\eta_t = d / (m + t)^{1/3}`, :math:`\alpha_{t+1} = c_1 \eta_t^2` and
:math:`\beta_{t+1} = c_2 \eta_t^2`. Needs :math:`\tilde O(\epsilon^{-3})` samples.

Reference: J. Yang, K. Ji, Y. Liang, Provably Faster Algorithms for Bilevel Optimization, 2021,
arXiv:2106.04692.

Departures:
    * eta, alpha and beta are at most 1. Values in use elsewhere, d = 10 and m = 500 with c = 0.9,
      begin with an alpha of 1.4.
    * In this paper c1 belongs to the hypergradient and c2 to the inner gradient, the other way
      round than in VR-BiAdam.
    * The theory has no sets. The steps are proximal ones, which are the paper's without.
"""

from ..estimators import AbstractEstimator, Storm
from ..hypergradients import AbstractHypergradient, NeumannSum
from ..metrics import AbstractMetric, Identity
from ..schedules import AbstractRates, Coupled, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method


@method(About("Yang, Ji, Liang, MRBO", 2021, "2106.04692", "single", "O~(eps^-3)", (True, True)))
def mrbo(
    step_size: tuple[Number, Number] = (0.1, 0.5),
    *,
    hypergradient: AbstractHypergradient = NeumannSum(),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = PowerDecay(scale=4.0, offset=500.0, power=1 / 3),
    rates: AbstractRates = Coupled(outer=0.9, inner=0.9, power=2.0),
) -> SingleLoop:
    r"""Build MRBO; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`.
        hypergradient: h; its number of terms Q and step are the estimator's.
        estimator: how w and v follow the field.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: :math:`\eta_t`; (scale, offset) are the paper's (d, m).
        rates: :math:`(\alpha, \beta)`; (outer, inner) are the paper's (c1, c2).
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

r"""VR-BiAdam: BiAdam with STORM in place of the moving average.

Lines 4 to 7 are those of BiAdam; with the *fresh* sample at the new and at the old point,

.. math::
    v_{t+1} &= \nabla_y g(x_{t+1}, y_{t+1}; \zeta_{t+1})
        + (1 - \alpha_{t+1}) (v_t - \nabla_y g(x_t, y_t; \zeta_{t+1})), \\
    w_{t+1} &= h(x_{t+1}, y_{t+1}; \bar\xi_{t+1})
        + (1 - \beta_{t+1}) (w_t - h(x_t, y_t; \bar\xi_{t+1})),

:math:`\eta_t = k / (m + t)^{1/3}`, :math:`\alpha_{t+1} = c_1 \eta_t^2` and
:math:`\beta_{t+1} = c_2 \eta_t^2`. Needs :math:`\tilde O(\epsilon^{-3})` samples for
:math:`E \|\nabla F\| \le \epsilon`, at twice the oracle calls of BiAdam a step.

Reference: F. Huang, J. Li, S. Gao, BiAdam: Fast Adaptive Bilevel Optimization Methods, 2021,
arXiv:2106.11396, Algorithm 2.

Departures: those of `biadam.solvers.biadam`. The random length of the series is shared by the two
points, as the algorithm box has it and the appendix does not.
"""

from ..estimators import AbstractEstimator, Storm
from ..hypergradients import AbstractHypergradient, LinearSystem, NeumannRandom, NeumannSum
from ..metrics import AbstractMetric, Adam, Norm, momentum
from ..schedules import AbstractRates, Constant, Coupled, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method
from .space import ETA

ABOUT = About("Huang, Li, Gao, BiAdam", 2021, "2106.11396", "single", "O~(eps^-3)", (True, True))


@method(ABOUT, (ETA,))
def vr_biadam(
    step_size: tuple[Number, Number] = (0.1, 0.1),
    *,
    hypergradient: AbstractHypergradient = NeumannRandom(),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Adam(),
    inner_metric: AbstractMetric = Norm(),
    mixing: Number = PowerDecay(scale=1.0, offset=1000.0, power=1 / 3),
    rates: AbstractRates = Coupled(outer=9.0, inner=9.0, power=2.0),
) -> SingleLoop:
    r"""Algorithm 2 as printed; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`.
        hypergradient: h; its length K and step :math:`1 / L_g` are the estimator's.
        estimator: how w and v average the fresh field.
        outer_metric: A.
        inner_metric: B.
        mixing: :math:`\eta_t`; (scale, offset) are the paper's (k, m).
        rates: :math:`(\beta, \alpha)`; (outer, inner) are the paper's (c2, c1).
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )


@method(ABOUT)
def vr_biadam_tracked(
    step_size: tuple[Number, Number] = (0.01, 0.1),
    *,
    hypergradient: AbstractHypergradient = LinearSystem(),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Adam(corrected=True),
    inner_metric: AbstractMetric = Norm(corrected=True),
    mixing: Number = PowerDecay(scale=30.0, offset=900.0, power=1 / 2),
    rates: AbstractRates = Constant(outer=0.1, inner=0.1),
) -> SingleLoop:
    """VR-BiAdam on a tracked linear system; see `biadam_tracked`."""
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )


@method(ABOUT)
def vr_biadam_authors(
    step_size: tuple[Number, Number] = (0.5, 5e-4),
    *,
    hypergradient: AbstractHypergradient = NeumannSum(terms=3, step_size=0.5),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Adam(0.99, 1e-6, signal=momentum, inside=True),
    inner_metric: AbstractMetric = Adam(0.99, 1e-6, signal=momentum, inside=True),
    mixing: Number = 1.0,
    rates: AbstractRates = Constant(outer=0.1, inner=0.1),
) -> SingleLoop:
    """The variant that the authors' experiments mean to run; see `biadam_authors`.

    Their code aliases the old point with the new one, so that what it runs is a moving average. The
    default step sizes are for the scale of their experiments, as those of `biadam_authors`.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

r"""SMB: one moving average on the hypergradient, and one on the inner gradient or none.

.. math::
    w_t &= \beta h(x_t, y_t) + (1 - \beta) w_{t-1},
        & x_{t+1} &= x_t + \eta_t (P_X(x_t - \gamma w_t) - x_t), \\
    v_t &= \alpha g_y(x_t, y_t; \zeta_t) + (1 - \alpha) v_{t-1},
        & y_{t+1} &= y_t + \eta_t (P_Y(y_t - \lambda v_t) - y_t),

both from the same point, with h the hypergradient of random length; :math:`\eta_t = 1` by default,
and :math:`\alpha = 1` is plain descent on the inner level. Needs :math:`\tilde O(\epsilon^{-4})`
samples with :math:`\beta = \Theta(\epsilon^2)` and step sizes of the order of beta.

Reference: Z. Guo, Y. Xu, W. Yin, R. Jin, T. Yang, On Stochastic Moving-Average Estimators for
Non-Convex Optimization, 2021, arXiv:2104.14840.

Departures:
    * Two forms are in use, and which of them the paper has could not be settled: plain inner
      descent agrees with its table of conditions, averages on both levels are what the code of
      BiAdam's authors compares with. The latter is the default; ``rates=Constant(outer=0.1)`` is
      the former.
    * That code has weights of 0.9, and a factor (t + 1)^{-1/2} on both steps, here
      ``mixing=PowerDecay(offset=1.0)``; the theory's are constant and small, as here.
    * The theory has no set for x. The step is the proximal one, which is the paper's without sets.
"""

from ..estimators import AbstractEstimator, MovingAverage
from ..hypergradients import AbstractHypergradient, NeumannRandom
from ..metrics import AbstractMetric, Identity
from ..schedules import AbstractRates, Constant, Number
from ..solver import SingleLoop
from .about import About, method


@method(
    About("Guo, Xu, Yin, Jin, Yang, SMB", 2021, "2104.14840", "single", "O~(eps^-4)", (True, True))
)
def smb(
    step_size: tuple[Number, Number] = (0.02, 0.1),
    *,
    hypergradient: AbstractHypergradient = NeumannRandom(),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = 1.0,
    rates: AbstractRates = Constant(outer=0.1, inner=0.1),
) -> SingleLoop:
    r"""Build SMB; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`.
        hypergradient: h; its length and step :math:`1 / L_g` are the estimator's.
        estimator: how w and v average the fresh field.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: :math:`\eta_t`, a common factor of both steps, of at most 1.
        rates: :math:`(\beta, \alpha)`.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

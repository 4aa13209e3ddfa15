r"""BiAdam: adaptive matrices and momentum on both levels, in a single loop.

At step t, with directions w, v and matrices A, B:

.. math::
    A_t &= \operatorname{diag}(\sqrt{a_t} + \rho), & a_t &= \tau a_{t-1} + (1 - \tau) h_t^2, \\
    B_t &= (b_t + \rho) I, & b_t &= \tau b_{t-1} + (1 - \tau) \|\nabla_y g(x_t, y_t; \zeta_t)\|, \\
    \tilde x &= \operatorname{argmin}_{x \in X} \langle w_t, x \rangle
        + \tfrac{1}{2\gamma} \|x - x_t\|_{A_t}^2, & x_{t+1} &= x_t + \eta_t (\tilde x - x_t), \\
    \tilde y &= \operatorname{argmin}_{y \in Y} \langle v_t, y \rangle
        + \tfrac{1}{2\lambda} \|y - y_t\|_{B_t}^2, & y_{t+1} &= y_t + \eta_t (\tilde y - y_t), \\
    w_{t+1} &= \beta_{t+1} h_{t+1} + (1 - \beta_{t+1}) w_t,
        & v_{t+1} &= \alpha_{t+1} \nabla_y g(x_{t+1}, y_{t+1}; \zeta_{t+1})
        + (1 - \alpha_{t+1}) v_t,

with h the stochastic hypergradient of equation (13), :math:`\eta_t = k / (m + t)^{1/2}`,
:math:`\alpha_{t+1} = c_1 \eta_t` and :math:`\beta_{t+1} = c_2 \eta_t`. Needs
:math:`\tilde O(\epsilon^{-4})` samples for :math:`E \|\nabla F\| \le \epsilon`.

Reference: F. Huang, J. Li, S. Gao, BiAdam: Fast Adaptive Bilevel Optimization Methods, 2021,
arXiv:2106.11396, Algorithm 1.

Departures:
    * A is driven by the fresh hypergradient h_t where the algorithm box prints f_x, which is zero
      whenever the outer loss does not see x; ``outer_metric=Adam(signal=metrics.partial)`` is the
      letter.
    * eta, alpha and beta are clamped to (0, 1].
    * The iterate returned is the last one unless the run asks for another (`biadam.outputs`).
"""

from ..estimators import AbstractEstimator, MovingAverage
from ..hypergradients import AbstractHypergradient, LinearSystem, NeumannRandom, NeumannSum
from ..metrics import AbstractMetric, Adam, Norm, momentum
from ..schedules import AbstractRates, Constant, Coupled, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method
from .space import ETA

ABOUT = About("Huang, Li, Gao, BiAdam", 2021, "2106.11396", "single", "O~(eps^-4)", (True, True))


@method(ABOUT, (ETA,))
def biadam(
    step_size: tuple[Number, Number] = (0.1, 0.1),
    *,
    hypergradient: AbstractHypergradient = NeumannRandom(),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Adam(),
    inner_metric: AbstractMetric = Norm(),
    mixing: Number = PowerDecay(scale=1.0, offset=100.0, power=1 / 2),
    rates: AbstractRates = Coupled(outer=9.0, inner=9.0),
) -> SingleLoop:
    r"""Algorithm 1 as printed; every slot can be filled otherwise.

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
def biadam_tracked(
    step_size: tuple[Number, Number] = (0.01, 0.1),
    *,
    hypergradient: AbstractHypergradient = LinearSystem(),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Adam(corrected=True),
    inner_metric: AbstractMetric = Norm(corrected=True),
    mixing: Number = PowerDecay(scale=30.0, offset=900.0, power=1 / 2),
    rates: AbstractRates = Constant(outer=0.1, inner=0.1),
) -> SingleLoop:
    r"""BiAdam on a tracked linear system: no truncated series, hence no lasting bias.

    One Hessian and one cross product a step, out of one backward pass with the inner gradient:

    .. math:: h_t = f_x(\xi) - J(\zeta) s_t, \qquad
              s_{t+1} = s_t - \rho_s \eta_t (H(\zeta) s_t - f_y(\xi)).

    The first choice where the inner problem is ill-conditioned. Eta starts at
    1 and falls to a half in 3,000 steps; constant rates, bias-corrected matrices; otherwise the
    slots of `biadam`.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )


@method(ABOUT)
def biadam_authors(
    step_size: tuple[Number, Number] = (0.5, 2.5e-4),
    *,
    hypergradient: AbstractHypergradient = NeumannSum(terms=3, step_size=0.5),
    estimator: AbstractEstimator = MovingAverage(),
    outer_metric: AbstractMetric = Adam(0.99, 1e-6, signal=momentum, inside=True),
    inner_metric: AbstractMetric = Adam(0.99, 1e-6, signal=momentum, inside=True),
    mixing: Number = 1.0,
    rates: AbstractRates = Constant(outer=0.1, inner=0.1),
) -> SingleLoop:
    r"""The variant that the authors' experiments run.

    Both matrices are coordinate-wise, driven by w and v, with the floor inside the root; eta is 1,
    the momentum constant, and the series summed to its end. A coordinate-wise B is outside the
    paper's theory. The default step sizes are for the scale of those experiments: y moves by no
    more than about 2.5e-4 a step. Where it has far to go they are too short (on the test bed of
    condition 10, 2000 steps leave a relative error of 0.77, and with (0.02, 0.02) of 0.03).
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

r"""SUSTAIN: STORM on both levels, in a single loop.

.. math::
    w_t &= h(x_t, y_t; \bar\xi_t) + (1 - a^f_t) (w_{t-1} - h(x_{t-1}, y_{t-1}; \bar\xi_t)),
        & x_{t+1} &= x_t - \gamma \alpha_t w_t, \\
    v_t &= g_y(x_t, y_t; \zeta_t) + (1 - a^g_t) (v_{t-1} - g_y(x_{t-1}, y_{t-1}; \zeta_t)),
        & y_{t+1} &= y_t - \lambda \alpha_t v_t,

with h the hypergradient of random length, whose length the two points share,
:math:`\alpha_t = (m + t)^{-1/3}`, :math:`a^f_{t+1} = c_f \alpha_t^2` and
:math:`a^g_{t+1} = c_g \alpha_t^2`. Needs :math:`\tilde O(\epsilon^{-3})` samples.

Reference: P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A Near-Optimal Algorithm for
Stochastic Bilevel Optimization via Double-Momentum, 2021, arXiv:2102.07367 (from its second
version on; the first is `mstsa`).

Departures:
    * The weight at t belongs to the step size of t - 1. Sources differ by that one index. The
      recursion of the errors e_t decides it: the sum of :math:`E |e_t|^2 / \alpha_{t-1}`
      telescopes if :math:`(1 - a_{t+1})^2 / \alpha_t - 1 / \alpha_{t-1} \le -c \alpha_t`, which is
      a bound on :math:`a_{t+1}` in terms of :math:`\alpha_t`.
    * The estimates start with the fresh field at the start, as STORM's theory has it, and the
      weights and :math:`\alpha_t` are at most 1.
    * The theory has no sets. The steps are proximal ones, which are the paper's without.
"""

from ..estimators import AbstractEstimator, Storm
from ..hypergradients import AbstractHypergradient, NeumannRandom
from ..metrics import AbstractMetric, Identity
from ..schedules import AbstractRates, Coupled, Number, PowerDecay
from ..solver import SingleLoop
from .about import About, method


@method(About("Khanduri et al., SUSTAIN", 2021, "2102.07367", "single", "O~(eps^-3)", (True, True)))
def sustain(
    step_size: tuple[Number, Number] = (0.2, 1.0),
    *,
    hypergradient: AbstractHypergradient = NeumannRandom(),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = PowerDecay(scale=1.0, offset=300.0, power=1 / 3),
    rates: AbstractRates = Coupled(outer=5.0, inner=5.0, power=2.0),
) -> SingleLoop:
    r"""Build SUSTAIN; every slot can be filled otherwise.

    Args:
        step_size: :math:`(\gamma, \lambda)`, of which lambda is the paper's ratio of the two steps.
        hypergradient: h; its length and step :math:`1 / L_g` are the estimator's.
        estimator: how w and v follow the field.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: :math:`\alpha_t`; the offset is m.
        rates: :math:`(a^f, a^g)`; (outer, inner) are :math:`(c_f, c_g)`.
    """
    return SingleLoop(
        step_size, hypergradient, estimator, outer_metric, inner_metric, mixing, rates
    )

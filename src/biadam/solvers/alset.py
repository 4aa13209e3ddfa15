r"""ALSET: alternating stochastic gradient descent, with both steps of one order.

.. math::
    y^0 &= y_k, \quad y^{t+1} = y^t - \beta_k g_y(x_k, y^t; \zeta_t), \quad y_{k+1} = y^T, \\
    x_{k+1} &= x_k - \alpha_k h(x_k, y_{k+1}),

with h the hypergradient of random length at the new y, a constant T of at least 1, and
:math:`\alpha_k, \beta_k = \Theta(K^{-1/2})` over K iterations: the smoothness of :math:`y^*(x)`
makes a slower outer time scale unnecessary. Needs :math:`O(\epsilon^{-4})` samples for
:math:`E \|\nabla F\| \le \epsilon`, with minibatches of order 1 and a length of order log K.

Reference: T. Chen, Y. Sun, W. Yin, Closing the Gap: Tighter Analysis of Alternating Stochastic
Gradient Methods for Bilevel Problems, 2021, arXiv:2106.13781.

Departures:
    * The random length is drawn from {0, .., N - 1}. The printed {1, .., N} drops the first term of
      the series, a permanent bias of :math:`-\vartheta I` in the inverse of the Hessian.
    * By default the steps are :math:`c / \sqrt{10 + k}`, of the theory's order at the horizon
      without knowing it.
    * The theory has no sets and no metrics. The steps are proximal ones in the norms of the
      metrics' matrices, which are the paper's without.
"""

from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, NeumannRandom
from ..metrics import AbstractMetric, Identity
from ..schedules import Number, PowerDecay
from .about import About, method

ABOUT = About(
    "Chen, Sun, Yin, ALSET",
    2021,
    "2106.13781",
    "single",
    "O(eps^-4)",
    (True, True),
)


@method(ABOUT)
def alset(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.1, offset=10.0),
        PowerDecay(scale=1.0, offset=10.0),
    ),
    *,
    inner_steps: int = 1,
    hypergradient: AbstractImplicit = NeumannRandom(length=10, step_size=0.5),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> DoubleLoop:
    r"""Build ALSET.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`, numbers or schedules.
        inner_steps: T.
        hypergradient: h; its length N and step :math:`1 / L_g` are the estimator's.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        outer_metric=outer_metric,
        inner_metric=inner_metric,
        name="alset",
        sets=ABOUT.sets,
    )

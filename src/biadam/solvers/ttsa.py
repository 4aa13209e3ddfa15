r"""TTSA: alternating stochastic descent on two time scales.

.. math::
    y_{k+1} &= P_Y(y_k - \beta_k g_y(x_k, y_k; \zeta)), \\
    x_{k+1} &= P_X(x_k - \alpha_k h(x_k, y_{k+1})),

with h the hypergradient of random length at the *new* y, :math:`\alpha_k \sim k^{-3/5}` and
:math:`\beta_k \sim k^{-2/5}`. Needs :math:`\tilde O(\epsilon^{-5})` samples.

Reference: M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A Two-Timescale Framework for Bilevel
Optimization: Complexity Analysis and Application to Actor-Critic, 2020, arXiv:2007.05170.

Departures:
    * The length of the series is fixed, where the theory lets it grow with log k.
    * The theory has no metrics: by default they are the identity.
"""

from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, NeumannRandom
from ..metrics import AbstractMetric, Identity
from ..schedules import Number, PowerDecay
from .about import About, method


@method(
    About("Hong, Wai, Wang, Yang, TTSA", 2020, "2007.05170", "single", "O~(eps^-5)", (True, True))
)
def ttsa(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.5, offset=10.0, power=3 / 5),
        PowerDecay(scale=1.0, offset=10.0, power=2 / 5),
    ),
    *,
    hypergradient: AbstractImplicit = NeumannRandom(length=10, step_size=0.5),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> DoubleLoop:
    r"""Build TTSA.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`, numbers or schedules.
        hypergradient: h; its length and step :math:`c_h / L_g` are the estimator's.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
    """
    return DoubleLoop(
        step_size, hypergradient, outer_metric=outer_metric, inner_metric=inner_metric, name="ttsa"
    )

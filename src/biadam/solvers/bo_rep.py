r"""BO-REP: normalised momentum outside, initial refinement and periodic updates inside.

After :math:`T_0` rounds of N inner steps at :math:`x_0`, at iteration k:

.. math::
    y_{k+1} &= y^N \text{ with } y^0 = y_k, \; y^{n+1} = y^n - \lambda\, g_y(x_k, y^n; \zeta_n)
        \quad \text{every I-th iteration, else } y_k, \\
    s_{k+1} &= s_k - \rho (H(x_k, y_{k+1}; \zeta^1) s_k - f_y(x_k, y_{k+1}; \xi)), \\
    w_k &= \beta w_{k-1} + (1 - \beta)
        (f_x(x_k, y_{k+1}; \xi) - J(x_k, y_{k+1}; \zeta^0) s_{k+1}), \\
    x_{k+1} &= x_k - \gamma w_k / \|w_k\|.

Needs :math:`\tilde O(\epsilon^{-4})` samples for :math:`E \|\nabla F\| \le \epsilon` where the
smoothness of F may grow with its gradient: a normalised step needs :math:`1 / (\gamma \epsilon)`
iterations and an average of variance :math:`1 - \beta`, hence constant :math:`\gamma` of order
:math:`\epsilon^3` and :math:`1 - \beta` of order :math:`\epsilon^2`.

Reference: J. Hao, X. Gong, M. Liu, Bilevel Optimization under Unbounded Smoothness: A New Algorithm
and Convergence Analysis, 2024, arXiv:2401.09587.

Departures:
    * s follows the linear system by one step an iteration, as in the authors' code, from 0;
      ``hypergradient=NeumannSum()`` is the paper's series.
    * The inner steps are plain: the paper projects them onto a ball around the last y and averages
      them.
    * The refinement is iterations 1 .. :math:`T_0`, whose outer part is skipped; it is off by
      default. The first iteration after it, and every I-th from there, moves y.
    * :math:`w_1` is the first hypergradient, where the code starts the average at 0; after
      normalisation the first step is the same.
    * The norm is raised by the metric's floor of 1e-8, against a division by zero.
    * :math:`\gamma` falls as :math:`k^{-1/2}` by default. A normalised step of constant length
      never comes to rest.
"""

from ..double_loop import Amortized, DoubleLoop
from ..hypergradients import AbstractImplicit
from ..metrics import AbstractMetric, Norm, momentum
from ..schedules import Number, PowerDecay
from .about import About, method

ABOUT = About("Hao, Gong, Liu, BO-REP", 2024, "2401.09587", "double", "O~(eps^-4)", (False, False))


@method(ABOUT)
def bo_rep(
    step_size: tuple[Number, Number] = (PowerDecay(scale=0.1), 0.5),
    *,
    inner_steps: int = 3,
    period: int = 2,
    hypergradient: AbstractImplicit = Amortized(steps=1, step_size=0.5),
    rate: Number = 0.1,
    outer_metric: AbstractMetric = Norm(decay=0.0, floor=1e-8, signal=momentum),
    warm_up: int = 0,
) -> DoubleLoop:
    r"""Build BO-REP.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: N.
        period: I.
        hypergradient: the descent on s, of step size :math:`\rho`.
        rate: :math:`1 - \beta`.
        outer_metric: the length of w, which normalises the step.
        warm_up: :math:`T_0`, in rounds of ``inner_steps`` each.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        rate,
        outer_metric,
        period=period,
        warm_up=warm_up,
        name="bo_rep",
        sets=ABOUT.sets,
    )

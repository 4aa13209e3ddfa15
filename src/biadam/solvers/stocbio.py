r"""StocBiO: a double loop with the whole Neumann series.

.. math::
    y^0 &= y_k, \quad y^{t+1} = y^t - \lambda\, g_y(x_k, y^t; \zeta_t), \quad y_{k+1} = y^D, \\
    s &= \vartheta \sum_{q=0}^{Q} \prod (I - \vartheta H(x_k, y_{k+1}; \zeta^i))\,
        f_y(x_k, y_{k+1}; \xi), \\
    x_{k+1} &= x_k - \gamma (f_x(x_k, y_{k+1}; \xi) - J(x_k, y_{k+1}; \zeta^0) s).

Constant steps, D of order :math:`\kappa \log \kappa`, Q of order :math:`\kappa \log(\kappa /
\epsilon)`; needs :math:`O(\epsilon^{-4})` samples for :math:`E \|\nabla F\| \le \epsilon`, in
minibatches of order :math:`\epsilon^{-2}`.

Reference: K. Ji, J. Yang, Y. Liang, Bilevel Optimization: Convergence Analysis and Enhanced Design,
2021, arXiv:2010.07962.

Departures:
    * All minibatches have one size. The theory gives the Hessian of the factor that is applied j-th
      a batch in proportion to :math:`(1 - \vartheta \mu)^{j-1}`.
    * The sum has its Q + 1 terms, each with the factor :math:`\vartheta`, on fresh minibatches; the
      public code scales only the last term and reuses one minibatch.
"""

from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, NeumannSum
from ..schedules import Number
from .about import About, method

ABOUT = About("Ji, Yang, Liang, stocBiO", 2021, "2010.07962", "double", "O(eps^-4)", (False, False))


@method(ABOUT)
def stocbio(
    step_size: tuple[Number, Number] = (0.02, 0.5),
    *,
    inner_steps: int = 10,
    hypergradient: AbstractImplicit = NeumannSum(terms=10, step_size=0.5),
    warm_start: bool = True,
) -> DoubleLoop:
    r"""Build stocBiO.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: D.
        hypergradient: h; its terms Q and step :math:`\vartheta` are the estimator's.
        warm_start: begin the inner steps at the last y; otherwise always at the user's y.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        warm_start=warm_start,
        name="stocbio",
        sets=ABOUT.sets,
    )

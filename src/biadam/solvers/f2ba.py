r"""F2BA: a fully first-order method, at a fixed large penalty.

At step k, from :math:`y^0 = z^0 = y_k`, for i = 0 .. T - 1:

.. math::
    z^{i+1} &= z^i - \beta\, g_y(x_k, z^i; \zeta_i), \qquad
    y^{i+1} = y^i - \beta (f_y(x_k, y^i; \xi) / \lambda + g_y(x_k, y^i; \zeta_i)), \\
    w_k &= f_x(x_k, y^T; \xi) + \lambda (g_x(x_k, y^T; \zeta_T) - g_x(x_k, z^T; \zeta_T)), \qquad
    y_{k+1} = y^T, \quad x_{k+1} = x_k - \alpha w_k.

With :math:`\lambda = \Theta(1 / \epsilon)` and :math:`T = O(\kappa \log(1 / \epsilon))` the theory,
which is deterministic, needs :math:`\tilde O(\epsilon^{-2})` gradients for
:math:`\|\nabla F\| \le \epsilon`: the gradient of the penalised F is Lipschitz independently of
:math:`\lambda`.

Reference: L. Chen, Y. Ma, J. Zhang, Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization
with Fully First-Order Oracles, 2023, arXiv:2306.14853.

Departures:
    * As z begins at y in every step, on a quadratic T steps leave
      :math:`z - y^*(x) = (I - \beta H)^T (y - y^*(x))` however long one runs: beside the
      :math:`O(1 / \lambda)` of the penalty the method keeps the bias of a Neumann series of T terms
      and step :math:`\beta`.
    * On minibatches, which the theory does not treat, one :math:`\zeta_i` serves y and z, so that
      the noise of the difference, which :math:`\lambda` multiplies, is proportional to
      :math:`y - z`; and one :math:`\xi` serves all of a step.
    * The y of the point is the paper's y, which does better on f than :math:`y^*(x)` can.
"""

from ..penalty import FullyFirstOrder
from ..schedules import Number
from .about import About, method


@method(
    About(
        "Chen, Ma, Zhang, F2BA",
        2023,
        "2306.14853",
        "double",
        "det. O~(eps^-2)",
        (False, False),
        penalised=True,
    )
)
def f2ba(
    step_size: tuple[Number, Number] = (0.1, 0.5),
    *,
    penalty: Number = 10.0,
    inner_steps: int = 10,
) -> FullyFirstOrder:
    r"""Build F2BA.

    Args:
        step_size: :math:`(\alpha, \beta)`.
        penalty: :math:`\lambda`.
        inner_steps: T.
    """
    return FullyFirstOrder(
        step_size, penalty, 1.0, inner_steps, tracked=False, paired=True, name="f2ba"
    )

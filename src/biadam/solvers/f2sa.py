r"""F2SA: a fully first-order method, by a multiplier that grows.

At step k, from :math:`y^0 = y_k` and :math:`z^0 = z_k`, for i = 0 .. T - 1:

.. math::
    z^{i+1} &= z^i - \gamma_k\, g_y(x_k, z^i; \zeta'_i), \\
    y^{i+1} &= y^i - \alpha_k (f_y(x_k, y^i; \xi) + \lambda_k\, g_y(x_k, y^i; \zeta_i)),

then :math:`(y_{k+1}, z_{k+1}) = (y^T, z^T)` and

.. math::
    w_k = f_x(x_k, y_{k+1}; \xi)
        + \lambda_k (g_x(x_k, y_{k+1}; \zeta_T) - g_x(x_k, z_{k+1}; \zeta'_T)), \qquad
    x_{k+1} = x_k - \chi \alpha_k w_k.

So z follows :math:`y^*(x)` and y the minimiser of :math:`f + \lambda g`, and w is the gradient of
:math:`\min_y f + \lambda g - \lambda \min_z g`, which differs from that of F by
:math:`O(1 / \lambda)`. On the test bed the fixed point is

.. math::
    x_\lambda - x^* = \frac{1}{\lambda} (r I + B H^{-2} B')^{-1} B H^{-2} (y^*(x^*) - t)
        + O(\lambda^{-2}).

The theory ties :math:`\lambda_k = \gamma_k / (2 \alpha_k)`, with :math:`\alpha_k \sim k^{-a}` and
:math:`\gamma_k \sim k^{-c}`, hence :math:`\lambda_k \sim k^{a - c}`:

====================  =========  ==========================  =============================
noise                 (a, c)     iterations, of squared norm  :math:`\lambda_k`
====================  =========  ==========================  =============================
in f and g            5/7, 4/7   eps^-7/2                    k^1/7
in f alone            3/5, 2/5   eps^-5/2                    k^1/5
none                  1/3, 0     eps^-3/2                    k^1/3
====================  =========  ==========================  =============================

Each row balances the bias :math:`\lambda_K^{-2}`, the length of the run
:math:`1 / (K \alpha_K)` and the variance of y and z as w sees it (:math:`\lambda^2 \gamma_K` with
noise in g, :math:`\lambda \alpha_K` with noise in f), which confirms the exponents.

Reference: J. Kwon, D. Kwon, S. Wright, R. Nowak, A Fully First-Order Method for Stochastic Bilevel
Optimization, 2023, arXiv:2301.10945.

Departures:
    * :math:`\alpha_k` is no number of its own but :math:`\gamma_k / (2 \lambda_k)`, the theory's
      tie; the factor 1/2 is ``ratio``. The multiplier is a schedule of k, not a sum of increments.
    * One outer minibatch :math:`\xi` serves all of a step, where the paper draws T + 1. As y has
      moved along :math:`f_y(\cdot; \xi)` by :math:`\alpha_k T`, this adds a bias of
      :math:`O(\alpha_k T)` to the mean of :math:`f_x`, of smaller order than the penalty's
      :math:`1 / \lambda_k`, and none to the other terms.
    * The inner minibatches are all independent, as in the paper: the sample holds
      :math:`\zeta_0 .. \zeta_T` and then :math:`\zeta'_0 .. \zeta'_T`. ``paired=True`` takes
      :math:`\zeta' = \zeta`: the noise of the difference, which :math:`\lambda` multiplies, is then
      proportional to :math:`y - z`.
    * The y of the point is the paper's y, which does better on f than :math:`y^*(x)` can; the
      estimate of :math:`y^*(x)` is the state's z.
"""

from ..penalty import FullyFirstOrder, PowerGrowth
from ..schedules import Number, PowerDecay
from .about import About, method


@method(
    About(
        "Kwon, Kwon, Wright, Nowak, F2SA",
        2023,
        "2301.10945",
        "single",
        "O(eps^-7)",
        (False, False),
        penalised=True,
    )
)
def f2sa(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.5, offset=10.0, power=5 / 7),
        PowerDecay(scale=2.0, offset=10.0, power=4 / 7),
    ),
    *,
    penalty: Number = PowerGrowth(scale=5.0, offset=10.0, power=1 / 7),
    inner_steps: int = 1,
    ratio: Number = 0.5,
    paired: bool = False,
) -> FullyFirstOrder:
    r"""Build F2SA.

    Args:
        step_size: :math:`(\chi \alpha_k, \gamma_k)`, numbers or schedules.
        penalty: :math:`\lambda_k`.
        inner_steps: T.
        ratio: :math:`\alpha_k \lambda_k / \gamma_k`, how fast y moves compared with z.
        paired: use one minibatch for both of the inner gradients whose difference is taken.
    """
    return FullyFirstOrder(
        step_size,
        penalty,
        ratio,
        inner_steps,
        tracked=True,
        paired=paired,
        name="f2sa",
    )

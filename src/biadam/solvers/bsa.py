r"""BSA: bilevel stochastic approximation, the first of the stochastic double loops.

.. math::
    y^0 &= y_k, \quad y^{t+1} = y^t - \beta_k g_y(x_k, y^t; \zeta_t), \quad y_{k+1} = y^{t_k}, \\
    x_{k+1} &= P_X(x_k - \alpha_k h(x_k, y_{k+1})),

with h the hypergradient of random length below b at the new y. In theory :math:`t_k =
\Theta(\sqrt k)`, :math:`b_k = \Theta(\log k)` and, for nonconvex F, :math:`\alpha_k =
\Theta(N^{-1/2})` over N iterations; then :math:`O(\epsilon^{-4})` samples of f and
:math:`O(\epsilon^{-6})` of g give :math:`E \|\nabla F\| \le \epsilon`.

Reference: S. Ghadimi, M. Wang, Approximation Methods for Bilevel Programming, 2018,
arXiv:1802.02246.

Departures:
    * :math:`t_k = t` and :math:`b_k = b` do not grow with k: a step's samples have one shape.
    * Both steps are :math:`c / \sqrt{k + 1}` by default, k counted from 0, which is of the theory's
      order at the horizon without knowing it. Within an inner loop the step is constant.
    * The inner loop starts from the last y.
"""

from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, NeumannRandom
from ..schedules import Number, PowerDecay
from .about import About, method

ABOUT = About(
    "Ghadimi, Wang, BSA",
    2018,
    "1802.02246",
    "double",
    "eps^-4 (f), eps^-6 (g)",
    (True, False),
)


@method(ABOUT)
def bsa(
    step_size: tuple[Number, Number] = (PowerDecay(scale=0.05), PowerDecay(scale=0.5)),
    *,
    inner_steps: int = 10,
    hypergradient: AbstractImplicit = NeumannRandom(length=10, step_size=0.5),
) -> DoubleLoop:
    r"""Build BSA.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`, numbers or schedules.
        inner_steps: t.
        hypergradient: h; its length is b, its step :math:`1 / L_g` in theory.
    """
    return DoubleLoop(step_size, hypergradient, inner_steps, name="bsa", sets=ABOUT.sets)

r"""AmIGO: the linear system amortised over the iterations, as the inner problem is.

.. math::
    y^0 &= y_k, & y^{t+1} &= y^t - \lambda\, g_y(x_k, y^t; \zeta_t), & y_{k+1} &= y^T, \\
    s^0 &= s_k, & s^{n+1} &= s^n - \rho (H(x_k, y_{k+1}; \zeta^n) s^n - f_y(x_k, y_{k+1}; \xi)), &
    s_{k+1} &= s^N, \\
    && x_{k+1} &= x_k - \gamma (f_x(x_k, y_{k+1}; \xi) - J(x_k, y_{k+1}; \zeta^0) s_{k+1}), &&

with one outer minibatch :math:`\xi` and a fresh :math:`\zeta` everywhere else. Constant steps;
needs :math:`O(\epsilon^{-4})` samples for :math:`E \|\nabla F\| \le \epsilon`, in minibatches of
order :math:`\epsilon^{-2}`, with T and N of order :math:`\kappa` up to logarithms.

Reference: M. Arbel, J. Mairal, Amortized Implicit Differentiation for Stochastic Bilevel
Optimization, 2022, arXiv:2111.14580.

Departures:
    * s starts at 0.
    * The authors' option of descending on the normal equations, two products a step, is left out.
"""

from ..double_loop import Amortized, DoubleLoop
from ..hypergradients import AbstractImplicit
from ..schedules import Number
from .about import About, method

ABOUT = About("Arbel, Mairal, AmIGO", 2022, "2111.14580", "double", "O(eps^-4)", (False, False))


@method(ABOUT)
def amigo(
    step_size: tuple[Number, Number] = (0.02, 0.5),
    *,
    inner_steps: int = 10,
    hypergradient: AbstractImplicit = Amortized(steps=10, step_size=0.5),
) -> DoubleLoop:
    r"""Build AmIGO.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: T.
        hypergradient: the descent on s; its steps are N, its step size :math:`\rho`.
    """
    return DoubleLoop(step_size, hypergradient, inner_steps, name="amigo", sets=ABOUT.sets)

r"""AID: approximate implicit differentiation, by conjugate gradients or by a fixed-point iteration.

.. math::
    y^0 &= y_k, \quad y^{t+1} = y^t - \lambda\, g_y(x_k, y^t; \zeta_t), \quad y_{k+1} = y^T, \\
    s &\approx H(x_k, y_{k+1}; \zeta')^{-1} f_y(x_k, y_{k+1}; \xi) \quad \text{by K iterations}, \\
    x_{k+1} &= P_X(x_k - \gamma (f_x(x_k, y_{k+1}; \xi) - J(x_k, y_{k+1}; \zeta') s)).

`aid_cg` takes K conjugate gradients; `aid_fp` iterates :math:`u \leftarrow (I - \beta H) u + f_y`
from 0 and has :math:`s = \beta u`, which is K terms of the Neumann series of step :math:`\beta`, so
what it converges to is off by :math:`H^{-1} (I - \beta H)^K`.

Deterministic theory, for :math:`\|\nabla F\|^2 \le \epsilon`: :math:`O(\kappa^3 / \epsilon)`
gradients of f and JVPs, :math:`O(\kappa^4 / \epsilon)` gradients of g, :math:`O(\kappa^{3.5} /
\epsilon)` HVPs with conjugate gradients; constant steps.

Reference: R. Grazzi, L. Franceschi, M. Pontil, S. Salzo, On the Iteration Complexity of
Hypergradient Computation, 2020, arXiv:2006.16218.

Departures:
    * The inner loop starts from the last y.
    * One minibatch serves all Hessian products and J of an iteration: conjugacy means nothing
      between different matrices.
    * No damping by default, where the authors' conjugate gradients add 0.01 I: it moves the limit.
      ``hypergradient=ConjugateGradient(damping=0.01)`` is theirs.
    * The linear system is solved from 0 every time.
    * The fixed-point iteration spends K - 1 products for K iterations, as the first iterate from 0
      is f_y itself.
"""

from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, ConjugateGradient, FixedPoint
from ..schedules import Number
from .about import About, method

ABOUT = About(
    "Grazzi, Franceschi, Pontil, Salzo, AID",
    2020,
    "2006.16218",
    "double",
    "det. eps^-2",
    (True, False),
)


@method(ABOUT)
def aid_cg(
    step_size: tuple[Number, Number] = (0.02, 0.5),
    *,
    inner_steps: int = 10,
    hypergradient: AbstractImplicit = ConjugateGradient(steps=10),
    warm_start: bool = True,
) -> DoubleLoop:
    r"""AID with conjugate gradients.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: T.
        hypergradient: the solution of the linear system; its steps are K.
        warm_start: begin the inner steps at the last y; otherwise always at the user's y.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        warm_start=warm_start,
        name="aid_cg",
        sets=ABOUT.sets,
    )


@method(ABOUT)
def aid_fp(
    step_size: tuple[Number, Number] = (0.02, 0.5),
    *,
    inner_steps: int = 10,
    hypergradient: AbstractImplicit = FixedPoint(steps=10, step_size=0.5),
    warm_start: bool = True,
) -> DoubleLoop:
    r"""AID with the fixed-point iteration.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: T.
        hypergradient: the solution of the linear system; its steps are K, its step size beta.
        warm_start: begin the inner steps at the last y; otherwise always at the user's y.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        warm_start=warm_start,
        name="aid_fp",
        sets=ABOUT.sets,
    )

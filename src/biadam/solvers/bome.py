r"""BOME: descend on f along with the gap of inner values, by a multiplier in closed form.

At step k, with z the end of T steps :math:`z \leftarrow z - \theta g_y(x_k, z; \zeta_i)` from
:math:`z = y_k`, and q the gradient of the gap :math:`g(x, y) - g(x, z)` with z held fixed:

.. math::
    q_x &= g_x(x_k, y_k; \zeta_T) - g_x(x_k, z; \zeta_T), \qquad q_y = g_y(x_k, y_k; \zeta_T), \\
    \lambda_k &= \max\Big( \frac{\eta \|q\|^2 - \langle \nabla f(x_k, y_k; \xi), q \rangle}
        {\|q\|^2 + \delta}, 0 \Big), \\
    x_{k+1} &= x_k - \alpha_k (f_x + \lambda_k q_x), \qquad
    y_{k+1} = y_k - \beta_k (f_y + \lambda_k q_y).

The direction is the one nearest to the gradient of f along which the gap falls at the rate
:math:`\eta \|q\|^2`. The theory is deterministic.

What it converges to: as the gap closes, the multiplier grows until descent on the gap is about to
become unstable, :math:`\lambda \beta L_g` between 0.5 and 2 on the test bed, and stays there; so a
constant step leaves an error of the order of that step. With steps that vanish, two errors are
left, exact on a quadratic:

* that of the T inner steps: q_x is :math:`J H_T^{-1} q_y`, with :math:`H_T^{-1} = \theta
  \sum_{q<T} (I - \theta H)^q` the Neumann series of T terms, whose bias the method keeps;
* that of :math:`\delta`: where the direction vanishes, :math:`\lambda \delta = \eta \|q\|^2`, hence
  :math:`\lambda^3 = \eta \|\nabla f\|^2 / \delta`: the multiplier is bounded and leaves the
  :math:`O(1 / \lambda)` of any penalty.

Reference: M. Ye, B. Liu, S. Wright, P. Stone, Q. Liu, BOME! Bilevel Optimization Made Easy: A
Simple First-Order Approach, 2022, arXiv:2209.08709.

Departures:
    * The rate of fall is :math:`\eta \|q\|^2`; the paper's other choice, :math:`\eta` times the gap
      itself, asks for values of g.
    * :math:`\delta` guards the division and is no part of the paper. Its usual value of 1e-8 bounds
      the multiplier at some hundreds, which is felt once the steps are below some 1e-3.
    * On minibatches, which the theory does not treat, one :math:`\zeta_T` serves q.
"""

from typing import Any

import jax.numpy as jnp
import optax.tree
from jaxtyping import Array, PyTree

from .. import errors, schedules
from ..penalty import AbstractMultiplier, PenaltyDescent, ValueGap
from ..schedules import Number, PowerDecay
from .about import About, method


class Balanced(AbstractMultiplier):
    """The least multiplier with which the penalty falls at a rate of its slope's square."""

    decrease: Number  # eta
    guard: Any  # delta

    def __check_init__(self) -> None:
        schedules.check_number("decrease", self.decrease)
        errors.number("guard", self.guard, above=0)

    def __call__(
        self, f: tuple[PyTree, PyTree], q: tuple[PyTree, PyTree], step: Array
    ) -> tuple[Array, Array]:
        """1 and lambda."""
        square, slope = _dot(q, q), _dot(f, q)
        eta = jnp.asarray(schedules.at(self.decrease, step), square.dtype)
        guard = jnp.asarray(self.guard, square.dtype)
        multiplier = (eta * square - slope) / (square + guard)
        return jnp.ones_like(square), jnp.maximum(multiplier, jnp.zeros_like(square))


def _dot(a: tuple[PyTree, PyTree], b: tuple[PyTree, PyTree]) -> Array:
    kind = jnp.result_type(float)
    x, y = (jnp.asarray(optax.tree.vdot(u, v), kind) for u, v in zip(a, b, strict=True))
    return x + y


@method(
    About(
        "Ye, Liu, Wright, Stone, Liu, BOME",
        2022,
        "2209.08709",
        "double",
        "det.",
        (False, False),
        penalised=True,
    )
)
def bome(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.3, offset=10.0, power=1 / 2),
        PowerDecay(scale=0.3, offset=10.0, power=1 / 2),
    ),
    *,
    inner_steps: int = 10,
    solution_step: Number = 0.5,
    decrease: Number = 0.5,
    guard: float = 1e-8,
) -> PenaltyDescent:
    r"""Build BOME.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`; constant ones leave an error of their order.
        inner_steps: T.
        solution_step: :math:`\theta`, of the steps towards :math:`y^*(x)`.
        decrease: :math:`\eta`.
        guard: :math:`\delta`.
    """
    gap = ValueGap(inner_steps, solution_step, tracked=False)
    return PenaltyDescent(step_size, gap, Balanced(decrease, guard), "bome")

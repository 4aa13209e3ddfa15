r"""PBGD: gradient descent in (x, y) on f plus a penalty for y not being optimal.

V-PBGD penalises the gap of values. At step k, with z the end of T steps
:math:`z \leftarrow P_Y(z - \theta g_y(x_k, z; \zeta_i))` from :math:`z_k`, and
:math:`c_k = \min(1 / \gamma_k, 1)`:

.. math::
    x_{k+1} &= P_X(x_k - \alpha c_k (f_x + \gamma_k (g_x(x_k, y_k; \zeta_T)
        - g_x(x_k, z; \zeta_T)))), \\
    y_{k+1} &= P_Y(y_k - \beta c_k (f_y + \gamma_k\, g_y(x_k, y_k; \zeta_T))), \qquad
    z_{k+1} = z.

G-PBGD penalises half the squared norm of :math:`u = g_y(x_k, y_k; \zeta_0)`, at the price of two
second-order products and of no inner loop:

.. math::
    x_{k+1} = P_X(x_k - \alpha c_k (f_x + \gamma_k J(\zeta_1) u)), \qquad
    y_{k+1} = y_k - \beta c_k (f_y + \gamma_k H(\zeta_1) u).

The penalty :math:`\gamma_k` ramps up in a line. The theory is deterministic. Its rate,
:math:`\tilde O(\gamma / \epsilon)` steps for a squared norm of :math:`\epsilon` of the projected
gradient of the penalised problem, is quoted and was not verified here. What is verified is how far
the penalised problem lies from the bilevel one: on the test bed

.. math::
    x_\gamma - x^* = \frac{1}{\gamma} (r I + B H^{-2} B')^{-1} B H^{-1} P (y^*(x^*) - t)
        + O(\gamma^{-2}), \qquad P = H^{-1} \text{ (V-PBGD)}, \; H^{-2} \text{ (G-PBGD)}:

for the same error the penalty on the slope must be larger by up to the condition number of g, and
its Hessian in y is :math:`H^2`.

Reference: H. Shen, T. Chen, On Penalty-based Bilevel Gradient Descent Method, 2023,
arXiv:2302.05185.

Departures:
    * The factor :math:`c_k` is that of the authors' code: it keeps the step sizes valid for any
      penalty, and slows x down by as much.
    * On minibatches, which the theory does not treat, V-PBGD takes one :math:`\zeta_T` for all of
      the gap; G-PBGD takes independent ones for u and its products, so that the step is unbiased.
    * G-PBGD refuses constraints on y, whose optimality its penalty does not express.
"""

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import schedules
from ..penalty import AbstractMultiplier, AbstractPenalty, PenaltyDescent, Pull, Ramp, ValueGap
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from .about import About, method


class Scaled(AbstractMultiplier):
    """A scheduled penalty, with the whole divided by it where it exceeds 1."""

    penalty: Number  # gamma_k

    def __check_init__(self) -> None:
        schedules.check_number("penalty", self.penalty)

    def __call__(
        self, f: tuple[PyTree, PyTree], q: tuple[PyTree, PyTree], step: Array
    ) -> tuple[Array, Array]:
        """The weights c and c gamma."""
        gamma = schedules.at(self.penalty, step)
        scale = jnp.maximum(gamma, jnp.ones_like(gamma))
        return 1 / scale, gamma / scale


class SlopeNorm(AbstractPenalty):
    """``|g_y|^2 / 2``, its gradient on the minibatches 0 (for g_y) and 1 (for H and J)."""

    batches = 2

    def begin(self, y: PyTree) -> None:
        """Nothing to remember."""

    def __call__(
        self, problem: Problem, point: Levels, z: PyTree, sample: Sample, step: Array
    ) -> Pull:
        """``J g_y`` and ``H g_y``."""
        x, y, _ = point
        slope = problem.inner_gradient(x, y, sample.batch(0))
        hessian, cross = problem.products(x, y, sample.batch(1), slope)
        return Pull((cross, hessian), None, Calls(0, 1, 1, 1))


@method(
    About("Shen, Chen, V-PBGD", 2023, "2302.05185", "double", "det.", (True, True), penalised=True)
)
def pbgd_value(
    step_size: tuple[Number, Number] = (0.1, 0.1),
    *,
    penalty: Number = Ramp(start=0.0, end=10.0, steps=1000.0),
    inner_steps: int = 1,
    solution_step: Number = 0.5,
) -> PenaltyDescent:
    r"""Build V-PBGD.

    Args:
        step_size: :math:`(\alpha, \beta)`.
        penalty: :math:`\gamma_k`.
        inner_steps: T.
        solution_step: :math:`\theta`, of the steps towards :math:`y^*(x)`.
    """
    gap = ValueGap(inner_steps, solution_step, tracked=True)
    return PenaltyDescent(step_size, gap, Scaled(penalty), "pbgd_value", (True, True))


@method(
    About("Shen, Chen, G-PBGD", 2023, "2302.05185", "single", "det.", (True, False), penalised=True)
)
def pbgd_gradient(
    step_size: tuple[Number, Number] = (0.1, 0.1),
    *,
    penalty: Number = Ramp(start=0.0, end=100.0, steps=1000.0),
) -> PenaltyDescent:
    r"""Build G-PBGD.

    Args:
        step_size: :math:`(\alpha, \beta)`.
        penalty: :math:`\gamma_k`.
    """
    return PenaltyDescent(step_size, SlopeNorm(), Scaled(penalty), "pbgd_gradient", (True, False))

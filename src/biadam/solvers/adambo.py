r"""AdamBO: Adam on the outer level, stochastic descent on the inner one.

After :math:`T_0` inner steps at :math:`x_0`, at iteration t:

.. math::
    y_{t+1} &= y_t - \lambda\, g_y(x_t, y_t; \zeta_t), \qquad h_t = h(x_t, y_{t+1}) + c\, x_t, \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) h_t, \qquad
    a_t = \beta_2 a_{t-1} + (1 - \beta_2) h_t^2, \\
    x_{t+1} &= x_t - \gamma\, \frac{m_t / (1 - \beta_1^t)}{\sqrt{a_t / (1 - \beta_2^t)} + \rho},

with h the hypergradient of a Neumann series and :math:`m_0 = a_0 = 0`. Needs
:math:`\tilde O(\epsilon^{-4})` samples for :math:`E \|\nabla F\| \le \epsilon` where the smoothness
of F may grow with its gradient, with constant steps and :math:`1 - \beta_1 =
\tilde\Theta(\epsilon^2)`.

The bias-corrected mean is the running one :math:`w_t = r_t h_t + (1 - r_t) w_{t-1}` of weight
:math:`r_t = (1 - \beta_1) / (1 - \beta_1^t)`, so that no other state is needed.

Reference: X. Gong, J. Hao, M. Liu, On the Convergence of Adam-Type Algorithm for Bilevel
Optimization under Unbounded Smoothness, 2025, arXiv:2503.03908.

Departures:
    * The warm start is iterations 1 .. :math:`T_0`, whose outer part is skipped and costs nothing;
      they take their inner minibatches from their own samples, and Adam counts from the first step
      after them. It is off by default.
    * The hypergradient is that at the new y, as in the authors' code.
    * The series has all its terms on fresh minibatches; the authors' code loses the first one.
    * c, the weight decay added to the hypergradient as in that code (0.01 there), is 0 by default:
      it changes the problem to one with :math:`\tfrac{c}{2} \|x\|^2` more in f.
    * The step sizes, :math:`\beta_1` and :math:`\rho` are not those of the theory, whose constants
      are unknown in practice, but the usual ones.
    * The theory has no sets. The step of x is a proximal one, which is the paper's without.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import errors
from ..double_loop import DoubleLoop
from ..hypergradients import AbstractImplicit, NeumannSum
from ..metrics import AbstractMetric, Adam, Identity
from ..schedules import Number
from .about import About, method

ABOUT = About("Gong, Hao, Liu, AdamBO", 2025, "2503.03908", "single", "O~(eps^-4)", (True, False))


class Unbiased(eqx.Module):
    r"""The weight :math:`(1 - \beta) / (1 - \beta^t)` of the newest term in Adam's first moment."""

    decay: float = 0.9  # beta_1

    def __check_init__(self) -> None:
        errors.number("Unbiased.decay", self.decay, least=0)
        if isinstance(self.decay, float) and self.decay >= 1:
            raise errors.Mistake(f"`Unbiased.decay` must be below 1, but it is {self.decay!r}.")

    def __call__(self, step: Array) -> Array:
        """The weight at step t, counted from 1."""
        t = jnp.asarray(step, jnp.result_type(float))
        return (1 - self.decay) / (1 - self.decay**t)


@method(ABOUT)
def adambo(
    step_size: tuple[Number, Number] = (0.01, 0.5),
    *,
    inner_steps: int = 1,
    hypergradient: AbstractImplicit = NeumannSum(terms=10, step_size=0.5),
    rate: Number = Unbiased(0.9),
    outer_metric: AbstractMetric = Adam(decay=0.999, floor=1e-8, corrected=True),
    inner_metric: AbstractMetric = Identity(),
    decay: float = 0.0,
    warm_up: int = 0,
) -> DoubleLoop:
    r"""Build AdamBO.

    Args:
        step_size: :math:`(\gamma, \lambda)`, numbers or schedules.
        inner_steps: of an iteration.
        hypergradient: h.
        rate: :math:`r_t`, the weight of :math:`h_t`; `Unbiased` has Adam's :math:`\beta_1`.
        outer_metric: the second moment; its decay is :math:`\beta_2`, its floor :math:`\rho`.
        inner_metric: the geometry of y.
        decay: c, of the weights.
        warm_up: :math:`T_0`, in iterations of ``inner_steps`` each.
    """
    return DoubleLoop(
        step_size,
        hypergradient,
        inner_steps,
        rate,
        outer_metric,
        inner_metric,
        decay=decay,
        warm_up=warm_up,
        name="adambo",
        sets=ABOUT.sets,
    )

r"""MSTSA: plain descent on the inner level, STORM on the outer one, in turn.

.. math::
    y_{t+1} &= y_t - \beta_t g_y(x_t, y_t; \zeta_t), \\
    w_t &= h(x_t, y_{t+1}; \bar\xi_t) + (1 - c) (w_{t-1} - h(x_{t-1}, y_t; \bar\xi_t)), \\
    x_{t+1} &= x_t - \alpha_t w_t,

with h the hypergradient of random length, whose length the two points share, and both steps of the
order :math:`t^{-1/2}`. The abstract has :math:`O(\epsilon^{-2})` iterations for
:math:`E \|\nabla F\|^2 \le \epsilon`, that is :math:`\tilde O(\epsilon^{-4})` samples for
:math:`E \|\nabla F\| \le \epsilon` with a series of logarithmic length (unverified: the proof was
not at hand).

Reference: P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A Momentum-Assisted
Single-Timescale Stochastic Approximation Algorithm for Bilevel Optimization, 2021,
arXiv:2102.07367 (its first version; the later ones are `sustain`, another method).

Departures:
    * w starts with the fresh hypergradient at the start.
    * The code of BiAdam's authors looks before the inner step, at the old y; here h is taken at
      the new one, as in the equations above. g_y is never taken at an old point.
    * The theory has no sets and no metrics. Both steps are proximal ones in the norms of the
      metrics' matrices, which are the paper's without.
"""

from jaxtyping import Array, PyTree

from ..alternating import AbstractAlternating, Inner
from ..estimators import AbstractEstimator, Storm
from ..hypergradients import AbstractImplicit, Field, NeumannRandom
from ..hypergradients.base import UNKNOWN
from ..metrics import AbstractMetric, Identity
from ..problem import Calls, Levels, Problem, Sample, View
from ..schedules import Number, PowerDecay
from ..solver import check_implicit, refuse_system
from .about import About, method


class Mstsa(AbstractAlternating):
    """The alternating method on a Neumann series.

    The sample's inner minibatches are zeta, for the inner step, and those of the hypergradient.
    """

    step_size: tuple[Number, Number]
    rate: Number
    hypergradient: AbstractImplicit
    estimator: AbstractEstimator
    outer_metric: AbstractMetric
    inner_metric: AbstractMetric

    def __check_init__(self) -> None:
        check_implicit(self.hypergradient)

    @property
    def batches(self) -> int:
        """Those of the hypergradient, whose own for g_y is that of the step."""
        return self.hypergradient.batches

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """Refuse a hypergradient that keeps a linear system."""
        refuse_system("mstsa", self.hypergradient, x, y)
        return Levels(x, y)

    def follow(
        self, problem: Problem, view: View, point: Levels, sample: Sample, step: Array
    ) -> Inner:
        """Nothing else moves."""

        def field(z: Levels) -> Field:
            at = view if z is point else problem.view(z.x, sample)
            seen = z._replace(x=at.x)
            w, partial, residual, calls = self.hypergradient.implicit(at.problem, seen, at.sample)
            return Field(Levels(at.pull(w), None), at.pull(partial), residual, calls)

        return Inner(point, field, Calls(), UNKNOWN)


@method(About("Khanduri et al., MSTSA", 2021, "2102.07367", "single", "O~(eps^-4)", (True, True)))
def mstsa(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.3, offset=100.0, power=1 / 2),
        PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    ),
    *,
    rate: Number = 0.5,
    hypergradient: AbstractImplicit = NeumannRandom(),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> Mstsa:
    r"""Build MSTSA.

    Args:
        step_size: :math:`(\alpha_t, \beta_t)`, numbers or schedules.
        rate: c, the weight of the fresh hypergradient.
        hypergradient: h; its length and step :math:`1 / L_g` are the estimator's.
        estimator: how w follows the hypergradient.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
    """
    return Mstsa(
        step_size=step_size,
        rate=rate,
        hypergradient=hypergradient,
        estimator=estimator,
        outer_metric=outer_metric,
        inner_metric=inner_metric,
    )

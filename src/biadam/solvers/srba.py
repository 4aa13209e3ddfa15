r"""SRBA: the directions of SOBA, exact every q steps and corrected in between.

For each level z of x, y and s, with D the directions of `soba` on all the data or on one pair of
minibatches:

.. math::
    d_t &= D(z_t) \quad \text{every } q \text{ steps, otherwise} \quad
    d_t = d_{t-1} + D(z_t; \xi, \zeta) - D(z_{t-1}; \xi, \zeta), \\
    z_{t+1} &= z_t + \eta_t (\operatorname{prox}_Z(z_t - \gamma_z A_z^{-1} d_t) - z_t),

with constant steps; eta and the metrics A of x and y are 1 and I by default. For n inner and m
outer examples and q of the order of n + m minibatches' worth, it needs
:math:`O((n + m)^{1/2} \epsilon^{-2})` samples, which is near optimal.

Reference: M. Dagréou, T. Moreau, S. Vaiter, P. Ablin, A Lower Bound and a Near-Optimal Algorithm
for Bilevel Empirical Risk Minimization, 2023, arXiv:2302.08766.

Departures:
    * s has the other sign than in the paper. It is not projected; ``hypergradient`` takes the set.
    * A look at all the data counts as many oracle calls as the data has minibatches.
    * A series of random length is refused: one length is drawn at a look at all the data, which
      then is not exact, and SPIDER carries its error on until the next look.
    * ``mixing`` multiplies every step and ``outer_metric`` and ``inner_metric`` divide those of x
      and y; by default they are 1 and the identity, and the method is the paper's.
    * The theory has no sets. The steps are proximal ones, which are the paper's without.
"""

import equinox as eqx
from jax import lax
from jaxtyping import Array, Bool, PyTree

from .. import errors
from ..estimators import MovingAverage, Spider, everything, refuse_lengths
from ..hypergradients import AbstractHypergradient, LinearSystem
from ..metrics import AbstractMetric, Identity
from ..problem import Calls, Problem, Sample
from ..schedules import Constant, Number
from ..solver import AbstractSolver, Draw, Info, SingleLoop, State
from .about import About, method


class Refreshed(AbstractSolver):
    """A single-loop method whose directions are taken from all the data every so many steps.

    In those steps its directions are the moving average, by its rates; at rates of 1 they are the
    exact field.
    """

    loop: SingleLoop
    period: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        refuse_lengths(self.loop.hypergradient)
        errors.count("period", self.period)

    @property
    def batches(self) -> int:
        """Those of the loop."""
        return self.loop.batches

    def init(self, problem: Problem, x: PyTree, y: PyTree, sample: Sample) -> tuple[State, Info]:
        """The first directions are exact."""
        whole, count = everything("srba", sample)
        state, info = self.loop.init(problem, x, y, whole)
        return state, _times(info, count)

    def step(self, problem: Problem, state: State, sample: Sample) -> tuple[State, Info]:
        """A step of the loop, or the same with fresh directions from all the data."""
        whole, count = everything("srba", sample)
        fresh = eqx.tree_at(lambda loop: loop.estimator, self.loop, MovingAverage())

        def refresh(state: State) -> tuple[State, Info]:
            state, info = fresh.step(problem, state, whole)
            return state, _times(info, count)

        correct = lambda state: self.loop.step(problem, state, sample)
        return lax.cond(state.step % self.period == 0, refresh, correct, state)

    def remarks(self, problem: Problem, state: State) -> list[str]:
        """Those of the loop."""
        return self.loop.remarks(problem, state)

    def clips(self, problem: Problem, state: State, sample: Draw) -> Bool[Array, ""]:
        """See the loop's."""
        return self.loop.clips(problem, state, sample)


def _times(info: Info, count: Calls) -> Info:
    return info._replace(calls=Calls(*(a * b for a, b in zip(info.calls, count, strict=True))))


@method(
    About(
        "Dagréou, Moreau, Vaiter, Ablin, SRBA", 2023, "2302.08766", "single",
        "O((n+m)^1/2 eps^-2)", (True, True),
    )
)  # fmt: skip
def srba(
    step_size: tuple[Number, Number] = (0.01, 0.5),
    *,
    period: int = 8,
    hypergradient: AbstractHypergradient = LinearSystem(step_size=0.5),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
    mixing: Number = 1.0,
) -> Refreshed:
    r"""Build SRBA; it asks for a source that knows all its data, such as `biadam.data.Minibatches`.

    Args:
        step_size: :math:`(\gamma_x, \gamma_y)`.
        period: q.
        hypergradient: the tracked system, whose step size is :math:`\gamma_s`.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
        mixing: a common factor of all steps, of at most 1.
    """
    loop = SingleLoop(
        step_size, hypergradient, Spider(), outer_metric, inner_metric, mixing, Constant()
    )
    return Refreshed(loop, period)

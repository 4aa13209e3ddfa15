r"""SABA: SOBA with SAGA on each of the five terms of its directions, for finite sums.

The data is cut into blocks, i of the inner and j of the outer loss. For each term G the last value
of every block is kept, and the estimate

.. math:: \hat G = G_i(z_t) - G_i^{\text{old}} + \operatorname{mean}_{i'} G_{i'}^{\text{old}},
          \qquad G_i^{\text{old}} \leftarrow G_i(z_t)

takes the place of the term in

.. math::
    y_{t+1} &= y_t - \rho \hat g_y, \qquad
    s_{t+1} = s_t - \rho (\widehat{H s} - \hat f_y), \qquad
    x_{t+1} = x_t - \gamma (\hat f_x - \widehat{J s}).

With constant steps it needs :math:`O((n + m) \epsilon^{-2})` samples for n and m blocks, and
converges linearly where F satisfies the inequality of Polyak and Łojasiewicz. The memory is
n (2 p + d) + m (p + d) numbers for d outer and p inner variables.

Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that
enables stochastic and global variance reduction algorithms, 2022, arXiv:2201.13409.

Departures:
    * s has the other sign than in the paper.
    * The tables start with all blocks' values at the start, which costs one pass over the data;
      those of H s and J s are zero there, as s is.
    * The kept values of H s and J s belong to the s of their time, as in the paper.
    * The theory has no sets and no metrics. The step of x is a proximal one, and x and y take the
      norms of their metrics' matrices, which see the estimates; without they are the paper's.
    * Estimator and hypergradient are fixed: SAGA needs the single terms of both losses, which only
      a tracked system is linear in.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import errors, schedules, tree
from ..data.blocks import cut
from ..double_loop import inner_move
from ..estimators import Table, everything, examples
from ..metrics import AbstractMetric, Identity
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, proximal_step, refuse_sets
from .about import About, method


class SabaState(NamedTuple):
    """What the next step of SABA needs."""

    step: Int[Array, ""]  # t
    point: Levels  # x_t, y_t, s_t
    outer: Table  # of (f_x, f_y)
    inner: Table  # of (g_y, H s, J s)
    memory: tuple[PyTree, PyTree]  # what the metrics remember, outer and inner


class Saba(AbstractSolver):
    """The method, on one block of either loss."""

    step_size: tuple[Number, Number]
    outer_metric: AbstractMetric
    inner_metric: AbstractMetric
    batches = 1

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        errors.part("outer_metric", self.outer_metric, AbstractMetric, "metrics")
        errors.part("inner_metric", self.inner_metric, AbstractMetric, "metrics")

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[SabaState, Info]:
        """Fill the tables."""
        refuse_sets(problem, "saba", outer=False)
        whole, count = everything("saba", sample)
        outer_blocks = cut(whole.outer, examples(sample.outer))
        inner_blocks = cut(whole.batch(0), examples(sample.batch(0)))
        outer = lax.map(lambda block: problem.outer_gradients(x, y, block), outer_blocks)
        q = lax.map(lambda block: problem.inner_gradient(x, y, block), inner_blocks)
        n = examples(inner_blocks)
        none = lambda z: jax.tree.map(lambda a: jnp.zeros((n, *a.shape), a.dtype), z)
        tables = Table.of(outer), Table.of((q, none(y), none(x)))
        zero = jax.tree.map(jnp.zeros_like, (x, y))
        memory = (self.outer_metric.init(x), self.inner_metric.init(y))
        state = SabaState(jnp.ones((), jnp.int32), Levels(x, y, zero[1]), *tables, memory)
        calls = Calls(count.outer_gradient, count.inner_gradient)
        return state, info_of(calls, jnp.ones(()), *zero)

    def step(self, problem: Problem, state: SabaState, sample: Sample) -> tuple[SabaState, Info]:
        """Look at one block of either loss, exchange its values, move all levels."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        x, y, s = state.point
        j, i = _blocks(state, sample)
        (f_x, f_y), outer = state.outer.exchange(j, problem.outer_gradients(x, y, sample.outer))
        (q, hessian, cross), inner = state.inner.exchange(
            i, problem.gradient_and_products(x, y, sample.batch(0), s)
        )
        w = tree.add_scale(f_x, -1.0, cross)
        gap = tree.add_scale(hessian, -1.0, f_y)
        above = self.outer_metric.update(state.memory[0], w, w, f_x)
        matrix = self.outer_metric.matrix(above, x)
        x = proximal_step(x, w, matrix, outer_step, problem.outer_set)
        move, below = inner_move(problem, y, q, self.inner_metric, state.memory[1], inner_step)
        point = Levels(x, proximal_step(*move), tree.add_scale(s, -inner_step, gap))
        state = SabaState(state.step + 1, point, outer, inner, (above, below))
        return state, info_of(Calls(1, 1, 1, 1), jnp.ones(()), w, q)


def _blocks(state: SabaState, sample: Sample) -> tuple[Array, Array]:
    """Which block of the outer and of the inner data the sample is."""
    if sample.block is not None:
        return sample.block[0], sample.block[1][0]
    if examples(state.outer.values) == examples(state.inner.values) == 1:
        return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    raise errors.Mistake(
        "`saba` remembers a value for each block of the data, but the source of its samples does "
        "not tell which block a minibatch is (Sample.block is None); use biadam.data.Blocks."
    )


@method(
    About(
        "Dagréou, Ablin, Vaiter, Moreau, SABA", 2022, "2201.13409", "single",
        "O((n+m) eps^-2)", (True, False),
    )
)  # fmt: skip
def saba(
    step_size: tuple[Number, Number] = (0.01, 0.5),
    *,
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> Saba:
    r"""Build SABA; it asks for samples that are blocks, of `biadam.data.Blocks`.

    Args:
        step_size: :math:`(\gamma, \rho)`, of which rho serves y and s.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
    """
    return Saba(step_size, outer_metric, inner_metric)

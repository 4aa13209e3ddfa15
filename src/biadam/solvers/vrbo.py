r"""VRBO: SPIDER on both levels, with an inner loop.

.. math::
    (w, v) &= (h, g_y)(x_k, y_k) \text{ on all the data, every } q \text{ iterations,} \\
    x_{k+1} &= x_k - \alpha_k w, \qquad y^0 = y_k, \\
    &\text{for } t = 0, \dots, m \text{, on fresh minibatches:} \\
    (w, v) &\leftarrow (w, v) + (h, g_y)(x_{k+1}, y^t)
        - (h, g_y)(x_{k+1}, y^{t-1}), \qquad
    y^{t+1} = y^t - \beta_k v \text{ unless } t = m, \\
    y_{k+1} &= y^m,

where for t = 0 the old point is :math:`(x_k, y_k)`, and h is the hypergradient of the truncated
series. On exit w and v are estimates at exactly :math:`(x_{k+1}, y_{k+1})`. Needs
:math:`\tilde O(\epsilon^{-3})` samples with minibatches of :math:`O(\epsilon^{-1})` and looks at
:math:`O(\epsilon^{-2})` examples.

Reference: J. Yang, K. Ji, Y. Liang, Provably Faster Algorithms for Bilevel Optimization, 2021,
arXiv:2106.04692.

Departures:
    * The large batch is all the data; a look at it counts as many oracle calls as it has
      minibatches.
    * There is one more look than inner steps, so that the estimates belong to the point that is
      returned.
    * A sample has one outer minibatch, and the method wants a fresh one for each look: they are
      drawn from all the data by the sample's key, with replacement, of the same size. A sample
      with a single inner minibatch, which belongs to its outer one, serves every look as it is.
    * A series of random length is refused: one length is drawn at a look at all the data, which
      then is not exact, and SPIDER carries its error on until the next look.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Int, Key, PyTree

from .. import errors, schedules, tree
from ..estimators import Spider, everything, examples, refuse_lengths
from ..hypergradients import AbstractHypergradient, NeumannSum
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, refuse_sets, refuse_system
from .about import About, method


class VrboState(NamedTuple):
    """What the next iteration of VRBO needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k
    direction: Levels  # w, v at that point


class Vrbo(AbstractSolver):
    """The method; a sample holds the minibatches of m + 1 evaluations of the hypergradient."""

    step_size: tuple[Number, Number]
    hypergradient: AbstractHypergradient
    inner_steps: int = eqx.field(static=True)
    period: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        schedules.check_pair("step_size", self.step_size)
        errors.part("hypergradient", self.hypergradient, AbstractHypergradient, "hypergradients")
        refuse_lengths(self.hypergradient)
        errors.count("inner_steps", self.inner_steps, least=0)
        errors.count("period", self.period)

    @property
    def batches(self) -> int:
        """Those of the hypergradient, m + 1 times."""
        return (self.inner_steps + 1) * self.hypergradient.batches

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[VrboState, Info]:
        """Nothing is looked at before the first iteration."""
        refuse_sets(problem, "vrbo")
        refuse_system("vrbo", self.hypergradient, x, y)
        zero = Levels(*jax.tree.map(jnp.zeros_like, (x, y)))
        state = VrboState(jnp.ones((), jnp.int32), Levels(x, y), zero)
        return state, info_of(Calls(), jnp.ones(()), zero.x, zero.y)

    def step(self, problem: Problem, state: VrboState, sample: Sample) -> tuple[VrboState, Info]:
        """A look at all the data if it is due, the outer step, the inner loop."""
        outer_step, inner_step = (schedules.at(s, state.step) for s in self.step_size)
        whole, count = everything("vrbo", sample)
        m, size = self.inner_steps, examples(sample.outer)

        def refresh() -> tuple[Levels, Calls]:
            look = self.hypergradient(problem, state.point, whole)
            return look.value, _whole_numbers(a * b for a, b in zip(look.calls, count, strict=True))

        keep = lambda: (state.direction, _whole_numbers(Calls()))
        direction, calls = lax.cond((state.step - 1) % self.period == 0, refresh, keep)
        x = tree.add_scale(state.point.x, -outer_step, direction.x)

        def look(
            carry: tuple[Levels, PyTree, Levels, Calls], fresh: tuple[Array, Key[Array, ""], PyTree]
        ) -> tuple[tuple[Levels, PyTree, Levels, Calls], None]:
            previous, y, direction, calls = carry
            t, key, inner = fresh
            here = Levels(x, y)
            picking, rest = jr.split(key)
            outer = sample.outer if sample.single else _draw(picking, whole.outer, size)
            small = Sample(outer, inner, rest)
            field = lambda z: self.hypergradient(problem, z, small)
            direction, _, more = Spider()(field, here, previous, direction, Levels(None, None))
            # The last look is one without a step, so that w and v belong to the y that is left.
            step = jnp.where(t < m, inner_step, jnp.zeros_like(inner_step))
            y = tree.add_scale(y, -step, direction.y)
            return (here, y, direction, _whole_numbers(calls.plus(more))), None

        fresh = (jnp.arange(m + 1), jr.split(sample.key, m + 1), sample.parts(m + 1))
        start = (state.point, state.point.y, direction, calls)
        (_, y, direction, calls), _ = lax.scan(look, start, fresh)
        state = VrboState(state.step + 1, Levels(x, y), direction)
        return state, info_of(calls, jnp.ones(()), direction.x, direction.y)


def _whole_numbers(calls: Iterable[Any]) -> Calls:
    return Calls(*(jnp.asarray(n, jnp.int32) for n in calls))


def _draw(key: Key[Array, ""], data: PyTree, size: int) -> PyTree:
    """A minibatch of so many examples."""
    i = jr.randint(key, (size,), 0, examples(data))
    return jax.tree.map(lambda a: a[i], data)


@method(About("Yang, Ji, Liang, VRBO", 2021, "2106.04692", "double", "O~(eps^-3)", (False, False)))
def vrbo(
    step_size: tuple[Number, Number] = (0.05, 0.2),
    *,
    inner_steps: int = 3,
    period: int = 3,
    hypergradient: AbstractHypergradient = NeumannSum(),
) -> Vrbo:
    r"""Build VRBO; it asks for a source that knows all its data, such as `biadam.data.Minibatches`.

    Args:
        step_size: :math:`(\alpha_k, \beta_k)`, numbers or schedules.
        inner_steps: m.
        period: q, iterations between two looks at all the data.
        hypergradient: h, of those that keep no linear system and draw no length; its number of
            terms Q and step are the estimator's.
    """
    return Vrbo(step_size, hypergradient, inner_steps, period)

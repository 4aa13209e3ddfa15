"""How the noise is averaged out: from the fresh field to the direction that is followed.

An estimator asks nothing of the field but purity in the sample: where it looks at two points, it
hands the very same sample to both, and with it every minibatch and every random length. It works
on whatever the levels of the field hold: a direction, a matrix, or several of them.

`everything`, `refuse_lengths` and `Table` serve the methods for finite sums, which look at all the
data now and then or remember a value of each block.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from . import errors, tree
from .hypergradients import AbstractHypergradient, Field, NeumannRandom
from .problem import Calls, Levels, Sample


class AbstractEstimator(eqx.Module):
    """A running estimate of the field."""

    @abc.abstractmethod
    def __call__(
        self,
        field: Callable[[Levels], Field],
        point: Levels,
        previous: Levels,
        direction: Levels,
        rates: Levels,
    ) -> tuple[Levels, Field, Calls]:
        """Return the direction at ``point``, the fresh field there, and the oracle calls made.

        ``direction`` is the estimate at ``previous``; ``rates`` weighs the fresh field, a number
        in (0, 1] for each level. A rate of 1 is plain stochastic descent, exactly.
        """


class MovingAverage(AbstractEstimator):
    """``d <- r h(point) + (1 - r) d``, the momentum of BiAdam."""

    def __call__(
        self,
        field: Callable[[Levels], Field],
        point: Levels,
        previous: Levels,
        direction: Levels,
        rates: Levels,
    ) -> tuple[Levels, Field, Calls]:
        """See `AbstractEstimator`."""
        fresh = field(point)
        return tree.each(_average, fresh.value, direction, rates), fresh, fresh.calls


class Storm(AbstractEstimator):
    """``d <- h(point) + (1 - r) (d - h(previous))``, both with one sample, as in VR-BiAdam.

    Reference: A. Cutkosky, F. Orabona, Momentum-Based Variance Reduction in Non-Convex SGD, 2019,
    arXiv:1905.10018.
    """

    def __call__(
        self,
        field: Callable[[Levels], Field],
        point: Levels,
        previous: Levels,
        direction: Levels,
        rates: Levels,
    ) -> tuple[Levels, Field, Calls]:
        """See `AbstractEstimator`."""
        fresh, stale = field(point), field(previous)
        new = tree.each(_correct, fresh.value, stale.value, direction, rates)
        return new, fresh, fresh.calls.plus(stale.calls)


class Spider(AbstractEstimator):
    """``d <- d + h(point) - h(previous)``, both with one sample: STORM that forgets nothing.

    Its errors add up, so that whoever uses it starts it afresh from time to time. The rates play no
    part.

    Reference: C. Fang, C. J. Li, Z. Lin, T. Zhang, SPIDER: Near-Optimal Non-Convex Optimization via
    Stochastic Path Integrated Differential Estimator, 2018, arXiv:1807.01695.
    """

    def __call__(
        self,
        field: Callable[[Levels], Field],
        point: Levels,
        previous: Levels,
        direction: Levels,
        rates: Levels,
    ) -> tuple[Levels, Field, Calls]:
        """See `AbstractEstimator`."""
        fresh, stale = field(point), field(previous)
        move = lambda h, stale, d: _correct(h, stale, d, jnp.zeros(()))
        new = tree.each(move, fresh.value, stale.value, direction)
        return new, fresh, fresh.calls.plus(stale.calls)


def everything(name: str, sample: Sample) -> tuple[Sample, Calls]:
    """The sample whose every minibatch is all the data, and how many minibatches one of it counts.

    The second is a factor for each kind of oracle call.
    """
    if sample.whole is None:
        raise errors.Mistake(
            f"`{name}` looks at all the data from time to time, but the source of its samples does "
            f"not tell it (Sample.whole is None); use biadam.data.Minibatches."
        )
    outer, inner = sample.whole
    once = jax.tree.map(lambda a: a[None], inner)
    parts = lambda data, size: -(-examples(data) // size)
    n, m = parts(outer, examples(sample.outer)), parts(inner, examples(sample.batch(0)))
    return sample._replace(outer=outer, inner=once), Calls(n, m, m, m)


def refuse_lengths(hypergradient: AbstractHypergradient) -> None:
    """Refuse a random length, also inside another hypergradient."""
    random = lambda part: isinstance(part, NeumannRandom)
    if any(map(random, jax.tree.leaves(hypergradient, is_leaf=random))):
        raise errors.Mistake(
            "`hypergradient` must be exact on all the data, but it is NeumannRandom, whose random "
            "length no amount of data averages out; take its whole sum, NeumannSum."
        )


def examples(data: PyTree) -> int:
    """How many examples some data hold, on their leading axis."""
    return int(jax.tree.leaves(data)[0].shape[0])


class Table(NamedTuple):
    """The last value of each block of a finite sum, as SAGA remembers it."""

    values: PyTree  # stacked on a leading axis
    mean: PyTree  # of the values

    @classmethod
    def of(cls, values: PyTree) -> "Table":
        """The table that starts with these values."""
        return cls(values, jax.tree.map(lambda a: jnp.mean(a, axis=0), values))

    def exchange(self, i: Array, new: PyTree) -> tuple[PyTree, "Table"]:
        """The estimate ``new - values[i] + mean`` of the sum's mean, and the table with ``new``."""
        change = jax.tree.map(lambda new, a: new - a[i], new, self.values)
        values = jax.tree.map(lambda a, new: a.at[i].set(new), self.values, new)
        mean = tree.add_scale(self.mean, 1 / examples(values), change)
        return tree.add_scale(self.mean, 1.0, change), Table(values, mean)


def _average(h: PyTree, d: PyTree, rate: Array) -> PyTree:
    return tree.mix(rate, h, d)


def _correct(h: PyTree, stale: PyTree, d: PyTree, rate: Array) -> PyTree:
    def one(h: Array, stale: Array, d: Array) -> Array:
        return h + (1 - jnp.asarray(rate, h.dtype)) * (d - stale)

    return jax.tree.map(one, h, stale, d)

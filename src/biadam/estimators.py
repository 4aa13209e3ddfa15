"""How the noise is averaged out: from the fresh field to the direction that is followed.

An estimator asks nothing of the field but purity in the sample: where it looks at two points, it
hands the very same sample to both, and with it every minibatch and every random length.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from . import tree
from .hypergradients import Field
from .problem import Calls, Levels


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


def _average(h: PyTree, d: PyTree, rate: Array) -> PyTree:
    return tree.mix(rate, h, d)


def _correct(h: PyTree, stale: PyTree, d: PyTree, rate: Array) -> PyTree:
    def one(h: Array, stale: Array, d: Array) -> Array:
        return h + (1 - jnp.asarray(rate, h.dtype)) * (d - stale)

    return jax.tree.map(one, h, stale, d)

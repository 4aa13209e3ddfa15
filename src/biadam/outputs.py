"""Which iterate a run returns."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Key

from . import errors, tree
from .problem import Levels


class AbstractOutput(eqx.Module):
    """Keeps what it needs of the iterates, in memory that does not grow."""

    def init(self, point: Levels) -> Any:
        """What the compiled loop keeps, at the first iterate."""
        return None

    def update(self, kept: Any, point: Levels, step: Array, key: Key[Array, ""]) -> Any:
        """A step leaves iterate number ``step``, counted from 1 at the start."""
        return kept

    def judge(self, best: Any, point: Levels, metrics: Mapping[str, float]) -> Any:
        """Outside the compiled loop: the metrics of an iterate are known; first with best None."""
        return best

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Refuse a run whose metrics do not hold what the choice goes by."""

    @abc.abstractmethod
    def pick(self, kept: Any, best: Any, point: Levels) -> Levels:
        """The iterate to return, ``point`` being the last one."""


class Last(AbstractOutput):
    """The last iterate."""

    def pick(self, kept: None, best: None, point: Levels) -> Levels:
        """The last one."""
        return point


class Average(AbstractOutput):
    """The average of x_1 .. x_T, the iterates at which the T steps began."""

    def init(self, point: Levels) -> Levels:
        """The first iterate."""
        return point

    def update(self, kept: Levels, point: Levels, step: Array, key: Key[Array, ""]) -> Levels:
        """Weigh iterate t by 1 / t."""
        return tree.mix(1 / step.astype(float), point, kept)

    def pick(self, kept: Levels, best: None, point: Levels) -> Levels:
        """The average."""
        return kept


class RandomIterate(AbstractOutput):
    """An iterate drawn uniformly from x_1 .. x_T: the last line of the paper's algorithms.

    These are the iterates at which the T steps began; x_1 is the start. Iterate t replaces the
    kept one with probability 1 / t, which needs one point of memory.
    """

    def init(self, point: Levels) -> Levels:
        """The first iterate."""
        return point

    def update(self, kept: Levels, point: Levels, step: Array, key: Key[Array, ""]) -> Levels:
        """Draw."""
        taken = jr.randint(key, (), 0, step) == 0
        return jax.tree.map(lambda new, old: jnp.where(taken, new, old), point, kept)

    def pick(self, kept: Levels, best: None, point: Levels) -> Levels:
        """The one drawn."""
        return kept


class Best(AbstractOutput):
    """The evaluated iterate at which a metric was least, or largest.

    Judge by data that the final report does not touch. A NaN is worse than any number.
    """

    metric: str = eqx.field(static=True)
    largest: bool = eqx.field(static=True, default=False)

    def judge(self, best: Any, point: Levels, metrics: Mapping[str, float]) -> tuple[Levels, float]:
        """Keep the better one."""
        value = -metrics[self.metric] if self.largest else metrics[self.metric]
        better = best is None or math.isnan(best[1]) or value < best[1]
        return (point, value) if better else best

    def check(self, metrics: Mapping[str, Any]) -> None:
        """The metric must be among those of the run."""
        if self.metric not in metrics:
            raise errors.unknown("metric of this run", self.metric, metrics)

    def pick(self, kept: None, best: tuple[Levels, float], point: Levels) -> Levels:
        """The best one."""
        return best[0]

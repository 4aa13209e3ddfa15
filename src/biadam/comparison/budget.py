"""How long a run may last: in seconds of stepping, oracle calls or samples."""

import abc
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax

from ..driver import run
from ..solver import AbstractSolver
from ..tasks import Task

PROBE = 32  # steps over which oracle calls are counted


class Limits(NamedTuple):
    """What `biadam.run` is told."""

    steps: int | None
    seconds: float | None


@dataclass(frozen=True)
class AbstractBudget(abc.ABC):
    """What every run of a comparison may spend."""

    amount: float
    kind: ClassVar[str]

    def share(self, part: float) -> "AbstractBudget":
        """A part of it."""
        return replace(self, amount=self.amount * part)

    @abc.abstractmethod
    def limits(self, task: Task, name: str, solver: AbstractSolver) -> Limits:
        """The budget in the terms of a run of this method on this task."""


@dataclass(frozen=True)
class Seconds(AbstractBudget):
    """Seconds of stepping; compilation and evaluation do not count."""

    kind = "seconds"

    def limits(self, task: Task, name: str, solver: AbstractSolver) -> Limits:
        """See `AbstractBudget`."""
        return Limits(None, self.amount)


@dataclass(frozen=True)
class OracleCalls(AbstractBudget):
    """Gradients and products of both losses, on a minibatch each."""

    kind = "oracle_calls"

    def limits(self, task: Task, name: str, solver: AbstractSolver) -> Limits:
        """As many steps as the mean cost of the first few affords."""
        source, key = task.source_for(name), jax.random.key(0)
        start = (task.x0, task.start_for(name))

        def spent(steps: int) -> int:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                of = run(task.problem, solver, source, *start, steps=steps, key=key)
            return sum(of.oracle_calls.values())

        begun = spent(0)
        return Limits(_steps(self.amount - begun, (spent(PROBE) - begun) / PROBE), None)


@dataclass(frozen=True)
class Samples(AbstractBudget):
    """Examples drawn, by both losses."""

    kind = "samples"

    def limits(self, task: Task, name: str, solver: AbstractSolver) -> Limits:
        """As many steps as the minibatches of one afford."""
        sample = task.source_for(name)(jax.random.key(0), 0, solver.batches)
        outer, inner = (jax.tree.leaves(of)[0].shape for of in (sample.outer, sample.inner))
        return Limits(_steps(self.amount, outer[0] + inner[0] * inner[1]), None)


def _steps(amount: float, cost: float) -> int:
    return max(1, int(amount / cost)) if cost > 0 else 1

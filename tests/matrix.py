"""The tables that every method goes through: problems x solvers.

A new method is one row of `ROWS`; a test fails while `biadam.solvers.__all__` has a name without
one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from biadam import AbstractSolver, Calls, metrics, schedules, solvers
from biadam.data import AbstractSource
from biadam.hypergradients import LinearSystem, NeumannSum
from biadam.tasks import Quadratic


def optimum(bed: Quadratic) -> np.ndarray:
    """Where an exact method converges to."""
    return bed.optimum()


def neumann_floor(terms: int, step_size: float) -> Callable[[Quadratic], np.ndarray]:
    """Where a method converges to whose inverse Hessian is a series of so many terms."""

    def limit(bed: Quadratic) -> np.ndarray:
        shrink = np.eye(len(bed.hessian)) - step_size * bed.hessian
        powers = [np.linalg.matrix_power(shrink, q) for q in range(terms)]
        return bed.optimum(step_size * sum(powers))

    return limit


class Row(NamedTuple):
    """A method, set for the test bed, and what must come out."""

    solver: Callable[[Quadratic], AbstractSolver]
    steps: int  # after which it has converged without noise
    calls: Calls  # oracle calls of one iteration, averaged over random lengths
    limit: Callable[[Quadratic], np.ndarray] = optimum  # of x without noise
    tolerance: float = 1e-6  # of x, relative
    data: Callable[[Quadratic], AbstractSource] | None = None  # if plain minibatches won't do
    period: int = 4  # steps after which the calls repeat
    inert: frozenset[str] = frozenset()  # numbers that this row's setting can't feel, by path


def at(make: Callable[..., AbstractSolver], *numbers: Any, **slots: Any) -> Any:
    """A solver that is set alike on every bed."""
    return lambda bed: make(*numbers, **slots)


NO_SYSTEM = frozenset({".rates.system"})  # where no level s is tracked
FLOOR = {"outer_metric": metrics.Adam(floor=1.0), "inner_metric": metrics.Norm(floor=1.0)}
FIXED = {"mixing": 1.0, "rates": schedules.Constant(0.5, 0.5), **FLOOR}
SUM = {"hypergradient": NeumannSum(terms=7, step_size=0.8)}

ROWS: dict[str, Row] = {
    "biadam": Row(
        at(solvers.biadam, (0.02, 0.5), **FIXED, **SUM),
        4000,
        Calls(1, 1, 7, 1),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
    "vr_biadam": Row(
        at(solvers.vr_biadam, (0.02, 0.5), **FIXED, **SUM),
        4000,
        Calls(2, 2, 14, 2),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
    "biadam_authors": Row(
        at(solvers.biadam_authors, (0.02, 0.5), **FIXED, **SUM),
        4000,
        Calls(1, 1, 7, 1),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
    "vr_biadam_authors": Row(
        at(solvers.vr_biadam_authors, (0.02, 0.5), **FIXED, **SUM),
        4000,
        Calls(2, 2, 14, 2),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
    "biadam_tracked": Row(
        at(solvers.biadam_tracked, (0.001, 0.5), hypergradient=LinearSystem(0.8), **FIXED),
        100000,
        Calls(1, 1, 1, 1),
    ),
    "vr_biadam_tracked": Row(
        at(solvers.vr_biadam_tracked, (0.001, 0.5), hypergradient=LinearSystem(0.8), **FIXED),
        100000,
        Calls(2, 2, 2, 2),
    ),
}

BEDS = {
    "small": Quadratic((2, 3), condition=3.0, seed=1),
    "wide": Quadratic((5, 2), condition=10.0, seed=2),
    "tall": Quadratic((1, 6), condition=20.0, seed=3),
}

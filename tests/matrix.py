"""The tables that every method goes through: problems x solvers.

A new method is one row; a test fails while `biadam.solvers.__all__` has a name without one. Rows
that rest on closed forms of their own stand with these in `rows_*.py`.
"""

import rows_combinations
import rows_double_loop
import rows_first_order
import rows_single_loop
from beds import BEDS as BEDS
from beds import Row as Row
from beds import at, neumann_floor
from biadam import Calls, metrics, schedules, solvers
from biadam.hypergradients import LinearSystem, NeumannSum

NO_SYSTEM = frozenset({".rates.system"})  # where no level s is tracked
FLOOR = {"outer_metric": metrics.Adam(floor=1.0), "inner_metric": metrics.Norm(floor=1.0)}
FIXED = {"mixing": 1.0, "rates": schedules.Constant(0.5, 0.5), **FLOOR}
SUM = {"hypergradient": NeumannSum(terms=7, step_size=0.8)}

ROWS: dict[str, Row] = {
    **rows_double_loop.ROWS,
    **rows_first_order.ROWS,
    **rows_single_loop.ROWS,
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

COMBINATIONS = rows_combinations.ROWS
EVERY = {**ROWS, **COMBINATIONS}

"""Slots that no published method has together, on the test bed."""

from beds import Row, at, neumann_floor
from biadam import Calls, metrics
from biadam.estimators import Storm
from biadam.schedules import Constant, Coupled
from biadam.solvers import biadam, fsla, mrbo, soba
from rows_single_loop import NO_SYSTEM, SUM, SYSTEM, tracked

FLOOR = {"outer_metric": metrics.Adam(floor=1.0), "inner_metric": metrics.Norm(floor=1.0)}
BELIEF = {
    "outer_metric": metrics.adabelief(floor=1.0),
    "inner_metric": metrics.norm_belief(floor=1.0),
}

# The first word is the method.
ROWS: dict[str, Row] = {
    "soba in BiAdam's geometry": Row(
        lambda bed: soba(tracked(bed), hypergradient=SYSTEM, mixing=1.0, **FLOOR),
        12000,
        Calls(1, 1, 1, 1),
    ),
    "soba by STORM": Row(
        lambda bed: soba(
            tracked(bed),
            hypergradient=SYSTEM,
            mixing=1.0,
            estimator=Storm(),
            rates=Constant(0.5, 0.4, 0.3),
        ),
        12000,
        Calls(2, 2, 2, 2),
    ),
    "mrbo in BiAdam's geometry": Row(
        at(mrbo, (0.02, 0.5), hypergradient=SUM, mixing=0.9, rates=Coupled(0.5, 0.5, 2.0), **FLOOR),
        5000,
        Calls(2, 2, 14, 2),
        neumann_floor(8, 0.8),
    ),
    "fsla in BiAdam's geometry": Row(
        lambda bed: fsla(tracked(bed), system_step=1.0, rate=0.5, **FLOOR),
        12000,
        Calls(2, 1, 1, 2),
    ),
    "biadam by AdaBelief": Row(
        at(biadam, (0.02, 0.5), hypergradient=SUM, mixing=1.0, rates=Constant(0.5, 0.5), **BELIEF),
        5000,
        Calls(1, 1, 7, 1),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
}

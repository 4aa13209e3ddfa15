"""Several methods on one task, for the same time each, over several seeds."""

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from . import record, solvers
from .driver import run
from .errors import Mistake, count, unknown
from .record import Record
from .tasks import Task

PAPER = (
    "reverse",
    "aid_cg",
    "aid_fp",
    "stocbio",
    "mrbo",
    "vrbo",
    "fsla",
    "mstsa",
    "sustain",
    "smb",
    "svrb",
    "stable",
    "bsa",
    "ttsa",
    "biadam",
    "vr_biadam",
)

# Their y tends to the minimiser of f plus a penalty, not to y*(x): on f it looks better than it is.
PENALISED = ("bome", "f2ba", "f2sa", "pbgd_gradient", "pbgd_value")


class Row(NamedTuple):
    """What a method reached: means over seeds, and the half-range between the extreme ones."""

    solver: str
    metrics: dict[str, float]
    spread: dict[str, float]
    steps_per_second: float | None
    diverged: int  # runs that did
    refused: str  # why the method does not take this task, if it does not


def chosen(names: str) -> list[str]:
    """The methods that ``all``, ``paper`` or a comma-separated list names."""
    groups = {"all": tuple(solvers.__all__), "paper": PAPER}
    wanted = groups.get(names) or tuple(name.strip() for name in names.split(","))
    for name in wanted:
        if name not in solvers.__all__:
            raise unknown("solver", name, [*solvers.__all__, *groups])
    return list(wanted)


def compare(
    task: Callable[[int], Task],
    names: Sequence[str],
    *,
    seconds: float,
    seeds: int,
    out: Path,
) -> Iterator[Row]:
    """Run each method with the task's settings for it, and yield its row when it is done.

    Args:
        task: makes the task for a seed.
        names: the methods.
        seconds: of stepping, for each run; compilation and evaluation do not count.
        seeds: how many; the seeds are 0, 1, ...
        out: the folder that gets one folder for each run.
    """
    count("seeds", seeds)
    tasks = [task(seed) for seed in range(seeds)]
    for name in names:
        runs: list[Record] = []
        refused = ""
        for seed, of in enumerate(tasks):
            try:
                runs.append(_one(of, name, seconds, seed, out / f"{name}-seed{seed}"))
            except Mistake as mistake:
                refused = str(mistake)
                break
        yield _row(name, runs, refused)


def _one(task: Task, name: str, seconds: float, seed: int, folder: Path) -> Record:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # divergence is counted in the row
        result = run(
            task.problem,
            task.build(name, getattr(solvers, name)),
            task.source_for(name),
            task.x0,
            task.y0,
            seconds=seconds,
            key=jax.random.key(seed),
            metrics=task.curves,
            progress=False,
        )
    return record.save(folder, task, name, {}, seed, result)


def _row(name: str, runs: Sequence[Record], refused: str) -> Row:
    fine = [r.summary for r in runs if r.summary["outcome"] == "ok"]
    columns: dict[str, list[Any]] = {
        metric: [r["metrics"][metric] for r in fine]
        for metric in (fine[0]["metrics"] if fine else ())
    }
    known = {metric: values for metric, values in columns.items() if None not in values}
    return Row(
        name,
        {metric: statistics.fmean(values) for metric, values in known.items()},
        {metric: (max(values) - min(values)) / 2 for metric, values in known.items()},
        statistics.fmean(r["steps_per_second"] for r in fine) if fine else None,
        len(runs) - len(fine),
        refused,
    )

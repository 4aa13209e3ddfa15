"""The comparison: tune every method alike, on seeds and metrics apart, then run it for the record.

What makes it fair, and where:

* every method gets the same number of settings, and every run the same budget (`halving`,
  `budget`);
* settings are chosen by the task's validation metric on seeds that are never reported, with the
  judges of the test split taken out of the task (`work.tune`);
* the test split is looked at once for each reported run (`work.report`);
* runs side by side have a core each, and only steps are on the clock (`work.alone`).
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from .. import errors, record, solvers
from ..errors import Mistake, unknown
from ..settings import show
from ..solvers.about import SPACES
from ..solvers.space import settings as around
from ..tasks import Task
from .board import Board
from .budget import AbstractBudget, OracleCalls, Samples, Seconds
from .cache import Cache
from .groups import chosen
from .halving import ladder
from .plan import Plan, Setting, processes
from .recipe import Recipe
from .search import Search
from .summary import Found, Row, rows

TUNING = 1_000_000  # the first seed of those that settings are chosen on; reported ones are below


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came out, and the folder it is written to."""

    directory: Path
    summary: dict[str, Any]  # what comparison.json says
    rows: list[Row]  # a method each, the best first


def compare(
    task: Callable[..., Task],
    options: Mapping[str, Any] | None = None,
    *,
    out: Path | str,
    methods: str | Sequence[str] = "paper",
    seconds: float | None = None,
    oracle_calls: float | None = None,
    samples: float | None = None,
    seeds: int = 3,
    tuning_seeds: int = 1,
    settings: int = 16,
    grids: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    workers: int | None = None,
    cache: Path | str | None = None,
    progress: bool | None = None,
    command: str = "",
) -> Comparison:
    """Tune methods on a task, each within the same budget, and report them on fresh seeds.

    Finished runs are kept, so that an interrupted comparison goes on where it was, and the same one
    again is read back. Runs are spread over processes by joblib, so that one of its contexts
    (`joblib.parallel_config`) takes them to a cluster.

    Args:
        task: makes the task for a seed: a function with an argument ``seed``, such as
            `biadam.tasks.hyper_cleaning`.
        options: its other arguments.
        out: the folder that gets ``comparison.json`` and a folder for each reported run.
        methods: names, or ``paper``, ``modern``, ``recommended``, ``reference`` or ``all``.
        seconds: of stepping, for each run; compilation and evaluation do not count.
        oracle_calls: for each run, in place of seconds.
        samples: drawn by each run, in place of seconds.
        seeds: how many to report: 0, 1, ...
        tuning_seeds: how many to choose settings on; they are never reported.
        settings: how many to try of each method, the worse of them for a part of the budget.
        grids: by method, values of its arguments whose combinations are tried in their place.
        workers: processes; by default one for each core, or what the joblib context says.
        cache: the folder of finished runs; by default ``cache`` in ``out``.
        progress: show what runs; by default if a person watches.
        command: what was typed, for the record.
    """
    errors.count("seeds", seeds)
    if seeds > TUNING:
        raise Mistake(
            f"`seeds` must be at most {TUNING:,}, but it is {seeds:,}; the seeds above are those "
            f"that settings are chosen on."
        )
    errors.count("tuning_seeds", tuning_seeds)
    errors.count("settings", settings)
    if workers is not None:
        errors.count("workers", workers)
    names = _names(methods)
    given = dict(grids or {})
    for name, grid in given.items():
        _check_grid(name, grid, names)
    out = Path(out)
    plan = Plan(
        Recipe(task, options or {}),
        _budget(seconds, oracle_calls, samples),
        range(seeds),
        range(TUNING, TUNING + tuning_seeds),
        Cache(Path(cache) if cache is not None else out / "cache"),
        workers,
    )
    first = plan.recipe.task(plan.tuning_seeds[0])
    if first.tuned_by not in first.curves:
        raise unknown("curve of this task to tune by", first.tuned_by, first.curves)
    candidates = {name: _candidates(first, name, settings, given.get(name)) for name in names}
    with Board(progress, first.tuned_by) as board:
        search = Search(plan, first, candidates, board)
        search.tune()
        found = search.report()
        references = search.references()
    return _written(out, plan, first, found, references, command)


def _names(methods: str | Sequence[str]) -> list[str]:
    if not methods:
        raise Mistake("`methods` must name at least one method, but it is empty.")
    return chosen(methods if isinstance(methods, str) else ",".join(methods))


def _check_grid(name: str, grid: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
    if name not in names:
        raise unknown("method of this comparison", name, names)
    known = inspect.signature(getattr(solvers, name)).parameters
    for argument, values in grid.items():
        if argument not in known:
            raise unknown(f"setting of {name}", argument, known)
        if not values:
            raise Mistake(
                f"`grids` must give at least one value of {name}'s `{argument}`, but it gives none."
            )


def _budget(
    seconds: float | None, oracle_calls: float | None, samples: float | None
) -> AbstractBudget:
    kinds: dict[str, Callable[[float], AbstractBudget]] = {
        kind.kind: kind for kind in (Seconds, OracleCalls, Samples)
    }
    amounts = {"seconds": seconds, "oracle_calls": oracle_calls, "samples": samples}
    wanted = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(wanted) != 1:
        both = (
            f"{' and '.join(wanted)} are given; give one of them." if wanted else "none is given."
        )
        raise Mistake(
            f"`seconds`, `oracle_calls` or `samples` must say what a run may spend, but {both}"
        )
    ((name, amount),) = wanted.items()
    errors.number(name, amount, above=0)
    return kinds[name](float(amount))


def _candidates(
    task: Task, name: str, count: int, grid: Mapping[str, Sequence[Any]] | None
) -> list[Setting]:
    factory = getattr(solvers, name)
    base = task.settings.get(name, {})
    if grid is None:
        return around(factory, SPACES[name], base, count)
    return [{**base, **dict(zip(grid, values, strict=True))} for values in product(*grid.values())]


def _written(
    out: Path,
    plan: Plan,
    task: Task,
    found: list[Found],
    references: list[dict[str, Any]],
    command: str,
) -> Comparison:
    """Write all that was found, the best method first."""
    for of in found:
        for place, entry in of.runs.items():
            record.write(out / place, entry.summary, entry.arrays)
    sign = -1.0 if task.largest else 1.0

    def rank(row: Row) -> float:
        reached = row.metrics.get(task.tuned_by)
        return math.inf if reached is None else sign * reached["mean"]

    ranked = sorted(rows(found, task.tuned_by, task.largest), key=rank)
    summary = {
        "kind": "comparison",
        "format": 1,
        "task": task.name,
        "data": task.data,
        "options": {
            **{
                name: value if isinstance(value, str | int | float | None) else show(value)
                for name, value in plan.recipe.arguments.items()
            },
            **task.options,  # with what it takes where nothing is given
        },
        "metric": task.tuned_by,
        "largest": task.largest,
        "budget": {"kind": plan.budget.kind, "amount": plan.budget.amount},
        "tuning_seeds": list(plan.tuning_seeds),
        "ladder": [rung._asdict() for rung in ladder(max(of.tried for of in found))],
        "seeds": list(plan.seeds),
        "command": command,
        "environment": _environment(found, plan),
        "references": references,
        "methods": [row._asdict() for row in ranked],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(summary, indent=2) + "\n")
    return Comparison(out, summary, ranked)


def _environment(found: list[Found], plan: Plan) -> dict[str, Any]:
    """What the reported runs were made with, which may be another machine than this one."""
    made = [entry.summary["environment"] for of in found for entry in of.runs.values()]
    here: dict[str, Any] = {**record.environment(), "workers": processes(plan.workers)}
    values = {name: list(dict.fromkeys(run[name] for run in made)) for name in here}
    told = {
        name: of[0] if len(of) == 1 else ", ".join(map(str, of))
        for name, of in values.items()
        if of
    }
    return {**here, **told, "date": max((run["date"] for run in made), default=here["date"])}

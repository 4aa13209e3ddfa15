"""What `biadam run` and `biadam compare` wrote, in one form for the page and the figures."""

import json
import statistics
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from .. import record
from ..errors import Mistake
from ..record import Record


@dataclass(frozen=True)
class Method:
    """A method of a comparison with those of its runs that can be read."""

    name: str
    group: str  # "paper" or "other"; empty for single runs
    row: dict[str, Any]  # what comparison.json says of it
    runs: tuple[Record, ...]

    @property
    def finished(self) -> tuple[Record, ...]:
        """The runs that did not diverge."""
        return tuple(run for run in self.runs if run.summary.get("outcome") != "diverged")

    def mean(self, metric: str) -> float | None:
        """Of a metric over the seeds, if it is known."""
        return finite(((self.row.get("metrics") or {}).get(metric) or {}).get("mean"))


@dataclass(frozen=True)
class Comparison:
    """Methods on one task with the same data."""

    place: Path
    summary: dict[str, Any]  # comparison.json, or the same fields made from single runs
    methods: tuple[Method, ...]

    @property
    def tuned(self) -> bool:
        """Whether this is a comparison, rather than single runs laid side by side."""
        return self.summary["kind"] == "comparison"

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.summary.get("task") or "a task")

    @property
    def metric(self) -> str:
        """What the methods were tuned by."""
        return str(self.summary.get("metric") or "")

    @property
    def references(self) -> list[dict[str, Any]]:
        """Answers that no method of the comparison gave, with their metrics."""
        return list(self.summary.get("references") or [])

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, the one tuned by first."""
        rows = [method.row for method in self.methods] + self.references
        names = dict.fromkeys(name for row in rows for name in row.get("metrics") or {})
        return sorted(names, key=lambda name: name != self.metric)

    @property
    def curves(self) -> list[str]:
        """The names of what was followed during the runs, the metric tuned by first."""
        arrays = (name for m in self.methods for run in m.runs for name in run.arrays)
        names = dict.fromkeys(n.removeprefix("curve_") for n in arrays if n.startswith("curve_"))
        return sorted(names, key=lambda name: name != self.metric)

    def largest(self, metric: str) -> bool:
        """Whether more of a metric is better."""
        if metric == self.metric:
            return bool(self.summary.get("largest"))
        return any(word in metric for word in ("accuracy", "auc", "f1"))

    def ranked(self, methods: Iterable[Method]) -> list[Method]:
        """The best first, those without a number last."""
        sign = -1.0 if self.largest(self.metric) else 1.0

        def key(method: Method) -> tuple[bool, float]:
            mean = method.mean(self.metric)
            return mean is None, sign * (mean or 0.0)

        return sorted(methods, key=key)

    @property
    def best(self) -> Method | None:
        """The method that reached most, if any did."""
        known = [m for m in self.methods if m.finished and m.mean(self.metric) is not None]
        return next(iter(self.ranked(known)), None)


def read(directories: Sequence[Path]) -> list[Comparison]:
    """Read folders; runs of one task and data that stand alone become one comparison."""
    if not directories:
        raise Mistake("a report needs at least one folder that a run or a comparison wrote.")
    made: dict[Any, Comparison | list[Record]] = {}
    for directory in dict.fromkeys(directories):
        if (directory / "comparison.json").is_file():
            made[directory] = _comparison(directory)
        elif (directory / "run.json").is_file():
            run = _run(directory)
            if run is None:
                raise Mistake(f"the run in {directory} can't be read: make it again.")
            told = (run.summary.get(name) for name in ("task", "data", "variant", "options"))
            runs = made.setdefault(json.dumps([*told], sort_keys=True), [])
            assert isinstance(runs, list)
            runs.append(run)
        else:
            raise _no_runs(directory)
    return [_side_by_side(m) if isinstance(m, list) else m for m in made.values()]


def titles(comparisons: Sequence[Comparison]) -> list[str]:
    """A short name for each: its data, and the options that it does not share with all others."""
    options = [c.summary.get("options") or {} for c in comparisons]
    names = dict.fromkeys(name for of in options for name in of)
    told = [n for n in names if n == "noise" or len({str(of.get(n)) for of in options}) > 1]
    several = len({c.task for c in comparisons}) > 1
    short = []
    for comparison, of in zip(comparisons, options, strict=True):
        data = comparison.summary.get("data")
        parts = [comparison.task] if several or not data else []
        parts += [str(data)] if data else []
        parts += [f"{n.replace('_', ' ')} {of[n]}" for n in told if of.get(n) not in (None, data)]
        short.append(", ".join(parts))
    return [
        f"{name} ({c.place.name})" if short.count(name) > 1 else name
        for name, c in zip(short, comparisons, strict=True)
    ]


def marks(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """A letter for every reference that has a line among the curves."""
    names = dict.fromkeys(
        str(reference.get("name"))
        for comparison in comparisons
        for reference in comparison.references
        if set(reference.get("metrics") or {}) & set(comparison.curves)
    )
    return dict(zip(names, ascii_lowercase, strict=False))


def finite(value: Any) -> float | None:
    """A number that can be drawn, or nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and np.isfinite(value) else None


def _no_runs(directory: Path) -> Mistake:
    if not directory.is_dir():
        return Mistake(f"there is no folder {directory}: name one that a run or comparison wrote.")
    within = sorted(p.parent for p in directory.glob("*/*.json"))
    hint = f"those inside it do, such as {within[0]}" if within else "name one that does"
    return Mistake(f"{directory} holds no run.json and no comparison.json: {hint}.")


def _run(folder: Path) -> Record | None:
    try:
        return record.load(folder)
    except (ValueError, OSError, zipfile.BadZipFile):
        return None


def _comparison(directory: Path) -> Comparison:
    file = directory / "comparison.json"
    try:
        summary = json.loads(file.read_text())
        methods = tuple(_method(directory, row) for row in summary.get("methods") or [])
    except (ValueError, AttributeError, TypeError) as error:
        raise Mistake(f"{file} is no comparison that can be read: make it again.") from error
    named = any(method.row.get("runs") for method in methods)
    if not methods or (named and not any(method.runs for method in methods)):
        raise Mistake(f"{directory} holds no finished run: let its comparison end first.")
    return Comparison(directory, {**summary, "kind": "comparison"}, methods)


def _method(directory: Path, row: dict[str, Any]) -> Method:
    found = (_run(directory / folder) for folder in row.get("runs") or [])
    runs = tuple(run for run in found if run is not None)
    return Method(str(row.get("solver")), str(row.get("group") or ""), row, runs)


def _side_by_side(runs: list[Record]) -> Comparison:
    """Single runs: those that differ by no more than their seed are one method."""
    alike: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        setting = json.dumps(run.summary.get("settings") or {}, sort_keys=True)
        alike.setdefault((str(run.summary.get("solver")), setting), []).append(run)
    solvers = [solver for solver, _ in alike]
    methods = tuple(
        Method(
            f"{solver} {_told(setting)}" if solvers.count(solver) > 1 else solver,
            "",
            _row(of),
            tuple(of),
        )
        for (solver, setting), of in alike.items()
    )
    first = runs[0]
    followed = [name.removeprefix("curve_") for name in first.arrays if name.startswith("curve_")]
    metric = followed[0] if followed else next(iter(first.summary.get("metrics") or {}), "")
    summary = {
        "kind": "runs",
        "task": first.summary.get("task"),
        "data": first.summary.get("data"),
        "options": first.summary.get("options") or {},
        "metric": metric,
        "largest": "accuracy" in metric,
        "seeds": sorted({run.summary.get("seed", 0) for run in runs}),
        "environment": first.summary.get("environment") or {},
        "references": _references(runs),
    }
    return Comparison(first.directory, summary, methods)


def _references(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """Those that runs were asked for, on average; they are the same for all runs of a seed."""
    seeds = {run.summary.get("seed"): run.summary.get("references") or [] for run in runs}
    columns: dict[str, dict[str, list[float]]] = {}
    for reference in (of for row in seeds.values() for of in row):
        for metric, value in (reference.get("metrics") or {}).items():
            columns.setdefault(str(reference.get("name")), {}).setdefault(metric, []).append(value)
    return [
        {"name": name, "metrics": {m: statistics.fmean(of) for m, of in metrics.items()}}
        for name, metrics in columns.items()
    ]


def _told(setting: str) -> str:
    return ", ".join(f"{name}={value}" for name, value in json.loads(setting).items()) or "default"


def _row(runs: Sequence[Record]) -> dict[str, Any]:
    """The row that comparison.json would have for runs of one method."""
    fine = [run.summary for run in runs if run.summary.get("outcome") != "diverged"]
    names = dict.fromkeys(name for summary in fine for name in summary.get("metrics") or {})
    metrics = {name: _spread([finite(s["metrics"].get(name)) for s in fine]) for name in names}
    seconds = [s for s in (finite(summary.get("seconds")) for summary in fine) if s is not None]
    paces = [p for p in (finite(s.get("steps_per_second")) for s in fine) if p is not None]
    compiling = [c for c in (finite(s.summary.get("compile_seconds")) for s in runs) if c]
    return {
        "setting": runs[0].summary.get("settings") or {},
        "metrics": metrics,
        "seconds": statistics.fmean(seconds) if seconds else None,
        "steps_per_second": statistics.fmean(paces) if paces else None,
        "compile_seconds": sum(compiling) if compiling else None,
        "diverged": len(runs) - len(fine),
        "runs": [str(run.directory) for run in runs],
    }


def _spread(values: list[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "low": None, "high": None, "values": values}
    return {
        "mean": statistics.fmean(known),
        "low": min(known),
        "high": max(known),
        "values": values,
    }

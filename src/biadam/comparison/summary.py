"""What a comparison found: a row for each method, in numbers that can be written down."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .cache import Entry

CONFIDENCE = 0.95
LEVELS = (0.5, 0.2, 0.05)  # of the way from the best result to the start, for the targets


class Row(NamedTuple):
    """A method: how it was set, and what it reached."""

    solver: str
    group: str  # "paper" or "other"
    setting: dict[str, str]  # the chosen one
    tried: int  # settings
    diverged_settings: int  # of those tried, on a seed at least
    refused: str  # why the method does not take this task, if it does not
    note: str
    metrics: dict[str, dict[str, Any]]  # mean, low, high and values, over the runs that ended well
    steps_per_second: float | None
    seconds: float  # of stepping, in all its runs, tuning included
    compile_seconds: float  # likewise
    other_seconds: float  # likewise, of evaluation above all
    diverged: int  # runs of the chosen setting that did
    targets: list[dict[str, float | None]]  # value, seconds and oracle calls until it was reached
    equal_calls: dict[str, Any]  # the metric after as many oracle calls as all methods spent
    runs: list[str]  # their folders


class Found(NamedTuple):
    """What became of a method, before it is summed up."""

    solver: str
    group: str
    setting: dict[str, str]
    tried: int
    diverged_settings: int
    refused: str
    note: str
    trials: list[Entry]  # all of them
    runs: dict[str, Entry]  # those with the chosen setting, by folder


def rows(found: Sequence[Found], metric: str, largest: bool) -> list[Row]:
    """A row for each method, with targets that are common to all."""
    values, calls = _targets(found, metric, largest), _common_calls(found)
    return [_row(of, metric, largest, values, calls) for of in found]


def interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean with the ends of its t-interval; they are None for a single value."""
    mean = statistics.fmean(values)
    half = None
    if len(values) > 1:
        from scipy.stats import t

        spread = statistics.stdev(values) / math.sqrt(len(values))
        half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread
    ends = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": ends[0], "high": ends[1], "values": list(values)}


def _row(of: Found, metric: str, largest: bool, values: Sequence[float], calls: float) -> Row:
    fine = _fine(of)
    columns: dict[str, list[Any]] = {}
    for run in fine:
        for name, value in run.summary["metrics"].items():
            columns.setdefault(name, []).append(value)
    paces = [run.summary["steps_per_second"] for run in fine]
    total = lambda name: sum(trial.summary.get(name, 0.0) for trial in of.trials)
    return Row(
        of.solver,
        of.group,
        of.setting,
        of.tried,
        of.diverged_settings,
        of.refused,
        of.note,
        {name: interval(column) for name, column in columns.items() if None not in column},
        statistics.fmean(paces) if paces and None not in paces else None,
        total("seconds"),
        total("compile_seconds"),
        total("other_seconds"),
        len(of.runs) - len(fine),
        [_reached(of, metric, largest, value) for value in values],
        _after(fine, metric, calls),
        list(of.runs),
    )


def _fine(of: Found) -> list[Entry]:
    return [run for run in of.runs.values() if run.summary["outcome"] == "ok"]


def _targets(found: Sequence[Found], metric: str, largest: bool) -> list[float]:
    """Round values between where all start and the best that one reached."""
    curves = [run.arrays[f"curve_{metric}"] for of in found for run in _fine(of)]
    if not curves:
        return []
    start = statistics.fmean(float(curve[0]) for curve in curves)
    pick = max if largest else min
    best = pick(float(pick(curve)) for curve in curves)
    way = start - best
    if not math.isfinite(way) or way == 0:
        return []
    places = 2 - math.floor(math.log10(abs(way)))  # three digits of the way, not of the value
    return list(dict.fromkeys(round(best + level * way, places) for level in LEVELS))


def _common_calls(found: Sequence[Found]) -> float:
    """What the run that spent least did: every curve goes that far."""
    totals = [float(run.arrays["calls"][-1].sum()) for of in found for run in _fine(of)]
    return min(totals, default=0.0)


def _after(runs: Sequence[Entry], metric: str, calls: float) -> dict[str, Any]:
    """The metric when so many oracle calls were spent, on the line between two evaluations.

    Nothing is told of a method whose runs do not all have numbers on both sides.
    """
    values = []
    for run in runs:
        spent, curve = run.arrays["calls"].sum(axis=1), run.arrays[f"curve_{metric}"]
        if calls < spent[0] or not np.isfinite(curve).all():
            return {}
        values.append(float(np.interp(calls, spent, curve)))
    return {"calls": calls, **interval(values)} if values else {}


def _reached(of: Found, metric: str, largest: bool, value: float) -> dict[str, float | None]:
    """When the runs got there, on average; None unless all of them did."""
    seconds, calls = [], []
    for run in of.runs.values():
        curve = run.arrays[f"curve_{metric}"]
        there = np.flatnonzero(curve >= value if largest else curve <= value)
        if not len(there):
            return {"value": value, "seconds": None, "oracle_calls": None}
        seconds.append(float(run.arrays["clock"][there[0]]))
        calls.append(float(run.arrays["calls"][there[0]].sum()))
    if not seconds:
        return {"value": value, "seconds": None, "oracle_calls": None}
    mean = statistics.fmean
    return {"value": value, "seconds": mean(seconds), "oracle_calls": mean(calls)}

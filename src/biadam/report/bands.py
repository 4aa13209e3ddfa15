"""Curves over seeds: their mean, and how far the seeds lie apart."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..record import Record

# What a curve can be drawn against.
AXES = {"seconds": "seconds of stepping", "steps": "steps", "calls": "oracle calls"}

MOST_POINTS = 80  # a line on a screen shows no more


class Band(NamedTuple):
    """A mean over runs with the least and the largest of them."""

    at: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def progress(run: Record, axis: str) -> np.ndarray:
    """How far a run was at each evaluation."""
    if axis == "calls":
        return run.arrays["calls"].sum(axis=1).astype(float)
    return run.arrays["clock" if axis == "seconds" else "at"].astype(float)


def band(runs: Sequence[Record], curve: str, axis: str) -> Band | None:
    """Follow a curve as far as all runs go; between evaluations it is a straight line."""
    lines = []
    for run in runs:
        values = run.arrays.get(f"curve_{curve}")
        if values is not None and np.isfinite(values).any():
            known = np.isfinite(values)
            lines.append((progress(run, axis)[known], values[known].astype(float)))
    if not lines:
        return None
    begin, end = max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines)
    if begin > end:
        return None
    at = np.unique(np.concatenate([at for at, _ in lines]).clip(begin, end))
    at = at[np.linspace(0, len(at) - 1, min(len(at), MOST_POINTS)).round().astype(int)]
    values = np.stack([np.interp(at, *line) for line in lines])
    return Band(at, values.mean(0), values.min(0), values.max(0))

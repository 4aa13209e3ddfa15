"""What a run leaves behind: a folder with `run.json`, for people, and `arrays.npz`, for reports."""

import datetime
import json
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import __version__
from .errors import Mistake

if TYPE_CHECKING:  # a report reads runs without jax
    from .driver import Result
    from .tasks import Task


@dataclass(frozen=True)
class Record:
    """A run, as read back."""

    directory: Path
    summary: dict[str, Any]
    arrays: dict[str, np.ndarray]


def save(
    directory: Path,
    task: "Task",
    solver: str,
    settings: dict[str, str],
    seed: int,
    result: "Result",
) -> Record:
    """Judge a result by its task and write both down."""
    return write(directory, *judged(task, solver, settings, seed, result))


def judged(
    task: "Task", solver: str, settings: dict[str, str], seed: int, result: "Result"
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The summary and the arrays of a run, judged by its task."""
    metrics = task.evaluate(result.x, result.y)
    residual = float(result.info["residual"][-1])
    summary = {
        "task": task.name,
        "data": task.data,
        "variant": task.variant,
        "options": dict(task.options),
        "solver": solver,
        "settings": settings,
        "seed": seed,
        "steps": result.steps,
        "outcome": str(result.outcome),
        "message": result.message,
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "steps_per_second": result.steps / result.seconds if result.seconds else None,
        "oracle_calls": result.oracle_calls,
        "residual": residual if math.isfinite(residual) else None,  # of the linear system, at last
        "environment": environment(),
    }
    curves = {f"curve_{name}": values for name, values in result.metrics.items()}
    info = {f"info_{name}": values for name, values in result.info.items()}
    arrays = {
        "at": result.at,
        "clock": result.clock,
        "calls": result.calls,
        **curves,
        **info,
        **task.keep(result.x, result.y),
    }
    return summary, arrays


def write(directory: Path, summary: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    """Write a run into a folder of its own."""
    summary = {**summary, "directory": str(directory)}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(summary, indent=2) + "\n")
    np.savez_compressed(directory / "arrays.npz", allow_pickle=False, **arrays)
    return Record(directory, summary, arrays)


def environment() -> dict[str, str | int]:
    """What a run was made with."""
    import jax

    return {
        "biadam": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "system": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """The model's name, which only Linux tells in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def load(directory: Path) -> Record:
    """Read a run back."""
    try:
        summary = json.loads((directory / "run.json").read_text())
        with np.load(directory / "arrays.npz") as file:
            return Record(directory, summary, dict(file))
    except FileNotFoundError as error:
        raise Mistake(
            f"{directory} holds no finished run: {Path(error.filename).name} is missing."
        ) from error

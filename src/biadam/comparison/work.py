"""What a process does: the trials of one method, one after the other, in one compiled program."""

import dataclasses
import math
import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from jaxtyping import PyTree

from .. import record, solvers
from ..data import Minibatches
from ..driver import Outcome, Result, run
from ..errors import Mistake
from ..solvers import METHODS
from ..stationarity import inner_solution
from ..tasks import Task
from ..tasks.base import Metric
from .budget import AbstractBudget
from .cache import Cache, Entry
from .recipe import Recipe

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

Settle = Callable[[PyTree, PyTree], PyTree]  # of x and a y, y*(x)


class Trial(NamedTuple):
    """A run that is to be made."""

    solver: str
    given: dict[str, Any]  # arguments of its factory
    shown: dict[str, str]  # the same as text
    seed: int
    budget: AbstractBudget
    key: str  # names the trial in the cache


class Job(NamedTuple):
    """Trials of one method for one process."""

    recipe: Recipe
    trials: list[Trial]
    cache: Cache
    home: str  # of the comparison
    numerics: dict[str, Any]  # likewise
    workers: int  # beside which this one works


def here() -> str:
    """Names this process."""
    return f"{platform.node()} {os.getpid()}"


def tune(job: Job) -> list[Entry]:
    """Score settings by the task's validation metric; the test split is out of reach."""
    return _each(job, partial(_or_refusal, _tuned))


def report(job: Job) -> list[Entry]:
    """Run chosen settings, and judge each result once."""
    return _each(job, partial(_or_refusal, partial(_reported, job.workers)))


def refer(job: Job) -> list[Entry]:
    """What the task has to stand beside the results."""
    return _each(job, _referred)


def alone(programs: Path) -> None:
    """Give this process one thread to compute on, and a folder of compiled programs.

    Only then can runs side by side be compared by the clock. Has to come before JAX's first array.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if ONE_THREAD not in given:
        os.environ["XLA_FLAGS"] = f"{given} {ONE_THREAD}".strip()
    os.environ["PJRT_NPROC"] = "1"  # the size of JAX's own pool, which the flags do not reach
    jax.config.update("jax_compilation_cache_dir", str(programs.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def judge_at(task: Task, solver: str, tolerance: float | None = None) -> Settle | None:
    """Where to judge a method whose y is not y*(x): there, if all the inner data is at hand."""
    source = task.source
    if METHODS[solver].penalised and isinstance(source, Minibatches):
        return lambda x, y: inner_solution(task.problem, x, y, source.inner, tolerance=tolerance)
    return None


ROUGH = 1e-2  # of y*(x) along a curve: steps shrink quadratically, so that 1e-4 of y is left


def _each(job: Job, one: Callable[[Task, Trial], Entry]) -> list[Entry]:
    if here() != job.home:
        alone(job.cache.folder / "programs")
        for name, value in job.numerics.items():
            jax.config.update(name, value)
    found = []
    for trial in job.trials:
        entry = one(job.recipe.task(trial.seed), trial)
        if lasting(entry):
            job.cache.write(trial.key, entry)
        found.append(entry)
    return found


def lasting(entry: Entry) -> bool:
    """Whether to keep it: what refuses a method may be gone tomorrow."""
    return "refused" not in entry.summary


def _or_refusal(one: Callable[[Task, Trial], Entry], task: Task, trial: Trial) -> Entry:
    """What a method says against a setting or a task is a result too."""
    try:
        return one(task, trial)
    except Mistake as mistake:
        return Entry({"refused": str(mistake)}, {})


def _tuned(task: Task, trial: Trial) -> Entry:
    closed = dataclasses.replace(task, evaluate=_closed, keep=_closed, references=_closed)
    result, other = _run(closed, trial, {})
    value = math.nan
    if result.outcome is Outcome.OK:
        y = _settled(closed, trial.solver, result).y
        value = float(task.curves[task.tuned_by](result.x, y))
    summary = {
        "score": value if math.isfinite(value) else None,
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "other_seconds": other,
        "steps": result.steps,
    }
    return Entry(summary, {})


def _reported(workers: int, task: Task, trial: Trial) -> Entry:
    settle = judge_at(task, trial.solver, ROUGH)
    curves = dict(task.curves)
    if settle is not None:
        curves = {name: _settling(curve, settle) for name, curve in curves.items()}
    result, other = _run(task, trial, curves)
    begun = time.perf_counter()
    final = _settled(task, trial.solver, result)
    summary, arrays = record.judged(task, trial.solver, trial.shown, trial.seed, final)
    summary["environment"]["workers"] = workers
    summary["other_seconds"] = other + time.perf_counter() - begun
    return Entry(summary, arrays)


def _referred(task: Task, trial: Trial) -> Entry:
    return Entry({"references": [list(reference) for reference in task.references()]}, {})


def _run(task: Task, trial: Trial, curves: dict[str, Any]) -> tuple[Result, float]:
    """Run a trial; also the seconds that went neither into steps nor into compiling."""
    begun = time.perf_counter()
    solver = task.build(trial.solver, getattr(solvers, trial.solver), **trial.given)
    limits = trial.budget.limits(task, trial.solver, solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what diverges is counted
        result = run(
            task.problem,
            solver,
            task.source_for(trial.solver),
            task.x0,
            task.start_for(trial.solver),
            steps=limits.steps,
            seconds=limits.seconds,
            key=jax.random.key(trial.seed),
            metrics=curves,
            evaluations=task.evaluations,
            progress=False,
        )
    spent = time.perf_counter() - begun
    return result, spent - result.seconds - result.compile_seconds


def _settled(task: Task, solver: str, result: Result) -> Result:
    settle = judge_at(task, solver)
    return result if settle is None else dataclasses.replace(result, y=settle(result.x, result.y))


def _settling(curve: Metric, settle: Settle) -> Metric:
    """The curve at y*(x), which is searched for from where it was found last."""
    near: list[PyTree] = []

    def settled(x: PyTree, y: PyTree) -> Any:
        near[:] = [settle(x, near[0] if near else y)]
        return curve(x, near[0])

    return settled


def _closed(*point: PyTree) -> NoReturn:
    raise PermissionError("the test split is closed while settings are chosen")

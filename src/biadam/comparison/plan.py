"""What all trials of a comparison share, and how they are spread over processes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from .. import __version__
from . import work
from .budget import AbstractBudget
from .cache import Cache, Entry, key_of, source_digest
from .fingerprint import digest
from .recipe import Recipe, numerics
from .work import Job, Trial

Setting = dict[str, Any]  # arguments of a factory


class Plan:
    """A task, a budget, seeds of both kinds, and where finished trials are kept."""

    def __init__(
        self,
        recipe: Recipe,
        budget: AbstractBudget,
        seeds: range,
        tuning_seeds: range,
        cache: Cache,
        workers: int | None,
    ):
        self.recipe, self.budget = recipe, budget
        self.seeds, self.tuning_seeds = seeds, tuning_seeds
        self.cache, self.workers = cache, workers
        first = recipe.task(tuning_seeds[0])
        self.world = {
            "recipe": recipe.digest,
            "data": digest(first.source, first.x0, first.y0),
            "version": __version__,
            "source": source_digest(),
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "numerics": numerics(),
        }

    def trial(
        self,
        purpose: str,
        solver: str,
        given: Setting,
        shown: Mapping[str, str],
        seed: int,
        budget: AbstractBudget,
    ) -> Trial:
        """A trial under the key of all that decides it, and of the text it is known by."""
        setting = {"shown": shown, "given": digest(sorted(given.items()))}
        what = {"purpose": purpose, "solver": solver, "setting": setting, "seed": seed}
        spent = {"kind": budget.kind, "amount": budget.amount}
        return Trial(solver, given, dict(shown), seed, budget, key_of(self.world | what | spent))

    def made(
        self, act: Callable[[Job], list[Entry]], trials: Sequence[Trial]
    ) -> Iterator[tuple[Trial, Entry]]:
        """Every trial with what it left, in the order in which they end, those kept first."""
        missing: dict[str, list[Trial]] = {}
        for trial in trials:
            entry = self.cache.read(trial.key)
            if entry is not None:
                yield trial, entry
            else:
                missing.setdefault(trial.solver, []).append(trial)
        if not missing:
            return
        from joblib import Parallel, delayed

        workers = processes(self.workers)
        # A method stays in one process where that leaves no core idle, and is compiled once.
        pieces = math.ceil(2 * workers / len(missing)) if len(missing) < 2 * workers else 1
        parts = [
            part
            for waiting in missing.values()
            for part in (waiting[i::pieces] for i in range(pieces))
            if part
        ]
        shared = (self.cache, work.here(), numerics(), workers)
        calls = (
            delayed(_act)(act, Job(self.recipe, part, *shared), number)
            for number, part in enumerate(parts)
        )
        try:
            parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
        except ValueError:  # not every backend hands out results as they come
            parallel = Parallel(n_jobs=workers, batch_size=1)
        for number, entries in parallel(calls):
            for trial, entry in zip(parts[number], entries, strict=True):
                if work.lasting(entry) and not self.cache.has(trial.key):
                    self.cache.write(trial.key, entry)  # made where this disk can't be seen
                yield trial, entry


def _act(act: Callable[[Job], list[Entry]], job: Job, number: int) -> tuple[int, list[Entry]]:
    return number, act(job)


def processes(wanted: int | None) -> int:
    """As many as asked for, or as the joblib context has, or a process for each core."""
    if wanted is not None:
        return wanted
    if jax.default_backend() != "cpu":
        return 1
    import joblib

    context = joblib.effective_n_jobs(None)
    return context if context > 1 else joblib.cpu_count()

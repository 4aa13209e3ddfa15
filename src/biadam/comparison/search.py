"""The methods of a comparison on their way from candidates to reported runs."""

import math
from collections.abc import Sequence
from typing import Any

from ..settings import show
from ..solvers import METHODS
from ..tasks import Task
from . import halving, work
from .board import Board
from .budget import AbstractBudget
from .cache import Entry
from .fingerprint import digest
from .groups import PAPER
from .plan import Plan, Setting
from .summary import Found, interval
from .work import Trial


class Search:
    """Tunes, then reports."""

    def __init__(self, plan: Plan, task: Task, candidates: dict[str, list[Setting]], board: Board):
        self.plan, self.task, self.board = plan, task, board
        self.candidates = candidates
        self.alive = {name: list(range(len(settings))) for name, settings in candidates.items()}
        self.trials: dict[str, list[Entry]] = {name: [] for name in candidates}
        self.diverged: dict[str, set[int]] = {name: set() for name in candidates}
        self.shown = {name: labels(settings) for name, settings in candidates.items()}
        self.refusals: dict[str, dict[int, str]] = {name: {} for name in candidates}

    def tune(self) -> None:
        """Halve the settings of all methods, rung by rung, until each has its best."""
        ladders = {name: halving.ladder(len(of)) for name, of in self.candidates.items()}
        for name, rungs in ladders.items():
            if len(self.candidates[name]) == 1:
                rungs.clear()
        for number in range(max(map(len, ladders.values()))):
            now = {name: rungs[number] for name, rungs in ladders.items() if number < len(rungs)}
            after = {
                name: rungs[number + 1].settings if number + 1 < len(rungs) else 1
                for name, rungs in ladders.items()
            }
            self._rung(number, now, after)

    def _rung(self, number: int, now: dict[str, halving.Rung], after: dict[str, int]) -> None:
        """Run what is alive for a part of the budget, and keep the best."""
        places: dict[str, tuple[str, int]] = {}
        trials = []
        for name, rung in now.items():
            for index in self.alive[name]:
                for seed in self.plan.tuning_seeds:
                    trial = self._trial(
                        "tuning", name, index, seed, self.plan.budget.share(rung.part)
                    )
                    places[trial.key] = (name, index)
                    trials.append(trial)
        # By setting and seed: runs end in any order, and what is chosen must not depend on it.
        scores: dict[str, dict[int, dict[int, float]]] = {name: {} for name in now}
        stage = f"tuning, round {number + 1}"
        totals = {name: sum(of == name for of, _ in places.values()) for name in now}
        for name, total in totals.items():
            if total:
                self.board.tell(name, stage, 0, total, None)
        done = dict.fromkeys(now, 0)
        for trial, entry in self.plan.made(work.tune, trials):
            name, index = places[trial.key]
            self.trials[name].append(entry)
            done[name] += 1
            score = entry.summary.get("score")
            if "refused" in entry.summary:
                self.refusals[name][index] = entry.summary["refused"]
            elif score is None:
                self.diverged[name].add(index)
            scores[name].setdefault(index, {})[trial.seed] = self._loss(score)
            best = min(map(_mean, scores[name].values()))
            told = self._loss(best) if math.isfinite(best) else None
            self.board.tell(name, stage, done[name], totals[name], told)
        for name in now:
            order = sorted(scores[name])
            means = [_mean(scores[name][index]) for index in order]
            self.alive[name] = [order[i] for i in halving.best(means, after[name])]

    def _trial(
        self, purpose: str, name: str, index: int, seed: int, budget: AbstractBudget
    ) -> Trial:
        given, shown = self.candidates[name][index], self.shown[name][index]
        return self.plan.trial(purpose, name, given, shown, seed, budget)

    def _loss(self, score: float | None) -> float:
        """A score as something to make small, and back."""
        if score is None:
            return math.inf
        return -score if self.task.largest else score

    def report(self) -> list[Found]:
        """Run each method's chosen setting on the seeds for the record."""
        trials = []
        for name in self.candidates:
            for index in self.alive[name][:1]:
                trials += [
                    self._trial("reporting", name, index, seed, self.plan.budget)
                    for seed in self.plan.seeds
                ]
        runs: dict[str, dict[str, Entry]] = {name: {} for name in self.candidates}
        total = len(self.plan.seeds)
        for name in dict.fromkeys(trial.solver for trial in trials):
            self.board.tell(name, "reporting", 0, total, None)
        for trial, entry in self.plan.made(work.report, trials):
            name = trial.solver
            self.trials[name].append(entry)
            if "refused" in entry.summary:
                self.refusals[name][self.alive[name][0]] = entry.summary["refused"]
                continue
            runs[name][f"{name}/seed{trial.seed}"] = entry
            reached = entry.summary["metrics"].get(self.task.tuned_by)
            self.board.tell(name, "reporting", len(runs[name]), total, reached)
        return [self._found(name, runs[name]) for name in self.candidates]

    def _found(self, name: str, runs: dict[str, Entry]) -> Found:
        refused = self._refused(name, runs)
        return Found(
            name,
            "paper" if name in PAPER else "other",
            self.shown[name][self.alive[name][0]] if self.alive[name] and not refused else {},
            len(self.candidates[name]),
            len(self.diverged[name]),
            refused,
            "" if refused else self._note(name),
            self.trials[name],
            dict(sorted(runs.items(), key=lambda pair: int(pair[0].rpartition("seed")[2]))),
        )

    def _refused(self, name: str, runs: dict[str, Entry]) -> str:
        """Why a method does not take the task: none of its settings does."""
        said = self.refusals[name]
        whole = len(said) == len(self.candidates[name]) and not runs
        return next(iter(said.values())) if whole else ""

    def _note(self, name: str) -> str:
        said, notes = self.refusals[name], []
        if said:
            notes.append(
                f"{len(said)} of {len(self.candidates[name])} settings were refused: "
                f"{said[min(said)]}"
            )
        if not self.alive[name]:
            notes.append("every other setting diverged" if said else "every setting diverged")
        elif METHODS[name].penalised and work.judge_at(self.task, name) is None:
            notes.append(
                "judged at its own y, which is no minimiser of the inner loss and flatters it"
            )
        elif METHODS[name].penalised:
            notes.append("its y is no minimiser of the inner loss; judged at y*(x), solved for")
        return "; ".join(notes)

    def references(self) -> list[dict[str, Any]]:
        """The task's references, their metrics averaged over the reported seeds."""
        trials = [
            self.plan.trial("references", "", {}, {}, seed, self.plan.budget)
            for seed in self.plan.seeds
        ]
        by_seed: dict[int, Entry] = {}
        self.board.tell("references", "reporting", 0, len(trials), None)
        for trial, entry in self.plan.made(work.refer, trials):
            by_seed[trial.seed] = entry
            self.board.tell("references", "reporting", len(by_seed), len(trials), None)
        columns: dict[str, dict[str, list[float]]] = {}
        for seed in sorted(by_seed):
            for name, metrics in by_seed[seed].summary["references"]:
                for metric, value in metrics.items():
                    columns.setdefault(name, {}).setdefault(metric, []).append(value)
        return [
            {"name": name, "metrics": {m: interval(v)["mean"] for m, v in metrics.items()}}
            for name, metrics in columns.items()
        ]


def labels(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """The settings as texts; values that differ but show alike, as functions do, get numbers."""
    alike: dict[tuple[str, str], dict[str, int]] = {}  # by argument and text, a number each
    found: list[dict[str, str]] = []
    for setting in settings:
        for name, value in setting.items():
            numbers = alike.setdefault((name, show(value)), {})
            numbers.setdefault(digest(value), len(numbers) + 1)
    for setting in settings:
        texts = {}
        for name, value in setting.items():
            text = show(value)
            numbers = alike[name, text]
            texts[name] = f"{text} #{numbers[digest(value)]}" if len(numbers) > 1 else text
        found.append(texts)
    return found


def _mean(by_seed: dict[int, float]) -> float:
    return sum(by_seed[seed] for seed in sorted(by_seed)) / len(by_seed)

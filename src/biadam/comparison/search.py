"""The methods of a comparison on their way from candidates to reported runs."""

import math
from typing import Any

from ..settings import show
from ..solvers import METHODS
from ..tasks import Task
from . import halving, work
from .board import Board
from .cache import Entry
from .groups import PAPER
from .plan import Plan, Setting
from .summary import Found, interval


class Search:
    """Tunes, then reports."""

    def __init__(self, plan: Plan, task: Task, candidates: dict[str, list[Setting]], board: Board):
        self.plan, self.task, self.board = plan, task, board
        self.candidates = candidates
        self.alive = {name: list(range(len(settings))) for name, settings in candidates.items()}
        self.trials: dict[str, list[Entry]] = {name: [] for name in candidates}
        self.diverged: dict[str, set[int]] = {name: set() for name in candidates}
        self.refused: dict[str, str] = {}

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
            for index in self.alive[name] if name not in self.refused else ():
                for seed in self.plan.tuning_seeds:
                    trial = self.plan.trial(
                        "tuning",
                        name,
                        self.candidates[name][index],
                        seed,
                        self.plan.budget.share(rung.part),
                    )
                    places[trial.key] = (name, index)
                    trials.append(trial)
        scores: dict[str, dict[int, list[float]]] = {name: {} for name in now}
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
            if "refused" in entry.summary:
                self.refused[name] = entry.summary["refused"]
            score = entry.summary.get("score")
            if score is None:
                self.diverged[name].add(index)
            scores[name].setdefault(index, []).append(self._loss(score))
            best = min(sum(of) / len(of) for of in scores[name].values())
            told = self._loss(best) if math.isfinite(best) else None
            self.board.tell(name, stage, done[name], totals[name], told)
        for name in now:
            means = [sum(of) / len(of) for of in scores[name].values()]
            order = list(scores[name])
            self.alive[name] = [order[i] for i in halving.best(means, after[name])]

    def _loss(self, score: float | None) -> float:
        """A score as something to make small, and back."""
        if score is None:
            return math.inf
        return -score if self.task.largest else score

    def report(self) -> list[Found]:
        """Run each method's chosen setting on the seeds for the record."""
        trials = []
        for name in self.candidates:
            if name not in self.refused and self.alive[name]:
                given = self.candidates[name][self.alive[name][0]]
                trials += [
                    self.plan.trial("reporting", name, given, seed, self.plan.budget)
                    for seed in self.plan.seeds
                ]
        runs: dict[str, dict[str, Entry]] = {name: {} for name in self.candidates}
        total = len(self.plan.seeds)
        for trial, entry in self.plan.made(work.report, trials):
            name = trial.solver
            self.trials[name].append(entry)
            if "refused" in entry.summary:
                self.refused[name] = entry.summary["refused"]
                continue
            runs[name][f"{name}/seed{trial.seed}"] = entry
            reached = entry.summary["metrics"].get(self.task.tuned_by)
            self.board.tell(name, "reporting", len(runs[name]), total, reached)
        return [self._found(name, runs[name]) for name in self.candidates]

    def _found(self, name: str, runs: dict[str, Entry]) -> Found:
        refused = self.refused.get(name, "")
        of = self.alive[name][:1]
        given = self.candidates[name][of[0]] if of and not refused else {}
        return Found(
            name,
            "paper" if name in PAPER else "other",
            {key: show(value) for key, value in given.items()},
            len(self.candidates[name]),
            0 if refused else len(self.diverged[name]),
            refused,
            self._note(name, bool(of)),
            self.trials[name],
            dict(sorted(runs.items(), key=lambda pair: int(pair[0].rpartition("seed")[2]))),
        )

    def _note(self, name: str, some: bool) -> str:
        if name in self.refused:
            return ""
        if not some:
            return "every setting diverged"
        if not METHODS[name].penalised:
            return ""
        if work.judge_at(self.task, name) is None:
            return "judged at its own y, which is no minimiser of the inner loss and flatters it"
        return "its y is no minimiser of the inner loss; judged at y*(x), solved for"

    def references(self) -> list[dict[str, Any]]:
        """The task's references, their metrics averaged over the reported seeds."""
        trials = [
            self.plan.trial("references", "", {}, seed, self.plan.budget)
            for seed in self.plan.seeds
        ]
        columns: dict[str, dict[str, list[float]]] = {}
        for _, entry in self.plan.made(work.refer, trials):
            for name, metrics in entry.summary["references"]:
                for metric, value in metrics.items():
                    columns.setdefault(name, {}).setdefault(metric, []).append(value)
        return [
            {"name": name, "metrics": {m: interval(v)["mean"] for m, v in metrics.items()}}
            for name, metrics in columns.items()
        ]

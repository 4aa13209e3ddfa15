"""What a task is to the driver and the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from ..data import AbstractSource
from ..errors import Mistake
from ..problem import Problem
from ..solver import AbstractSolver

Metric = Callable[[PyTree, PyTree], Any]


class Reference(NamedTuple):
    """A simple answer that every method must be seen beside."""

    name: str
    metrics: dict[str, float]  # those of `Task.evaluate` that it has


@dataclass(frozen=True)
class Task:
    """A problem with its data, where to start, and how to judge an answer."""

    name: str
    data: str  # the data set's name
    problem: Problem
    source: AbstractSource
    x0: PyTree
    y0: PyTree
    curves: Mapping[str, Metric]  # followed during a run; never touch the test data
    evaluate: Callable[[PyTree, PyTree], dict[str, float]]  # at the end of a run, once
    solver: str  # the recommended method's name
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method
    sources: Mapping[str, AbstractSource] = field(default_factory=dict)  # by method
    starts: Mapping[str, PyTree] = field(default_factory=dict)  # of y, by method
    refuses: Callable[[str], str] = lambda name: ""  # what about a method does not fit, if anything
    steps: int = 10_000
    variant: str = ""  # tells tasks of one name and data apart
    options: Mapping[str, Any] = field(default_factory=dict)  # words and numbers it was made from
    keep: Callable[[PyTree, PyTree], dict[str, np.ndarray]] = lambda x, y: {}  # for the report
    tuned_by: str = "validation_loss"  # of the curves: what a comparison chooses settings by
    largest: bool = False  # whether more of it is better
    references: Callable[[], list[Reference]] = list  # to stand beside the results
    evaluations: int = 50  # of the curves over a run, fewer where they are costly

    def build(self, name: str, make: Callable[..., AbstractSolver], **given: Any) -> AbstractSolver:
        """A method with this task's settings for it, unless given otherwise."""
        misfit = self.refuses(name)
        if misfit:
            raise Mistake(f"`{name}` does not take this task: it {misfit}.")
        return make(**{**self.settings.get(name, {}), **given})

    def source_for(self, name: str) -> AbstractSource:
        """The task's source, or the one that a method with other needs gets."""
        return self.sources.get(name, self.source)

    def start_for(self, name: str) -> PyTree:
        """Where y starts, by default and for a method with other needs."""
        return self.starts.get(name, self.y0)


def detection(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How well a score finds what is wrong: area under the ROC curve, and the best F1.

    Both are NaN where nothing, or everything, is wrong.
    """
    from sklearn.metrics import precision_recall_curve, roc_auc_score

    if wrong.all() or not wrong.any():
        return {"auc": float("nan"), "f1": float("nan")}
    precision, recall, _ = precision_recall_curve(wrong, suspicion)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return {"auc": float(roc_auc_score(wrong, suspicion)), "f1": float(f1.max())}

"""Comparisons: what makes them fair, and that nothing finished is done again."""

import functools
import io
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import joblib
import numpy as np
import optax
import pytest
from joblib.externals import loky

import biadam
from biadam import comparison, record, settings, solvers
from biadam.comparison import halving, work
from biadam.comparison.board import Board
from biadam.comparison.cache import Cache, Entry
from biadam.comparison.plan import Plan
from biadam.comparison.referee import TUNING
from biadam.comparison.search import Search, labels
from biadam.comparison.summary import Found, interval, rows
from biadam.hypergradients import Newton, Steps
from biadam.report import figures, page
from biadam.solvers import space
from biadam.solvers.about import SPACES
from biadam.stationarity import inner_solution
from biadam.tasks import Quadratic, Task
from biadam.tasks.base import Reference

BED = Quadratic((2, 3), condition=3.0, noise=0.3, examples=8, seed=1)
TRACES = []
STEPS = {"methods": ["biadam", "soba"], "oracle_calls": 400.0, "workers": 1}


def outer(x, y, batch):
    TRACES.append("outer")
    return BED.outer(x, y, batch)


def inner(x, y, batch):
    return BED.inner(x, y, batch)


class Noted:
    """Tasks whose judges write down every look at the test split."""

    def __init__(self):
        self.looks = []
        self.test = lambda x: float(jnp.sum(x))

    def __getstate__(self):
        """What is written down is no part of the task."""
        return {}

    def make(self, seed: int, shift: float = 0.0) -> Task:
        start = np.random.default_rng(seed).normal(size=2)

        def evaluate(x, y):
            self.looks.append(seed)
            return {"validation_loss": validation(x, y), "test": self.test(x)}

        def validation(x, y):
            return float(BED.outer(x, y, BED.outer_data)) + shift

        def references():
            self.looks.append(seed)
            return [Reference("the start", {"test": self.test(start)})]

        return Task(
            name="bed",
            data="quadratic",
            problem=biadam.Problem(outer, inner),
            source=BED.minibatches(2),
            x0=jnp.asarray(start),
            y0=BED.y0,
            curves={"validation_loss": validation},
            evaluate=evaluate,
            solver="soba",
            settings={"soba": {"step_size": (0.1, 0.5)}},
            references=references,
        )


@pytest.fixture
def runs(monkeypatch):
    """Every run that is made, by method and seed."""
    made, run = [], work._run

    def noted(task, trial, curves):
        made.append((trial.solver, trial.seed, trial.budget.amount))
        return run(task, trial, curves)

    monkeypatch.setattr(work, "_run", noted)
    return made


def test_settings_are_chosen_blind_to_the_test_split(tmp_path, runs):
    noted = Noted()
    first = biadam.compare(noted.make, out=tmp_path / "a", seeds=2, settings=4, **STEPS)
    # Once for each reported run, once for the references of each seed, and never while tuning.
    assert sorted(noted.looks) == sorted([0, 1] * 3)
    tuned = {seed for _, seed, amount in runs if amount != 400.0}
    assert tuned == {TUNING}
    assert {seed for *_, seed, _ in runs} == {0, 1, TUNING}
    # A test split that says the opposite chooses the same.
    noted.test = lambda x: -100 * float(jnp.sum(x))
    other = biadam.compare(noted.make, out=tmp_path / "b", seeds=2, settings=4, **STEPS)
    assert [row.setting for row in other.rows] == [row.setting for row in first.rows]
    assert [row.metrics["test"] for row in other.rows] != [
        row.metrics["test"] for row in first.rows
    ]


def test_a_look_at_the_test_split_while_tuning_is_refused():
    noted = Noted()
    task = noted.make(TUNING)
    plan = comparison.Recipe(noted.make, {})
    trial = work.Trial("soba", {}, {}, TUNING, comparison.Seconds(0.01), "key")
    seen = []
    original = work._run

    def cheat(task, trial, curves):
        seen.append(task)
        return original(task, trial, curves)

    work._run = cheat
    try:
        work._tuned(task, trial)
    finally:
        work._run = original
    assert plan.task(TUNING) is plan.task(TUNING)
    for judge in (seen[0].evaluate, seen[0].keep):
        with pytest.raises(PermissionError, match="the test split is closed"):
            judge(task.x0, task.y0)
    with pytest.raises(PermissionError, match="the test split is closed"):
        seen[0].references()
    assert noted.looks == []


def test_seeds_to_tune_on_are_never_reported(tmp_path):
    found = biadam.compare(Noted().make, out=tmp_path, seeds=2, tuning_seeds=2, settings=2, **STEPS)
    assert not set(found.summary["seeds"]) & set(found.summary["tuning_seeds"])


def test_an_interrupted_comparison_repeats_nothing(tmp_path, runs):
    noted = Noted()
    words = {"seeds": 3, "settings": 4, **STEPS}
    biadam.compare(noted.make, out=tmp_path / "whole", **words)
    whole, noted.looks = list(runs), []
    runs.clear()

    def stumble(x):
        if len(noted.looks) == 2:
            raise KeyboardInterrupt
        return float(jnp.sum(x))

    noted.test = stumble
    with pytest.raises(KeyboardInterrupt):
        biadam.compare(noted.make, out=tmp_path / "cut", **words)
    assert len(runs) < len(whole)
    noted.test = lambda x: float(jnp.sum(x))
    found = biadam.compare(noted.make, out=tmp_path / "cut", **words)
    lost = 1  # the one that was under way
    assert len(runs) == len(whole) + lost
    assert set(runs) == set(whole)
    runs.clear()
    again = biadam.compare(noted.make, out=tmp_path / "cut", **words)
    assert runs == []
    assert [row.metrics for row in again.rows] == [row.metrics for row in found.rows]
    biadam.compare(noted.make, {"shift": 1.0}, out=tmp_path / "cut", **words)
    assert len(runs) == len(whole)


def test_settings_and_seeds_share_one_program(tmp_path):
    words = {"methods": ["soba"], "oracle_calls": 300.0, "workers": 1}
    counts = []
    for part, (count, seeds) in enumerate([(2, 1), (5, 3)]):
        TRACES.clear()
        biadam.compare(Noted().make, out=tmp_path / str(part), seeds=seeds, settings=count, **words)
        counts.append(len(TRACES))
    checks = 2  # of the loss's shape, for each run and its probes
    assert counts[0] > 0
    assert counts[1] < counts[0] + checks * 40


@pytest.mark.parametrize("generates", [True, False], ids=["as they come", "all at the end"])
def test_another_backend_of_joblib_takes_the_same_runs(tmp_path, generates):
    taken = []

    class Elsewhere(joblib._parallel_backends.ThreadingBackend):
        supports_return_generator = generates

        def submit(self, func, callback=None):
            taken.append(func)
            return super().submit(func, callback)

    joblib.register_parallel_backend("elsewhere", Elsewhere)
    with joblib.parallel_config(backend="elsewhere", n_jobs=2):
        found = biadam.compare(
            Noted().make, out=tmp_path, seeds=1, settings=2, methods=["soba"], oracle_calls=200.0
        )
    assert len(taken) > 2
    assert found.rows[0].runs == ["soba/seed0"]


def test_what_is_written_is_what_was_found(tmp_path):
    found = biadam.compare(
        Noted().make,
        out=tmp_path,
        seeds=2,
        settings=3,
        grids={"soba": {"step_size": [(0.1, 0.5), (1e8, 1e8)]}},
        command="biadam compare bed",
        **STEPS,
    )
    told = json.loads((tmp_path / "comparison.json").read_text())
    assert told == found.summary
    assert told["kind"] == "comparison" and told["format"] == 1
    assert told["budget"] == {"kind": "oracle_calls", "amount": 400.0}
    assert told["references"][0]["name"] == "the start"
    assert [rung["settings"] for rung in told["ladder"]] == [3]
    where = told["environment"]
    assert where["workers"] == 1 and where["cores"] >= 1 and where["processor"] and where["system"]
    again = biadam.compare(
        Noted().make,
        out=tmp_path,
        seeds=2,
        settings=3,
        grids={"soba": {"step_size": [(0.1, 0.5), (1e8, 1e8)]}},
        **{**STEPS, "workers": 2},
    )
    assert again.summary["environment"] == where  # that of the runs, which were not made again
    row = next(row for row in told["methods"] if row["solver"] == "soba")
    assert (row["tried"], row["diverged_settings"], row["diverged"]) == (2, 1, 0)
    assert row["setting"] == {"step_size": "(0.1, 0.5)"}
    values = row["metrics"]["validation_loss"]["values"]
    for place, value in zip(row["runs"], values, strict=True):
        run = record.load(tmp_path / place)
        assert run.summary["metrics"]["validation_loss"] == value
        assert run.arrays["curve_validation_loss"][-1] == pytest.approx(value)
        assert run.arrays["calls"][-1].sum() <= 400
        assert run.arrays["calls"][-1].sum() > 380
    for target in row["targets"]:
        curves = [record.load(tmp_path / place).arrays for place in row["runs"]]
        there = [np.flatnonzero(c["curve_validation_loss"] <= target["value"]) for c in curves]
        if target["oracle_calls"] is None:
            assert min(map(len, there)) == 0
        else:
            calls = [c["calls"][t[0]].sum() for c, t in zip(curves, there, strict=True)]
            assert target["oracle_calls"] == pytest.approx(np.mean(calls))


def test_a_method_that_refuses_or_diverges_has_a_row_that_says_so(tmp_path):
    grids = {"soba": {"step_size": [(1e8, 1e8), (1e9, 1e9)]}, "newton_cg": {"rate": [-1.0]}}
    found = biadam.compare(
        Noted().make, out=tmp_path, seeds=1, grids=grids, **{**STEPS, "methods": list(grids)}
    )
    by_name = {row.solver: row for row in found.rows}
    assert by_name["soba"].note == "every setting diverged"
    assert by_name["soba"].diverged_settings == 2
    assert "`rate` must be above 0" in by_name["newton_cg"].refused
    assert all(not row.metrics and not row.runs for row in found.rows)
    page([tmp_path], tmp_path / "report.html")
    assert figures([tmp_path], tmp_path / "figures") == []


def test_one_setting_that_is_refused_refuses_no_method(tmp_path):
    grids = {"soba": {"step_size": [(-1.0, 0.5), (0.1, 0.5)]}}
    words = {**STEPS, "methods": ["soba"]}
    (row,) = biadam.compare(Noted().make, out=tmp_path, seeds=1, grids=grids, **words).rows
    assert row.refused == "" and row.runs == ["soba/seed0"]
    assert row.setting == {"step_size": "(0.1, 0.5)"}
    assert "1 of 2 settings were refused: `step_size[outer]` must be" in row.note


def test_what_hinders_today_is_not_kept_as_a_refusal(tmp_path):
    noted, words = Noted(), {**STEPS, "methods": ["soba"], "seeds": 1, "settings": 1}
    noted.test = missing = Missing()
    with pytest.raises(biadam.Mistake, match="no data"):
        biadam.compare(noted.make, out=tmp_path, **words)
    missing.there = True
    found = biadam.compare(noted.make, out=tmp_path, **words)
    assert found.rows[0].runs and found.summary["references"]


class Missing:
    """A judge whose data comes later."""

    there = False

    def __call__(self, x):
        if not self.there:
            raise biadam.Mistake("no data")
        return 0.0


def test_targets_are_as_fine_as_the_way_that_is_left():
    def found(*values):
        curve = {"curve_loss": np.array(values), "clock": np.arange(3.0), "calls": np.ones((3, 4))}
        run = Entry({"outcome": "ok", "metrics": {}, "steps_per_second": 1.0}, curve)
        return rows(
            [Found("soba", "other", {}, 1, 0, "", "", [run], {"soba/seed0": run})], "loss", False
        )

    values = lambda *of: [target["value"] for target in found(*of)[0].targets]
    assert values(2847.0, 2820.0, 2803.0) == [2825.0, 2811.8, 2805.2]
    assert values(2.3, 1.0, 0.4) == [1.35, 0.78, 0.49]
    assert values(1.0, 1.0, 1.0) == []


def test_equal_calls_are_those_of_the_run_that_spent_least():
    def method(name, calls, *curves):
        runs = {}
        for seed, curve in enumerate(curves):
            arrays = {"curve_loss": np.array(curve), "clock": np.arange(float(len(curve)))}
            arrays["calls"] = np.outer(np.array(calls), [1, 0, 1])
            summary = {"outcome": "ok", "metrics": {}, "steps_per_second": 1.0}
            runs[f"{name}/seed{seed}"] = Entry(summary, arrays)
        return Found(name, "other", {}, 1, 0, "", "", [*runs.values()], runs)

    few = method("soba", [1, 5, 10], [3.0, 2.0, 1.0], [3.0, 2.0, 2.0])
    many = method("reverse", [8, 16, 24], [3.0, 0.5, 0.1])
    slow = method("vrbo", [40, 50, 60], [3.0, 2.0, 1.0])
    soba, reverse, vrbo = rows([few, many, slow], "loss", False)
    assert soba.equal_calls["calls"] == 20 and soba.equal_calls["values"] == [1.0, 2.0]
    assert reverse.equal_calls["values"] == [2.375]  # between its looks at 16 and at 32
    assert vrbo.equal_calls == {}  # its start cost more
    gone = method("sustain", [1, 5, 10], [3.0, np.nan, 1.0])
    assert rows([few, gone], "loss", False)[1].equal_calls == {}


def test_penalised_methods_are_judged_at_the_minimiser(tmp_path):
    noted = Noted()
    found = biadam.compare(
        noted.make, out=tmp_path, seeds=1, settings=1, **{**STEPS, "methods": ["f2ba"]}
    )
    task, (row,) = noted.make(0), found.rows
    trial = work.Trial("f2ba", {}, {}, 0, comparison.OracleCalls(400.0), "key")
    result, _ = work._run(task, trial, {})
    loss = task.curves["validation_loss"]
    settled = inner_solution(task.problem, result.x, result.y, task.source.inner)
    (value,) = row.metrics["validation_loss"]["values"]
    assert value == pytest.approx(loss(result.x, settled))
    assert abs(value - loss(result.x, result.y)) > 1e-3
    assert "judged at y*(x)" in row.note


def test_samples_are_a_budget(tmp_path):
    words = {**STEPS, "oracle_calls": None, "samples": 600.0, "methods": ["soba"]}
    found = biadam.compare(Noted().make, out=tmp_path, seeds=1, settings=1, **words)
    run = record.load(tmp_path / found.rows[0].runs[0])
    assert run.summary["steps"] == 150  # of two examples for either loss


@pytest.mark.parametrize("name", solvers.__all__)
def test_every_method_declares_where_to_search(name):
    factory, knobs = getattr(solvers, name), SPACES[name]
    found = space.settings(factory, knobs, {}, 9)
    assert len(found) == 9
    assert found[:4] == space.settings(factory, knobs, {}, 4)
    texts = {str({k: settings.show(v) for k, v in setting.items()}) for setting in found}
    assert len(texts) == 9
    for setting in found:
        factory(**setting)
        for key, value in setting.items():
            assert settings.show(settings.read(settings.show(value), key)) == settings.show(value)


TASKS = {
    "cleaning": lambda: biadam.tasks.hyper_cleaning(),
    "cleaning by a function": lambda: biadam.tasks.hyper_cleaning(
        weights=biadam.tasks.WeightFunction(), train=60, validation=40
    ),
    "fresh": lambda: biadam.tasks.few_shot_task("digits", setting="fresh", channels=4),
    "groups": lambda: biadam.tasks.few_shot_task("digits", setting="groups", channels=4),
    "ridge": lambda: biadam.tasks.ridge(),
    "selection": lambda: biadam.tasks.selection(),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_s_own_settings_can_be_searched_around(name):
    task = TASKS[name]()
    for method in solvers.__all__:
        factory, base = getattr(solvers, method), task.settings.get(method, {})
        if not task.refuses(method):
            found = space.settings(factory, SPACES[method], base, 3)
            assert len({str(labels([of])) for of in found}) == 3
            for setting in found:
                factory(**setting)


def test_every_method_stands_in_one_group_by_name():
    names = [name for group, of in comparison.GROUPS.items() if group != "all" for name in of]
    assert sorted(names) == sorted(solvers.__all__)


def test_a_recipe_may_be_a_part_of_a_function():
    make = functools.partial(biadam.tasks.hyper_cleaning, noise=0.2)
    assert comparison.Recipe(make, {}).digest != comparison.Recipe(make, {"noise": 0.3}).digest
    with pytest.raises(biadam.Mistake, match=r"argument of functools.partial.* 'nois'"):
        comparison.Recipe(make, {"nois": 0.3})


def test_a_search_fills_its_ranges_evenly():
    points = space.evenly(16, 2)
    for axis in points.T:  # a sixteenth each, but for one
        assert np.histogram(axis, bins=4, range=(0, 1))[0].min() >= 3
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1) + np.eye(16)
    assert gaps.min() > 0.5 / math.sqrt(16)


def test_a_board_says_what_runs(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    with Board(None, "validation_loss") as board:
        board.tell("soba", "tuning, round 1", 2, 4, 0.25)
        board.tell("mrbo", "tuning, round 1", 0, 4, None)
        board.tell("biadam", "reporting", 3, 3, 0.125)
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    last = {line.split()[0]: line.split() for line in shown if line.strip()}
    assert last["soba"] == ["soba", "tuning,", "round", "1", "running", "2", "of", "4", "0.25"]
    assert last["mrbo"] == ["mrbo", "tuning,", "round", "1", "waiting", "0", "of", "4"]
    assert last["biadam"] == ["biadam", "reporting", "done", "3", "of", "3", "0.125"]


def test_the_worse_settings_get_less():
    assert halving.ladder(16) == [(1 / 9, 16), (1 / 3, 6), (1.0, 2)]
    assert halving.ladder(3) == [(1.0, 3)]
    assert halving.ladder(5) == [(1 / 3, 5), (1.0, 2)]
    assert halving.cost(16) == pytest.approx(16 / 9 + 2 + 2)
    assert halving.cost(1) == 0
    assert halving.best([3.0, math.inf, 1.0, 1.0], 3) == [2, 3, 0]


def test_an_interval_is_the_textbook_one():
    found = interval([1.0, 2.0, 4.0])
    # The two-sided 95 % quantile of t with 2 degrees of freedom is 4.3027.
    half = 4.302653 * np.std([1.0, 2.0, 4.0], ddof=1) / math.sqrt(3)
    assert found["mean"] == pytest.approx(7 / 3)
    assert found["high"] - found["mean"] == pytest.approx(half)
    assert found["mean"] - found["low"] == pytest.approx(half)
    assert interval([2.0]) == {"mean": 2.0, "low": None, "high": None, "values": [2.0]}


def test_other_processes_reach_the_same(tmp_path):
    """Also in the precision of this one, which they are told."""
    assert jax.config.jax_enable_x64 and "JAX_ENABLE_X64" not in os.environ
    words = {"methods": ["soba"], "oracle_calls": 200.0, "seeds": 1, "settings": 2}
    task = {"train": 60, "validation": 60, "junk": 0, "batch": 8}
    here, there = (
        biadam.compare(biadam.tasks.ridge, task, out=tmp_path / str(n), workers=n, **words)
        for n in (1, 2)
    )
    loky.get_reusable_executor().shutdown()
    assert (tmp_path / "2" / "cache").is_dir()
    assert there.rows[0].setting == here.rows[0].setting
    assert there.rows[0].metrics["test_loss"]["values"] == pytest.approx(
        here.rows[0].metrics["test_loss"]["values"]
    )


def test_a_kept_run_is_whole_or_absent(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    entry = Entry({"score": 0.1, "message": "ok"}, {"at": np.arange(3)})
    cache.write("abcd", entry)
    kept = cache.read("abcd")
    assert kept.summary == entry.summary
    np.testing.assert_array_equal(kept.arrays["at"], entry.arrays["at"])

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        cache.write("abef", entry)
    assert cache.read("abef") is None
    (tmp_path / "ab" / "cd.npz").write_bytes(b"PK broken")
    assert cache.read("abcd") is None
    assert not cache.has("abcd")


def test_what_decides_a_run_is_in_its_key():
    noted = Noted()
    plans = [
        Plan(comparison.Recipe(noted.make, options), budget, range(1), tuning, Cache(Path()), 1)
        for options, budget, tuning in [
            ({}, comparison.Seconds(1.0), range(TUNING, TUNING + 1)),
            ({"shift": 1.0}, comparison.Seconds(1.0), range(TUNING, TUNING + 1)),
        ]
    ]
    plain = {"purpose": "tuning", "solver": "soba", "given": {}, "shown": {}, "seed": 0}
    spent = comparison.Seconds(1.0)
    keys = [plan.trial(**plain, budget=spent).key for plan in plans]
    for other in (
        {"purpose": "reporting"},
        {"solver": "mrbo"},
        {"given": {"step_size": (0.1, 0.1)}},
        {"given": {"step_size": (0.1, 0.2)}},
        {"given": {"base": optax.adam(0.1)}},  # a pair of functions that show alike
        {"given": {"base": optax.adam(1e-6)}},
        {"given": {"step_size": (optax.exponential_decay(0.1, 9, 0.5), 0.1)}},
        {"given": {"step_size": (optax.exponential_decay(0.1, 9, 0.6), 0.1)}},
        {"seed": 1},
        {"budget": comparison.Seconds(2.0)},
        {"budget": comparison.OracleCalls(1.0)},
    ):
        keys.append(plans[0].trial(**{**plain, "budget": spent, **other}).key)
    with jax.enable_x64(True):
        wide = Plan(comparison.Recipe(noted.make, {}), spent, range(1), range(1), Cache(Path()), 1)
        keys.append(wide.trial(**plain, budget=spent).key)
    assert len(set(keys)) == len(keys) == 14
    assert plans[0].trial(**plain, budget=spent).key == keys[0]


def test_settings_that_show_alike_have_numbers():
    found = labels([{"base": optax.adam(rate), "x": rate} for rate in (0.1, 1e-6, 0.1)])
    assert [of["x"] for of in found] == ["0.1", "1e-06", "0.1"]
    assert [of["base"][-2:] for of in found] == ["#1", "#2", "#1"]


SCRIPT = """
import dataclasses, enum
import equinox as eqx, jax, jax.numpy as jnp, optax
from biadam.comparison.fingerprint import digest

class Kind(enum.Enum):
    ONE = 1

@dataclasses.dataclass(frozen=True)
class Options:
    share: float = 0.5
    def make(self, seed):
        return seed in {"a", "b", "c", "d"} and WORDS and type(self)

class Net(eqx.Module):
    w: jax.Array
    def __call__(self, x):
        return super().__hash__() + self.w * x

WORDS = {"e", "f", "g", "h"}
things = [Options, Options(0.1).make, Options(0.2).make, Net(jnp.ones(2)), Net(jnp.zeros(2)), Kind]
things += [lambda seed: WORDS, lambda seed: Kind, jax.jit(lambda x: x + 1), optax.adam(0.1)]
print(*map(digest, things))
"""


def test_a_script_is_found_again_by_what_it_says(tmp_path):
    """Also by its classes and its sets, whose order is another in each process."""
    told = []
    for salt, head in (("1", ""), ("2", ""), ("3", "# a line that says nothing\n")):
        (tmp_path / "script.py").write_text(head + SCRIPT)
        words = [sys.executable, str(tmp_path / "script.py")]
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        told.append(subprocess.run(words, env=environment, capture_output=True, check=True).stdout)
    assert told[0] == told[1]
    first, moved = (of.split() for of in (told[0], told[2]))
    compiled = 8  # JAX notes the line that a compiled function stands in
    assert [i for i in range(10) if first[i] != moved[i]] == [compiled]
    assert len(set(first)) == 10


def test_what_is_chosen_does_not_depend_on_the_order_of_the_runs(tmp_path, monkeypatch):
    """Settings 0 and 2 are equally good, and so are all means but for the order of summation."""
    noted = Noted()
    scores = {0: (0.1, 0.2, 0.3), 1: (1.0, 1.0, 1.0), 2: (0.3, 0.2, 0.1)}
    recipe = comparison.Recipe(noted.make, {})
    plan = Plan(recipe, comparison.Samples(9.0), range(1), range(3), Cache(tmp_path), 1)
    chosen = []
    for order in (list, reversed):

        def made(act, trials, order=order):
            for trial in order(trials):
                score = scores[trial.given["mixing"]][trial.seed]
                yield trial, Entry({"score": score}, {})

        monkeypatch.setattr(plan, "made", made)
        candidates = {"soba": [{"mixing": index} for index in scores]}
        search = Search(plan, noted.make(0), candidates, Board(False, ""))
        search.tune()
        chosen.append(search.alive["soba"])
    assert chosen[0] == chosen[1]


def test_a_task_is_told_by_all_that_makes_it():
    """Also by what JAX does not count as data, and by what a function closes over."""
    fresh = lambda heads: comparison.Recipe(biadam.tasks.fresh_tasks, {"heads": heads}).digest
    assert len({fresh(heads) for heads in (Newton(), Steps(16, 0.4), Steps(15, 0.4))}) == 3
    assert fresh(Steps(16, 0.4)) == fresh(Steps(16, 0.4))

    def closing(over):
        return lambda seed: over

    closed = [comparison.Recipe(closing(over), {}).digest for over in (1, 2, 1)]
    assert closed[0] == closed[2] != closed[1]
    with pytest.raises(biadam.Mistake, match="must be things that can be pickled"):
        comparison.Recipe(closing(threading.Lock()), {})

"""Comparisons: what makes them fair, and that nothing finished is done again."""

import json
import math
import threading
from pathlib import Path

import jax.numpy as jnp
import joblib
import numpy as np
import pytest
from joblib.externals import loky

import biadam
from biadam import comparison, record, settings, solvers
from biadam.comparison import halving, work
from biadam.comparison.cache import Cache, Entry
from biadam.comparison.plan import Plan
from biadam.comparison.referee import TUNING
from biadam.comparison.summary import interval
from biadam.hypergradients import Newton, Steps
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


def test_another_backend_of_joblib_takes_the_same_runs(tmp_path):
    taken = []

    class Elsewhere(joblib._parallel_backends.ThreadingBackend):
        def submit(self, func, callback=None):
            taken.append(func)
            return super().submit(func, callback)

    joblib.register_parallel_backend("elsewhere", Elsewhere)
    with joblib.parallel_config(backend="elsewhere", n_jobs=2):
        biadam.compare(
            Noted().make, out=tmp_path, seeds=1, settings=2, methods=["soba"], oracle_calls=200.0
        )
    assert len(taken) > 2


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
    rows = {row.solver: row for row in found.rows}
    assert rows["soba"].note == "every setting diverged"
    assert rows["soba"].diverged_settings == 2
    assert "`rate` must be above 0" in rows["newton_cg"].refused
    assert all(not row.metrics and not row.runs for row in found.rows)


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


def test_a_search_fills_its_ranges_evenly():
    points = space.evenly(16, 2)
    for axis in points.T:  # a sixteenth each, but for one
        assert np.histogram(axis, bins=4, range=(0, 1))[0].min() >= 3
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1) + np.eye(16)
    assert gaps.min() > 0.5 / math.sqrt(16)


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


def test_other_processes_reach_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
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


def test_what_decides_a_run_is_in_its_key():
    noted = Noted()
    plans = [
        Plan(comparison.Recipe(noted.make, options), budget, range(1), tuning, Cache(Path()), 1)
        for options, budget, tuning in [
            ({}, comparison.Seconds(1.0), range(TUNING, TUNING + 1)),
            ({"shift": 1.0}, comparison.Seconds(1.0), range(TUNING, TUNING + 1)),
        ]
    ]
    plain = {"purpose": "tuning", "solver": "soba", "given": {}, "seed": 0}
    spent = comparison.Seconds(1.0)
    keys = [plan.trial(**plain, budget=spent).key for plan in plans]
    for other in (
        {"purpose": "reporting"},
        {"solver": "mrbo"},
        {"given": {"step_size": (0.1, 0.1)}},
        {"given": {"step_size": (0.1, 0.2)}},
        {"seed": 1},
        {"budget": comparison.Seconds(2.0)},
        {"budget": comparison.OracleCalls(1.0)},
    ):
        keys.append(plans[0].trial(**{**plain, "budget": spent, **other}).key)
    assert len(set(keys)) == len(keys) == 9
    assert plans[0].trial(**plain, budget=spent).key == keys[0]


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

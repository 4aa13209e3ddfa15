"""The tasks with constraints: their losses, feasible ends, that they work, the command line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
from biadam import solvers, tasks
from biadam.data.tables import Rows, table
from biadam.record import load
from biadam.sets import Box, L1Ball, Simplex
from biadam.stationarity import inner_solution
from biadam.tasks.ridge import Budget, fit, one_for_all
from biadam.tasks.selection import chosen
from test_cli import biadam as command  # noqa: F401  the fixture
from test_constrained import Path


def solve(task, steps):
    method = task.build(task.solver, getattr(solvers, task.solver))
    result = biadam.run(
        task.problem, method, task.source, task.x0, task.y0, steps=steps, key=jax.random.key(0)
    )
    return result, task.evaluate(result.x, result.y)


@pytest.fixture(scope="module")
def penalties():
    task = tasks.ridge(seed=4)
    return task, *solve(task, task.steps)


@pytest.fixture(scope="module")
def choice():
    task = tasks.selection(seed=4)
    return task, *solve(task, 2000)


def a_point(task):
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.uniform(0, 2, task.x0.shape), jnp.float32)
    return x, jax.tree.map(lambda a: jnp.asarray(draw.normal(size=a.shape), a.dtype), task.y0)


@pytest.mark.parametrize("data", ["diabetes", "breast_cancer"])
def test_losses_of_ridge_are_those_of_the_formula(data):
    task = tasks.ridge(data, junk=3, scale=0.2, ridge=0.01)
    x, y = a_point(task)
    sample = task.source(jax.random.key(0), 0, 1)
    theta, one = np.asarray(y["coefficient"]), float(y["intercept"])

    def mean(of):
        out = np.asarray(of.feature) @ theta + one
        b = np.asarray(of.target)
        if data == "diabetes":
            return ((out - b) ** 2).mean()
        sign = 2 * b - 1
        return np.log1p(np.exp(-sign * out)).mean()

    penalty = 0.2 * (np.asarray(x) * theta**2).sum() + 0.01 * ((theta**2).sum() + one**2)
    outer, inner = task.problem.outer, task.problem.inner
    np.testing.assert_allclose(outer(x, y, sample.outer), mean(sample.outer), rtol=1e-5)
    np.testing.assert_allclose(
        inner(x, y, sample.batch(0)), mean(sample.batch(0)) + penalty, rtol=1e-5
    )


def test_losses_of_selection_are_those_of_the_formula():
    """On all examples at once, the weighted sum over the number that is chosen."""
    task = tasks.selection(choose=7, train=30, validation=20, ridge=0.01)
    x, y = a_point(task)
    _, examples = task.source(jax.random.key(0), 0, 1).whole
    logits = np.asarray(examples.features) @ np.asarray(y)
    entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(30), np.asarray(examples.label)]
    value = (np.asarray(x) * entropy).sum() / 7 + 0.01 * (np.asarray(y) ** 2).sum()
    np.testing.assert_allclose(task.problem.inner(x, y, examples), value, rtol=1e-5)


def test_tables_are_standard_in_the_training_rows_and_disjoint():
    parts = table("diabetes", 100, 150, 2, seed=3)
    assert [len(rows.target) for rows in parts[:3]] == [100, 150, 192]
    assert parts.names[-3:] == ("s6", "junk 1", "junk 2")
    np.testing.assert_allclose(parts.train.feature.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(parts.train.feature.std(0), 1, rtol=1e-5)
    np.testing.assert_allclose(parts.train.target.std(), 1, rtol=1e-5)
    every = np.concatenate([rows.feature for rows in parts[:3]])
    assert len(np.unique(every[:, -1])) == 442  # a noise feature names its row
    again, other = (table("diabetes", 100, 150, 2, seed=seed) for seed in (3, 4))
    np.testing.assert_array_equal(parts.test.feature, again.test.feature)
    assert not np.array_equal(parts.test.feature, other.test.feature)


@pytest.mark.parametrize("data", ["diabetes", "breast_cancer"])
def test_the_reference_is_the_best_common_penalty(data):
    """Its fits are scikit-learn's."""
    from sklearn.linear_model import LogisticRegression, Ridge

    parts = table(data, None, None, 4, seed=1)
    n, d = parts.train.feature.shape
    a = np.c_[parts.train.feature, np.ones(n)].astype(float)
    theta = fit(parts.train, np.full(d + 1, 0.05), parts.classes)
    if parts.classes:
        model = LogisticRegression(C=1 / (0.1 * n), fit_intercept=False, tol=1e-8, max_iter=9999)
    else:
        model = Ridge(0.05 * n, fit_intercept=False)
    wanted = model.fit(a, parts.train.target).coef_.ravel()
    np.testing.assert_allclose(theta, wanted, atol=2e-4)
    penalty, best = one_for_all(parts, 1e-3)
    at = lambda p: fit(parts.train, p * np.append(np.ones(d), 0) + 1e-3, parts.classes)
    np.testing.assert_allclose(best, at(penalty))
    task = tasks.ridge(data, junk=4, seed=1)
    held, _ = task.source(jax.random.key(0), 0, 1).whole
    loss = lambda theta: float(
        task.problem.outer(
            task.x0,
            {
                "coefficient": jnp.asarray(theta[:-1], jnp.float32),
                "intercept": jnp.asarray(theta[-1], jnp.float32),
            },
            held,
        )
    )
    assert all(loss(best) <= loss(at(p)) + 1e-6 for p in (0, penalty / 2, penalty * 2))


def test_useless_features_are_penalised(penalties):
    """With the defaults, on a seed they were not chosen on."""
    task, result, metrics = penalties
    assert bool(jnp.all(result.x >= 0))
    assert metrics["junk_auc"] > 0.7
    assert metrics["validation_loss"] < 0.92 * metrics["common_validation_loss"]
    kept = task.keep(result.x, result.y)
    assert np.median(kept["penalty"][kept["junk"]]) > 2 * np.median(kept["penalty"][~kept["junk"]])


def test_y_is_nearly_the_minimiser_at_x(penalties):
    """In the inner loss; two collinear features leave y itself a flat direction."""
    task, result, _ = penalties
    _, examples = task.source(jax.random.key(0), 0, 1).whole
    rows = Rows(np.asarray(examples.feature), np.asarray(examples.target))
    theta = fit(rows, np.append(0.1 * np.asarray(result.x, float), 0.0) + 1e-3, False)
    short = jnp.asarray(theta, jnp.float32)
    best = {"coefficient": short[:-1], "intercept": short[-1]}
    found, least, first = (
        float(task.problem.inner(result.x, y, examples)) for y in (result.y, best, task.y0)
    )
    assert least <= found < least + 0.03 * (first - least)


@pytest.mark.parametrize("home", [Box(0.0, 3.0), Budget(5.0), Simplex(4.0)])
def test_other_sets_hold_the_penalties(home):
    task = tasks.ridge(outer_set=home, seed=4)
    result, metrics = solve(task, 2000)
    _, examples = task.source(jax.random.key(0), 0, 1).whole
    start = task.evaluate(task.x0, inner_solution(task.problem, task.x0, task.y0, examples))
    again = home.project(result.x, jnp.ones_like(result.x))
    np.testing.assert_allclose(result.x, again, atol=1e-5)
    assert bool(jnp.all(result.x >= 0))
    assert metrics["validation_loss"] < start["validation_loss"] - 0.03
    if isinstance(home, Box):  # the others may spend less than the best common penalty does
        assert metrics["validation_loss"] < metrics["common_validation_loss"]
    if isinstance(home, Budget):
        assert metrics["penalised"] < 0.8
        np.testing.assert_allclose(result.x.sum(), 5.0, rtol=1e-4)  # the budget is spent


@pytest.mark.parametrize(
    "make",
    [
        tasks.ridge,
        lambda: tasks.ridge("breast_cancer", outer_set=Box(0.0, 3.0)),
        lambda: tasks.ridge(outer_set=Budget(0.5)),
        lambda: tasks.ridge(outer_set=Simplex(4.0)),
        tasks.selection,
    ],
)
def test_every_iterate_is_feasible(make):
    """In sums of hundreds of numbers of single precision, by programs that are not optimised."""
    task, steps = make(), 30
    home = task.problem.outer_set
    x = home.project(task.x0 + 0.1, 1.0)
    method = task.build(task.solver, getattr(solvers, task.solver))
    path = biadam.run(
        task.problem, method, task.source, x, task.y0, steps=steps, key=jax.random.key(0),
        output=Path(steps),
    ).x  # fmt: skip
    inside = jax.jit(jax.vmap(lambda p: home.project(p, 1.0)))(path)
    far = np.abs(np.asarray(path - inside, float)).sum(1)
    assert (far / np.abs(np.asarray(path, float)).sum(1)).max() <= 1e-5
    assert np.abs(path[-1] - path[0]).max() > 1e-3


def test_a_budget_is_a_ball_without_signs():
    """Its projection in the norm of a matrix satisfies the conditions of optimality."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        p, m = draw.normal(size=9) * 3, draw.uniform(0.1, 10, 9)
        u = np.asarray(Budget(2.0).project(jnp.asarray(p), jnp.asarray(m)))
        assert (u >= 0).all()
        assert u.sum() <= 2 + 1e-9
        slope = m * (u - p)  # at the solution, <slope, v - u> >= 0 for every member v
        assert min(0.0, 2 * slope.min()) - slope @ u >= -1e-8
    inside = jnp.array([0.5, 0.0, 0.25])
    np.testing.assert_array_equal(Budget(2.0).project(inside, jnp.ones(3)), inside)


def test_chosen_examples_are_right(choice):
    task, result, metrics = choice
    np.testing.assert_allclose(result.x.sum(dtype=float), 200, rtol=1e-5)
    assert float(result.x.min()) >= 0
    assert float(result.x.max()) <= 1
    assert metrics["base_right"] == 0.4
    assert metrics["chosen_right"] > 0.9
    for rival in ("random_test_accuracy", "all_test_accuracy"):
        assert metrics["chosen_test_accuracy"] > metrics[rival] + 0.1
        assert metrics["test_accuracy"] > metrics[rival] + 0.1
    kept = task.keep(result.x, result.y)
    assert kept["chosen"].sum() == 200
    assert (kept["best_given"] == kept["best_true"]).mean() > 0.8
    assert (kept["worst_given"] == kept["worst_true"]).mean() < 0.5


def test_chosen_are_the_heaviest():
    taken = chosen(np.array([0.1, 1.0, 0.0, 1.0, 0.5]), 3)
    np.testing.assert_array_equal(taken, [False, True, False, True, True])


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda: tasks.ridge("diabets"), "did you mean 'diabetes'"),
        (lambda: tasks.ridge(outer_set=L1Ball(2.0)), "no negative penalties.* but L1Ball does"),
        (lambda: tasks.ridge(outer_set=Box(-0.1, 2.0)), "no negative penalties.* but Box does"),
        (lambda: tasks.ridge(train=400, validation=100), "ask for 500 rows, but diabetes has 442"),
        (lambda: tasks.ridge(junk=-1), "`junk` must be a whole number of at least 0"),
        (lambda: tasks.ridge(scale=0.0), "`scale` must be above 0"),
        (lambda: tasks.selection(train=50, choose=51), "at most the 50 training examples"),
        (lambda: tasks.selection(choose=0), "`choose` must be a whole number of at least 1"),
    ],
)
def test_mistakes(make, answer):
    with pytest.raises(biadam.Mistake, match=answer):
        make()


def test_ridge_from_the_command_line(command, tmp_path):  # noqa: F811
    words = ("run", "ridge", "--data", "breast_cancer", "--junk", "3", "--steps", "60")
    status, out, _ = command(*words, "--sparse", "2", "--json", "--out", "here")
    told = json.loads(out)
    assert status == 0
    assert (told["task"], told["data"]) == ("ridge", "breast_cancer")
    assert {"validation_loss", "test_accuracy", "common_test_loss", "junk_auc"} <= set(
        told["metrics"]
    )
    record = load(tmp_path / "here")
    assert record.summary == told
    assert record.arrays["penalty"].shape == (33,)
    assert record.arrays["penalty"].sum() <= 0.1 * 2.0 * (1 + 1e-5)
    assert (tmp_path / "here" / "figure.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = command("run", "ridge", "--steps", "20", "--junk", "0", "--most", "0.5")
    assert status == 0
    assert "junk auc" in out
    assert "not defined" in out
    status, _, err = command("run", "ridge", "--most", "1", "--sparse", "1")
    assert status == 2
    assert "`--most` and `--sparse` can't be given together" in err


def test_selection_from_the_command_line(command, tmp_path):  # noqa: F811
    words = ("run", "selection", "--train", "120", "--validation", "80", "--choose", "30")
    status, out, _ = command(*words, "--steps", "60", "--json", "--out", "here")
    told = json.loads(out)
    assert status == 0
    assert told["task"] == "selection"
    weight = load(tmp_path / "here").arrays["weight"]
    np.testing.assert_allclose(weight.sum(), 30, rtol=1e-5)
    assert (tmp_path / "here" / "figure.png").read_bytes().startswith(b"\x89PNG")

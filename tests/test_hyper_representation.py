"""The few-shot task: its losses, its judges, that it learns, and that nothing leaks."""

import json
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import biadam
from biadam import Levels, Problem, cli, solvers, tasks
from biadam.data.episodes import TaskImages
from biadam.errors import Mistake
from biadam.hypergradients import (
    ConjugateGradient,
    Exact,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
    Newton,
    PerSample,
    Steps,
    Unrolled,
)
from biadam.models import Convolutional
from biadam.tasks.few_shot import FewShot, Representation, answers, entropy

KEY = jr.key(4)
SMALL = {"ways": 3, "queries": 4, "tasks": 2, "encoder": Convolutional(12), "episodes": 20}


@pytest.fixture(scope="module")
def fresh():
    return tasks.fresh_tasks("digits", **SMALL)


@pytest.fixture(scope="module")
def groups():
    return tasks.class_groups("digits", **SMALL)


def test_losses_are_those_of_the_formula():
    few_shot = FewShot(Convolutional(4), ridge=0.1, usual=3.0)
    draw = np.random.default_rng(0)
    features, y = (jnp.asarray(draw.normal(size=size)) for size in ((2, 6, 5), (4, 5, 3)))
    label, block = jnp.asarray(draw.integers(0, 3, (2, 6))), jnp.asarray([3, 1])
    of = TaskImages(jnp.zeros((2, 6, 1, 1)), label, block)
    each, penalty = [], []
    for task in range(2):
        logits = features[task] @ y[block[task]]
        log = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), label[task]]
        each.append(log.mean())
        penalty.append(0.1 * (y[block[task]] ** 2).sum())
    np.testing.assert_allclose(few_shot.outer(features, y, of), np.mean(each))
    inner = 3.0 * np.mean(np.add(each, penalty))
    np.testing.assert_allclose(few_shot.inner(features, y, of), inner)
    np.testing.assert_allclose(entropy(features, y[block], label), each)


FIELDS = {
    "series": NeumannSum(5, 0.4),
    "random series": NeumannRandom(6, 0.4),
    "conjugate gradients": ConjugateGradient(5),
    "fixed point": FixedPoint(5, 0.4),
    "unrolled": Unrolled(4, 0.4),
    "linear system": LinearSystem(),
    "exact": Exact(),
    "per task, Newton": PerSample(ConjugateGradient(5), Newton(1e-8)),
    "per task, steps": PerSample(NeumannSum(5, 0.4), Steps(4)),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_hypergradient_in_feature_space_is_that_of_the_network(fresh, name):
    """To 1e-9, for every estimator: the encoder is passed once, not in every product."""
    field, staged = FIELDS[name], fresh.problem
    network = Problem(staged.outer_loss, staged.inner_loss)
    sample = fresh.source(KEY, 0, field.batches)
    heads = 0.1 * jr.normal(KEY, fresh.y0.shape)
    point = Levels(fresh.x0, heads, heads if name == "linear system" else None)
    here, there = (jax.jit(lambda p=p: field(p, point, sample).value)() for p in (staged, network))
    for one, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_heads_do_not_depend_on_how_many_tasks_are_fitted_at_once(fresh, groups):
    """Nor on whether they were trained as kept heads."""
    sample = fresh.source(KEY, 0, 1)
    support = sample.batch(0)
    x = Representation(fresh.x0, SMALL["encoder"].statistics(fresh.x0, support.image[0]))
    steps = Steps(16, 0.4)
    both = FewShot(SMALL["encoder"], 0.01).fit(x, support, 3, steps)
    kept = FewShot(SMALL["encoder"], 0.01, 7.0).fit(x, support, 3, steps)
    one = jax.tree.map(lambda a: a[1:], support)
    alone = FewShot(SMALL["encoder"], 0.01).fit(x, one, 3, steps)
    np.testing.assert_allclose(both[1:], alone, rtol=1e-12)
    np.testing.assert_array_equal(both, kept)


def test_the_anchor_of_vrbo_sees_the_same_heads_as_its_minibatches(fresh):
    """On tasks of the anchor, the field is the mean of the fields on its parts."""
    source = fresh.source_for("vrbo")
    query, support = source(KEY, 0, 1).whole
    field = PerSample(NeumannSum(5, 0.4), Steps(8))

    def seen(part):
        own = [jax.tree.map(lambda a: a[part], of) for of in (query, support)]
        own = [TaskImages(of.image, of.label, jnp.arange(len(of.image))) for of in own]
        sample = fresh.source(KEY, 0, 1)._replace(
            outer=own[0], inner=jax.tree.map(lambda a: a[None], own[1])
        )
        network = Problem(fixed.outer_loss, fixed.inner_loss)
        point = Levels(fresh.x0, jnp.zeros((len(own[0].image), *fresh.y0.shape[1:])))
        return field(network, point, sample).value.x[0].kernel

    known = SMALL["encoder"].statistics(fresh.x0, query.image[0])
    few_shot = FewShot(SMALL["encoder"], 0.01)
    fixed = Problem(
        few_shot.outer,
        few_shot.inner,
        stage=lambda z, of: few_shot.stage(Representation(z, known), of),
    )
    parts = [seen(slice(i, i + 2)) for i in range(0, 8, 2)]
    np.testing.assert_allclose(seen(slice(0, 8)), np.mean(parts, axis=0), rtol=1e-9, atol=1e-12)


def test_only_the_heads_of_the_drawn_groups_are_seen(groups):
    sample = groups.source(KEY, 0, 1)
    block = np.asarray(sample.outer.block)
    np.testing.assert_array_equal(block, sample.batch(0).block)
    slope = groups.problem.inner_gradient(groups.x0, groups.y0 + 0.1, sample.batch(0))
    moved = np.flatnonzero(np.abs(slope).sum(axis=(1, 2)))
    assert set(moved) == set(block.tolist())
    assert len(groups.y0) == groups.source.count


def test_a_query_is_answered_by_itself_and_by_the_support_alone(fresh):
    """With fixed statistics; with those of the images at hand the others take part."""
    few_shot = FewShot(SMALL["encoder"], 0.01)
    sample = fresh.source(KEY, 0, 1)
    query, support = sample.outer, sample.batch(0)
    statistics = SMALL["encoder"].statistics(fresh.x0, query.image[0])
    others = TaskImages(query.image.at[:, 1:].set(0.5), query.label, query.block)
    logits = lambda x, of: few_shot.stage(x, of)[:, 0]
    fixed, seeing = Representation(fresh.x0, statistics), Representation(fresh.x0, None)
    np.testing.assert_array_equal(logits(fixed, query), logits(fixed, others))
    assert not np.allclose(logits(seeing, query), logits(seeing, others))
    assert answers(few_shot, fixed, query, support, 3, Newton()).shape == query.label.shape


def solve(task, name, steps):
    return biadam.run(
        task.problem,
        task.build(name, getattr(solvers, name)),
        task.source_for(name),
        task.x0,
        task.start_for(name),
        steps=steps,
        key=KEY,
        metrics=task.curves,
        every=steps,
    )


def test_features_are_learned(fresh):
    result = solve(fresh, "biadam", 150)
    before, after = result.metrics["validation_accuracy"]
    assert after > before + 0.1
    told = fresh.evaluate(result.x, result.y)
    assert told["test_accuracy"] > 0.45  # a third by chance
    assert 0 < told["test_interval"] < 0.1
    assert result.metrics["curvature"][-1] > 0


def test_groups_are_learned(groups):
    result = solve(groups, "biadam_tracked", 150)
    before, after = result.metrics["validation_accuracy"]
    assert after > before + 0.05
    assert np.abs(result.y).max() > 0


@pytest.mark.parametrize("name", ["vr_biadam", "vrbo", "reverse", "stocbio"])
def test_other_methods_take_fresh_tasks(fresh, name):
    result = solve(fresh, name, 3)
    assert result.outcome == "ok"
    # With `PerSample` the heads are solved inside; the loops return those of their last tasks.
    assert bool(np.any(result.y)) == (name in ("reverse", "stocbio"))
    assert len(result.y) == (8 if name == "vrbo" else 2)


def test_methods_that_keep_something_refuse_fresh_tasks(fresh):
    with pytest.raises(Mistake, match="`soba` does not take this task: it keeps"):
        fresh.build("soba", solvers.soba)
    with pytest.raises(Mistake, match=r"`PerSample.of` must be .* LinearSystem"):
        method = solvers.biadam(hypergradient=PerSample(LinearSystem()))
        method.init(fresh.problem, fresh.x0, fresh.y0, fresh.source(KEY, 0, 1))


def test_a_task_says_what_it_was_made_from(fresh, groups):
    words = {"ways": 3, "shots": 1, "queries": 4, "tasks": 2, "held_out": 1, "episodes": 20}
    for task in (fresh, groups):
        assert {name: task.options[name] for name in words} == words
        assert task.options["ridge"] == 0.01
        assert task.options["rotations"] is False
        assert "channels=12" in task.options["encoder"]
        assert task.options["heads"] == "Newton()"
        json.dumps(task.options)


def test_a_diverged_encoder_is_kept_and_judged_nevertheless(fresh):
    """As a step size of 1e30 leaves it: the point is finite, the features are not."""
    far = jax.tree.map(lambda a: 1e300 * a, fresh.x0)
    kept = fresh.keep(far, fresh.y0)
    assert np.isnan(fresh.problem.stage(far, fresh.source(KEY, 0, 1).outer)).any()
    np.testing.assert_array_equal(kept["embedding"], 0)
    assert kept["embedding"].shape == fresh.keep(fresh.x0, fresh.y0)["embedding"].shape
    assert fresh.evaluate(far, fresh.y0)["test_accuracy"] < 0.4  # a third by chance


def test_settings_and_tests_are_of_different_characters(fresh):
    train, validation, test = tasks.hyper_representation.drawn("digits", None)
    numbers = [set(part.number.tolist()) for part in (train, validation, test)]
    assert all(numbers)
    assert not numbers[0] & numbers[1]
    assert not (numbers[0] | numbers[1]) & numbers[2]
    everything = tasks.hyper_representation.drawn("digits", 0)
    assert len(everything.train.number) == len(numbers[0] | numbers[1])


def call(monkeypatch, capfd, *words):
    monkeypatch.setattr(sys, "argv", ["biadam", "run", "hyper-representation", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, capfd.readouterr()


@pytest.mark.parametrize("setting", ["fresh", "groups"])
def test_from_the_command_line(monkeypatch, capfd, tmp_path, setting):
    words = ("--data", "digits", "--way", "3", "--queries", "4", "--channels", "4")
    few = ("--steps", "4", "--episodes", "20", "--setting", setting)
    where = ("--out", str(tmp_path / "run"), "--json")
    status, told = call(monkeypatch, capfd, *words, *few, *where)
    summary = json.loads(told.out)
    assert status == 0
    assert summary["task"] == "hyper-representation"
    metrics = {"validation_accuracy", "test_accuracy", "test_interval", "seeing_accuracy"}
    assert set(summary["metrics"]) == metrics
    assert (tmp_path / "run" / "figure.png").exists()
    if setting == "fresh":
        return
    learned = tasks.Learned.load(tmp_path / "run")
    test = tasks.hyper_representation.drawn("digits", None).test
    few, many = test.image[:5, :3], test.image[:5, 3:]
    learned = learned.fit(few.reshape(-1, 14, 14), np.repeat(np.arange(5), 3))
    right = learned.predict(many.reshape(-1, 14, 14)) == np.repeat(np.arange(5), 17)
    assert right.mean() > 0.3


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--setting", "frsh"), "there is no setting 'frsh': did you mean 'fresh'?"),
        (("--heads", "newtn"), "did you mean 'newton'?"),
        (("--data", "omniglt"), "did you mean 'omniglot'?"),
        (("--data", "digits", "--way", "100"), "`ways` must be at most the"),
        (("--data", "digits", "--shot", "18"), "`shots` and `queries` ask for"),
        (("--data", "digits", "--solver", "soba"), "`soba` does not take this task"),
        (("--data", "digits", "--held-out", "6"), "`held_out` must leave an alphabet"),
        (("--data", "digits", "--channels", "0"), "channels"),
    ],
)
def test_mistakes(monkeypatch, capfd, words, answer):
    status, told = call(monkeypatch, capfd, *words)
    assert status == 2
    assert answer in told.err
    assert len(told.err.strip().splitlines()) == 1

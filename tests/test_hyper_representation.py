"""The few-shot task: its losses, its judges, that it learns, and that nothing leaks."""

import json
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import biadam
from biadam import Levels, Problem, cli, dense, record, solvers, tasks
from biadam.data import OnHost
from biadam.data.episodes import TaskImages
from biadam.double_loop import Amortized
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
from biadam.models import BatchNorm, Convolutional, from_equinox, from_nnx
from biadam.tasks.few_shot import FewShot, Representation, answers, curvature, entropy

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
    "per task, dense": PerSample(Exact(blocks=True), Newton(1e-8)),
    "per task, unrolled": PerSample(Unrolled(4, 0.4), Steps(0)),
    "amortized": Amortized(3, 0.4),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_hypergradient_in_feature_space_is_that_of_the_network(fresh, name):
    """To 1e-9, for every estimator: the encoder is passed once, not in every product."""
    field, staged = FIELDS[name], fresh.problem
    network = Problem(staged.outer_loss, staged.inner_loss)
    sample = fresh.source(KEY, 0, field.batches)
    heads = 0.1 * jr.normal(KEY, fresh.y0.shape)
    tracks = name in ("linear system", "amortized")
    point = Levels(fresh.x0, heads, heads if tracks else None)
    close(*(jax.jit(lambda p=p: field(p, point, sample).value)() for p in (staged, network)))


def test_so_are_the_hypergradient_to_compare_with_and_the_dense_matrices(fresh):
    staged = fresh.problem
    network = Problem(staged.outer_loss, staged.inner_loss)
    sample = fresh.source(KEY, 0, 1)
    heads = 0.1 * jr.normal(KEY, fresh.y0.shape)
    both = (staged, network)
    data = (sample.outer, sample.batch(0))
    close(*(biadam.hypergradient(p, fresh.x0, heads, *data, tolerance=1e-12) for p in both))
    seen = lambda p: dense.matrices(p, Levels(fresh.x0, heads), sample.batch(0))[0]
    close(*(jax.jit(lambda p=p: seen(p))() for p in both))


def close(here, there):
    for one, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_the_dense_solution_of_each_task_is_that_of_all(fresh):
    """Tasks do not see each other's heads: small matrices in place of one large one."""
    sample = fresh.source(KEY, 0, 2)
    point = Levels(fresh.x0, 0.1 * jr.normal(KEY, fresh.y0.shape))
    look = lambda field: jax.jit(lambda: field(fresh.problem, point, sample).value.x)()
    close(look(Exact(most=39, blocks=True)), look(Exact(most=78)))
    with pytest.raises(Mistake, match="at most 38 inner variables of a block, but y has 39"):
        look(Exact(most=38, blocks=True))


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
    # Newton stops by the gradient of all tasks together, so that they agree to its tolerance only.
    few_shot, newton = FewShot(SMALL["encoder"], 0.01), Newton(1e-10)
    together, apart = (few_shot.fit(x, of, 3, newton) for of in (support, one))
    np.testing.assert_allclose(together[1:], apart, atol=1e-8)  # 1e-10 over the convexity 0.02
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
    assert told["curvature"] == result.metrics["curvature"][-1] > 0
    assert told["test_accuracy"] > 0.45  # a third by chance
    assert 0 < told["test_interval"] < 0.1


def test_the_curvature_is_that_of_the_dense_hessian(fresh):
    """The largest over the tasks and over the points of 16 steps; at heads of zero it is less."""
    few_shot = FewShot(Convolutional(4, blocks=2), 0.01)
    z = few_shot.encoder.init(KEY, (14, 14))
    support = jax.tree.map(lambda a: a[:2], fresh.source(KEY, 0, 1).batch(0))
    features = few_shot.training_stage(z, support)
    own = TaskImages(support.image, support.label, jnp.arange(2))
    shape = (2, features.shape[2], 3)
    apart = few_shot.apart()

    @jax.jit
    def path(flat):
        loss = lambda y: apart.inner_loss(features, y.reshape(shape), own)
        heads = []
        for _ in range(17):
            heads.append(flat)
            flat = flat - 0.4 * jax.grad(loss)(flat)
        return jax.lax.map(jax.hessian(loss), jnp.stack(heads))

    largest = np.linalg.eigvalsh(path(jnp.zeros(np.prod(shape)))).max(axis=1)
    got = curvature(few_shot, Representation(z, None), support, 3, turns=200)
    np.testing.assert_allclose(got, largest.max(), rtol=1e-6)
    assert largest.max() > 1.01 * largest[0]
    rough = curvature(few_shot, Representation(z, None), support, 3)
    np.testing.assert_allclose(rough, largest.max(), rtol=0.02)  # as a run reports it
    assert rough <= largest.max()


def test_groups_are_learned(groups):
    result = solve(groups, "biadam_tracked", 150)
    before, after = result.metrics["validation_accuracy"]
    assert after > before + 0.05
    assert np.abs(result.y).max() > 0


@pytest.mark.parametrize("setting", ["fresh", "groups"])
def test_every_method_with_settings_takes_the_task(setting, request):
    """Traced, not compiled; the test above and the one below run some."""
    task = request.getfixturevalue(setting)
    assert set(task.settings) <= set(solvers.__all__)
    for name in task.settings:
        solver, source = task.build(name, getattr(solvers, name)), task.source_for(name)

        def go(x, y, solver=solver, source=source):
            state, _ = solver.init(task.problem, x, y, source(KEY, 0, solver.batches))
            return solver.step(task.problem, state, source(KEY, 1, solver.batches))[0].point

        start = task.x0, task.start_for(name)
        after = jax.eval_shape(go, *start)
        assert jax.tree.map(jnp.shape, (after.x, after.y)) == jax.tree.map(jnp.shape, start), name


@pytest.mark.parametrize("name", ["stable", "svrb"])
def test_methods_with_dense_matrices_take_small_groups(name):
    """Clipped at the convexity of the inner loss: a sample sees 2 of 10 groups."""
    small = {**SMALL, "encoder": Convolutional(4)}
    task = tasks.class_groups("digits", **small)
    assert task.settings[name]["convexity"] == pytest.approx(2 * 0.01 * 2 / 10)
    result = solve(task, name, 5)
    assert result.outcome == "ok"
    assert not np.array_equal(result.x[0].kernel, task.x0[0].kernel)
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


def within(images, characters):
    """Whether all images, ink 1 on paper 0, are drawings of the characters, not turned."""
    known = {one.tobytes() for one in characters.image.reshape(-1, 14, 14)}
    shown = np.rint(255 * np.asarray(images)).astype(np.uint8).reshape(-1, 14, 14)
    return all(one.tobytes() in known for one in shown)


@pytest.mark.parametrize("setting", ["fresh", "groups"])
def test_a_task_trains_and_is_judged_on_characters_of_their_own(setting, request, monkeypatch):
    """Every image of its samples, of VRBO's anchor, of the curves, of the statistics, of tests."""
    task = request.getfixturevalue(setting)
    parts = tasks.hyper_representation.drawn("digits", None)
    for source in (task.source, task.source_for("vrbo")):
        draw = jax.jit(jax.vmap(lambda t, source=source: source(KEY, t, 1)))
        sample = draw(jnp.arange(8))
        pairs = [(sample.outer, sample.inner)] + ([sample.whole] if sample.whole else [])
        assert len(pairs) == (2 if source is task.source_for("vrbo") else 1)
        for of in (part for pair in pairs for part in pair):
            assert within(of.image, parts.train)
            assert not within(of.image, parts.validation)
    shown = []
    watched = lambda few_shot, x, pairs, *rest: shown.append(list(pairs)) or np.full(4, 0.5)
    monkeypatch.setattr(tasks.hyper_representation, "accuracies", watched)
    task.curves["validation_accuracy"](task.x0, task.y0)
    task.evaluate(task.x0, task.y0)
    followed, fixed, seeing, again = shown
    for pairs in (followed, again):
        assert all(within(of.image, parts.validation) for pair in pairs for of in pair)
    for pairs in (fixed, seeing):
        assert all(within(of.image, parts.test) for pair in pairs for of in pair)
        assert sum(len(query.image) for query, _ in pairs) == 20
    bench = task.evaluate.__self__
    assert within(bench.pool, parts.train)


def test_intervals_are_of_the_accuracies(fresh):
    bench = fresh.evaluate.__self__
    told = fresh.evaluate(fresh.x0, fresh.y0)
    each = bench.accuracy(bench.fixed(fresh.x0), bench.tasks(bench.characters.test, 20))
    assert len(each) == 20
    half = 1.96 * np.sqrt(np.mean((each - np.mean(each)) ** 2) / 20)
    np.testing.assert_allclose(told["test_interval"], half, rtol=1e-12)
    np.testing.assert_allclose(told["test_accuracy"], np.mean(each), rtol=1e-12)


def test_images_on_the_host_make_the_same_run(fresh):
    """Bit for bit, through the driver's compiled loop."""
    host = tasks.fresh_tasks("digits", **SMALL, store=OnHost)
    assert isinstance(host.source.dealer.store, OnHost)
    here, there = (solve(task, "biadam", 3) for task in (fresh, host))
    for one, other in zip(jax.tree.leaves(here.x), jax.tree.leaves(there.x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_words_choose_turns_and_norms():
    small = {"data": "digits", "ways": 3, "queries": 4, "tasks": 2, "channels": 4, "episodes": 2}
    turned = tasks.few_shot_task(**{**small, "data": "digits"}, rotations=True, norm="group")
    assert turned.options["rotations"] is True
    assert turned.source.dealer.turns == 4
    assert "GroupNorm(groups=4)" in turned.options["encoder"]
    plain = tasks.few_shot_task(**small, setting="groups", norm="layer")
    assert plain.source.dealer.turns == 1
    assert "GroupNorm(groups=1)" in plain.options["encoder"]
    with pytest.raises(Mistake, match="there is no norm 'bach': did you mean 'batch'"):
        tasks.few_shot_task(**small, norm="bach")


class Net(eqx.Module):
    kernel: jax.Array

    def __call__(self, image):
        return jax.nn.relu(image.reshape(-1) @ self.kernel)


def own_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Other(nnx.Module):
        def __init__(self, rngs):
            self.head = nnx.Linear(196, 6, rngs=rngs)

        def __call__(self, image):
            return nnx.relu(self.head(image.reshape(len(image), -1).astype(jnp.float32)))

    return from_nnx(Other(nnx.Rngs(0)))


@pytest.mark.parametrize("kind", ["own", "equinox", "nnx"])
def test_a_saved_encoder_gives_the_features_of_the_run(kind, tmp_path):
    kinds = {
        "own": lambda: Convolutional(4, blocks=2, norm=BatchNorm()),
        "equinox": lambda: from_equinox(Net(0.1 * jr.normal(KEY, (196, 6)))),
        "nnx": own_nnx,
    }
    encoder = kinds[kind]()
    given = {**SMALL, "encoder": encoder, "ridge": 0.03}
    task = tasks.fresh_tasks("digits", **given)
    record.write(tmp_path, {}, task.keep(task.x0, task.y0))
    learned = tasks.Learned.load(tmp_path, None if kind == "own" else encoder)
    known = task.evaluate.__self__.fixed(task.x0).statistics
    image = tasks.hyper_representation.drawn("digits", None).test.image[:3, 0]
    want = encoder.apply(task.x0, jnp.asarray(image / 255), known)
    np.testing.assert_array_equal(learned.features(image), want)
    assert learned.few_shot.ridge == 0.03
    if kind != "own":
        return
    large = np.kron(image, np.ones((1, 3, 3), np.uint8))  # its area means are the image
    np.testing.assert_allclose(learned.features(large), want, rtol=1e-4, atol=1e-5)
    for shape in ((3, 10, 10), (3, 28, 14)):
        with pytest.raises(Mistake, match=f"must hold images of 14 x 14.* {shape[1]} x {shape[2]}"):
            learned.features(np.zeros(shape))


def test_a_task_says_what_it_was_made_from(fresh, groups):
    words = {"ways": 3, "shots": 1, "queries": 4, "tasks": 2, "held_out": 1, "episodes": 20}
    for task in (fresh, groups):
        assert {name: task.options[name] for name in words} == words
        assert task.options["ridge"] == (0.001 if task is fresh else 0.01)
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
    unseen = {f"{kind}_{of}" for kind in ("test", "seeing") for of in ("accuracy", "interval")}
    assert set(summary["metrics"]) == {"validation_accuracy", "curvature", *unseen}
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

"""The loop: bits, chunks, compilation, outputs, divergence."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import biadam
from biadam import DivergedWarning, Levels, Outcome, Problem, driver, outputs, schedules, solvers
from biadam.hypergradients import ConjugateGradient
from biadam.tasks import Quadratic

BED = Quadratic((2, 3), condition=3.0, noise=0.3, examples=8, seed=1)
KEY = jax.random.key(3)


def go(solver=None, steps=40, **given):
    return biadam.run(
        BED.problem,
        solvers.vr_biadam() if solver is None else solver,
        BED.minibatches(2),
        BED.x0,
        BED.y0,
        **{"steps": steps, "key": KEY, **given},
    )


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)


def test_equal_seeds_give_equal_bits_however_the_run_is_cut():
    whole = go(every=40)
    same(whole, go(every=40))
    same(whole, go(every=7))
    same(whole, go(every=1))
    same(whole, go(every=40, progress=True))  # a bar looks at the clock, in chunks of its own


def test_another_seed_gives_another_run():
    assert np.abs(np.asarray(go().x - go(key=jax.random.key(4)).x)).max() > 1e-6


def test_a_key_of_the_old_kind_serves():
    same(go(), go(key=jax.random.PRNGKey(3)))


def test_one_step_at_a_time_agrees_with_the_compiled_loop():
    one, other = go(steps=20), go(steps=20, compiled_loop=False)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-10)
    assert one.oracle_calls == other.oracle_calls
    same(other, go(steps=20, compiled_loop=False, every=3))


def test_changing_a_number_recompiles_nothing():
    def traces(monkey):
        seen = []
        plain = solvers.biadam().hypergradient

        class Seen(type(plain)):
            def __call__(self, problem, point, sample):
                seen.append(1)
                return super().__call__(problem, point, sample)

        for step in (0.1, 0.2, 1, 2):  # whole numbers are numbers too
            for k in (0.5, 0.7):
                hypergradient = Seen(plain.length, k)
                mixing = schedules.PowerDecay(1, 100 if k < 0.6 else 101.5)
                monkey(solvers.biadam((step, k), hypergradient=hypergradient, mixing=mixing))
                yield len(seen)

    counted = list(traces(lambda solver: go(solver, steps=5)))
    assert counted == [2] * 8  # the start, and the loop


def test_optax_schedules_serve_as_numbers():
    decay = optax.schedules.cosine_decay_schedule(0.1, 100)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes whole numbers with others
        result = go(solvers.biadam((decay, 0.1), mixing=optax.schedules.constant_schedule(0.5)))
    assert result.outcome is Outcome.OK
    np.testing.assert_allclose(result.info["eta"], 0.5)


def test_metrics_and_their_clock():
    metrics = {"first": lambda x, y: x[0], "gap": lambda x, y: np.linalg.norm(y)}
    result = go(steps=20, metrics=metrics, every=6)
    np.testing.assert_array_equal(result.at, [0, 6, 12, 18, 20])
    assert result.metrics["first"][0] == 0
    np.testing.assert_allclose(result.metrics["first"][-1], result.x[0])
    assert (np.diff(result.clock) > 0).all()
    np.testing.assert_array_equal(result.calls[:, 0], 1 + 2 * result.at)
    assert result.oracle_calls["outer_gradient"] == 41
    assert result.steps == 20
    np.testing.assert_array_equal(go(steps=20, evaluations=3).at, [0, 7, 14, 20])
    np.testing.assert_array_equal(go(steps=20).at, np.arange(21))
    assert len(go(steps=None, seconds=0.3, evaluations=3).at) <= 5


def test_no_steps_return_the_start():
    result = go(steps=0)
    np.testing.assert_array_equal(result.x, BED.x0)
    assert result.oracle_calls["outer_gradient"] == 1


def test_a_run_by_time_ends_by_time():
    result = go(steps=None, seconds=0.05)
    assert result.seconds >= 0.05
    assert result.steps > 10
    assert len(result.at) > 10


def test_a_run_ends_at_the_first_of_both_limits():
    assert go(steps=10, seconds=600.0).steps == 10


def test_outputs():
    points = {}
    log = lambda x, y: points.setdefault(len(points), np.array(x))[0] * 0 + 1.0
    go(steps=12, every=1, metrics={"log": log})
    path = np.array([points[i] for i in range(13)])
    average = go(steps=12, output=outputs.Average())
    np.testing.assert_allclose(average.x, path[:12].mean(0), rtol=1e-10)
    random = go(steps=12, output=outputs.RandomIterate())
    assert any(np.array_equal(random.x, x) for x in path[:12])
    np.testing.assert_array_equal(go(steps=1, output=outputs.RandomIterate()).x, path[0])
    metrics = {"first": lambda x, y: x[0]}
    least = go(steps=12, every=1, metrics=metrics, output=outputs.Best("first"))
    assert least.x[0] == path[:, 0].min()
    most = go(steps=12, every=1, metrics=metrics, output=outputs.Best("first", largest=True))
    assert most.x[0] == path[:, 0].max()


def test_the_best_iterate_is_not_the_first_because_that_was_nan():
    values = iter([np.nan, 3.0, 1.0, np.nan, 2.0])
    seen = []

    def metric(x, y):
        seen.append(np.array(x))
        return next(values)

    result = go(steps=4, every=1, metrics={"loss": metric}, output=outputs.Best("loss"))
    np.testing.assert_array_equal(result.x, seen[2])


def test_late_iterates_are_drawn_as_often_as_early_ones():
    """A uniform number of single precision is a multiple of 2^-23, too coarse for 1 / t."""
    t, n = 2**22 + 2**20, 2**23
    draws = jax.random.randint(KEY, (n,), 0, t) == 0  # what `update` does, for all keys at once
    assert abs(int(draws.sum()) - n / t) < 5 * np.sqrt(n / t)
    output, zero = outputs.RandomIterate(), Levels(jnp.zeros(()), jnp.zeros(()))
    one, step = Levels(jnp.ones(()), jnp.zeros(())), jnp.asarray(5)
    for key in jax.random.split(KEY, 20):
        kept = output.update(zero, one, step, key)
        assert float(kept.x) == float(jax.random.randint(key, (), 0, 5) == 0)


def test_the_random_iterate_is_uniform():
    output = outputs.RandomIterate()

    def pick(key):
        kept = output.init(Levels(jnp.zeros(()), jnp.zeros(())))
        for t in range(1, 6):
            new = Levels(jnp.asarray(t - 1.0), jnp.zeros(()))
            kept = output.update(kept, new, jnp.asarray(t), jax.random.fold_in(key, t))
        return kept.x

    taken = np.asarray(jax.jit(jax.vmap(pick))(jax.random.split(KEY, 5000))).astype(int)
    counts = np.bincount(taken, minlength=5)
    assert (np.abs(counts - 1000) < 5 * np.sqrt(1000 * 0.8)).all()


def test_divergence_returns_the_last_finite_point():
    """The run is repeated up to the step before, whatever the chunks were."""
    wild = solvers.ttsa((1e30, 1e30))
    with pytest.warns(DivergedWarning, match="stopped being finite at step") as caught:
        result = go(wild, steps=500, every=500)
    assert result.outcome is Outcome.DIVERGED
    assert "try smaller step sizes" in str(caught[0].message)
    assert np.isfinite(result.x).all() and np.isfinite(result.y).all()
    assert 0 < result.steps < 500
    same(result, go_quietly(wild, steps=result.steps, every=500))


def test_a_gradient_that_becomes_nan_is_divergence():
    """Conjugate gradients on a right-hand side of NaN must not return a finite direction."""
    near = lambda y: jnp.sum(jnp.sqrt(jnp.maximum(0.05 - jnp.abs(y - BED.y0), 0.0)))
    problem = Problem(lambda x, y, b: BED.outer(x, y, b) + near(y), BED.inner)
    solver = solvers.biadam(hypergradient=ConjugateGradient(3))
    with pytest.warns(DivergedWarning, match="stopped being finite"):
        result = biadam.run(problem, solver, BED.minibatches(2), BED.x0, BED.y0, steps=60, key=KEY)
    assert 0 < result.steps < 60


def test_an_interrupt_waits_for_a_second_and_not_for_a_million_steps():
    pace = driver._Pace(10**9, None, 10**9, 50)
    assert pace.chunk(0, 0.0, False) == 1
    assert pace.chunk(1000, 0.5, False) == 2000
    assert pace.chunk(1000, 0.5, True) == 400


def go_quietly(*arguments, **named):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return go(*arguments, **named)


def test_a_finite_blow_up_is_divergence_too():
    """Normalised steps of length 1e6 never overflow, and are worth nothing."""
    with pytest.warns(DivergedWarning, match="loss of a minibatch has grown from"):
        result = go(solvers.biadam((1e6, 1e6)), steps=2000)
    assert result.outcome is Outcome.DIVERGED
    assert result.steps < 2000


def test_a_bar_is_shown_only_if_asked_or_watched(capfd):
    go(steps=30)
    assert capfd.readouterr().err == ""
    go(steps=30, metrics={"first": lambda x, y: x[0]}, progress=True)
    shown = capfd.readouterr().err
    assert "steps/s" in shown
    assert "first" in shown


def test_steps_of_a_run_are_taken_in_one_place():
    """Whatever else calls a solver's step takes one, and no loop goes over many."""
    sources = Path(biadam.__file__).parent
    callers = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.py")
        if re.search(r"(solver|method)\.step\(", path.read_text())
    }
    assert callers == {"driver.py", "solvers/about.py"}  # the latter counts oracle calls

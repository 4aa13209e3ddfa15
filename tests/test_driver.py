"""The loop: bits, chunks, compilation, outputs, divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import biadam
from biadam import DivergedWarning, Levels, Outcome, driver, outputs, schedules, solvers
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

        for step in (0.1, 0.2, 0.05):
            for k in (0.5, 0.7):
                hypergradient = Seen(plain.length, k)
                mixing = schedules.PowerDecay(1.0, 100 * k)
                monkey(solvers.biadam((step, k), hypergradient=hypergradient, mixing=mixing))
                yield len(seen)

    counted = list(traces(lambda solver: go(solver, steps=5)))
    assert counted == counted[:1] * 6


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
    np.testing.assert_allclose(average.x, path.mean(0), rtol=1e-10)
    random = go(steps=12, output=outputs.RandomIterate())
    assert any(np.array_equal(random.x, x) for x in path)
    metrics = {"first": lambda x, y: x[0]}
    least = go(steps=12, every=1, metrics=metrics, output=outputs.Best("first"))
    assert least.x[0] == path[:, 0].min()
    most = go(steps=12, every=1, metrics=metrics, output=outputs.Best("first", largest=True))
    assert most.x[0] == path[:, 0].max()


def test_the_random_iterate_is_uniform():
    output = outputs.RandomIterate()

    def pick(key):
        kept = output.init(Levels(jnp.zeros(()), jnp.zeros(())))
        for t in range(2, 6):
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


def test_the_loop_exists_once():
    """Other modules hold fixed-length inner iterations, and none goes over the steps of a run."""
    assert driver.run is biadam.run

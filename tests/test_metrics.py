"""The adaptive matrices, by their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import biadam
from biadam import IdleWarning, Mistake, metrics, solvers
from biadam.data import Minibatches
from biadam.metrics import AdaGrad, AdaGradNorm, Adam, FromOptax, Identity, Largest, Norm
from biadam.tasks import Quadratic, hyper_cleaning

H = [np.array([3.0, -4.0]), np.array([1.0, 2.0])]
D = [np.array([2.0, -4.0]), np.array([0.5, -1.0])]
P = [np.array([0.0, 1.0]), np.array([0.0, -1.0])]


def run(metric, signal_of_step=None):
    like = jnp.zeros(2)
    memory = metric.init(like)
    for h, d, p in zip(H, D, P, strict=True):
        memory = metric.update(memory, jnp.asarray(h), jnp.asarray(d), jnp.asarray(p))
    return np.asarray(metric.matrix(memory, like))


@pytest.mark.parametrize(
    ("signal", "values"),
    [
        (metrics.fresh, H),
        (metrics.momentum, D),
        (metrics.partial, P),
        (metrics.deviation, [h - d for h, d in zip(H, D, strict=True)]),
        (metrics.partial_deviation, [p - d for p, d in zip(P, D, strict=True)]),
    ],
)
def test_adam_and_its_signals(signal, values):
    a = 0.9 * 0.1 * values[0] ** 2 + 0.1 * values[1] ** 2
    np.testing.assert_allclose(run(Adam(0.9, 0.01, signal=signal)), np.sqrt(a) + 0.01)


def test_floor_inside_and_correction():
    a = 0.9 * 0.1 * H[0] ** 2 + 0.1 * H[1] ** 2
    np.testing.assert_allclose(run(Adam(0.9, 0.01, inside=True)), np.sqrt(a + 0.01))
    corrected = np.sqrt(a / (1 - 0.9**2)) + 0.01
    np.testing.assert_allclose(run(Adam(0.9, 0.01, corrected=True)), corrected)


def test_adabelief_is_adam_of_the_deviation():
    np.testing.assert_array_equal(
        run(metrics.adabelief(0.9, 0.01)), run(Adam(0.9, 0.01, signal=metrics.deviation))
    )


def test_norm():
    sizes = [np.linalg.norm(h) for h in H]
    b = 0.9 * 0.1 * sizes[0] + 0.1 * sizes[1]
    np.testing.assert_allclose(run(Norm(0.9, 0.01)), b + 0.01)
    np.testing.assert_allclose(run(Norm(0.9, 0.01, corrected=True)), b / (1 - 0.81) + 0.01)
    square = 0.9 * 0.1 * sizes[0] ** 2 + 0.1 * sizes[1] ** 2
    np.testing.assert_allclose(run(Norm(0.9, 0.01, squared=True)), np.sqrt(square) + 0.01)
    assert run(Norm(0.9, 0.01, squared=True)) >= run(Norm(0.9, 0.01))  # Jensen
    started = Norm(0.9, 0.01, start=5.0, corrected=True)  # from which its share is taken away
    np.testing.assert_allclose(run(started), b / (1 - 0.81) + 0.01)


def test_norm_belief_starts_above_zero():
    gaps = [np.linalg.norm(h - d) for h, d in zip(H, D, strict=True)]
    b = 0.81 * 1.0 + 0.9 * 0.1 * gaps[0] + 0.1 * gaps[1]
    np.testing.assert_allclose(run(metrics.norm_belief(0.9, 0.01)), b + 0.01)


def test_norm_is_over_all_leaves():
    metric, tree = Norm(0.0, 0.5), {"a": jnp.asarray([3.0]), "b": jnp.asarray([[4.0]])}
    matrix = metric.matrix(metric.update(metric.init(tree), tree, tree, tree), tree)
    np.testing.assert_allclose([matrix["a"], matrix["b"]], 5.5)


def test_first_step_is_inflated_without_correction():
    """By 1 / sqrt(1 - tau) for the mean square, and by 1 / (1 - tau) for the mean norm."""
    one = jnp.ones(1)
    adam, norm = Adam(0.99, 1e-12), Norm(0.99, 1e-12)
    first = lambda m: m.matrix(m.update(m.init(one), one, one, one), one)
    np.testing.assert_allclose(first(adam), 0.1)
    np.testing.assert_allclose(first(norm), 0.01, rtol=1e-9)
    np.testing.assert_allclose(first(Adam(0.99, 1e-12, corrected=True)), 1.0)


def test_identity():
    np.testing.assert_array_equal(run(Identity()), 1.0)


def test_adagrad():
    np.testing.assert_allclose(run(AdaGrad(0.01)), np.sqrt(H[0] ** 2 + H[1] ** 2) + 0.01)
    driven = AdaGrad(0.01, signal=metrics.momentum)
    np.testing.assert_allclose(run(driven), np.sqrt(D[0] ** 2 + D[1] ** 2) + 0.01)


def test_adagrad_norm():
    b = np.sqrt(0.7**2 + sum(h @ h for h in H))
    np.testing.assert_allclose(run(AdaGradNorm(0.7, 0.01)), b + 0.01)
    b = np.sqrt(0.7**2 + sum(p @ p for p in P))
    np.testing.assert_allclose(run(AdaGradNorm(0.7, 0.01, signal=metrics.partial)), b + 0.01)


def test_amsgrad_keeps_the_largest():
    first, second = 0.5 * H[0] ** 2, 0.25 * H[0] ** 2 + 0.5 * H[1] ** 2
    assert (first > second).all()  # else the largest is the last
    amsgrad = metrics.amsgrad
    np.testing.assert_allclose(run(amsgrad(0.5, 0.01)), np.sqrt(first) + 0.01)
    np.testing.assert_allclose(run(amsgrad(0.5, 0.01, corrected=True)), abs(H[0]) + 0.01)
    first, second = 0.5 * P[0] ** 2, 0.25 * P[0] ** 2 + 0.5 * P[1] ** 2
    assert (first < second).any()
    driven = amsgrad(0.5, 0.01, metrics.partial)
    np.testing.assert_allclose(run(driven), np.sqrt(np.maximum(first, second)) + 0.01)
    sizes = [np.linalg.norm(h) for h in H]
    assert sizes[0] > sizes[1]
    np.testing.assert_allclose(run(Largest(Norm(0.0, 0.01))), sizes[0] + 0.01)


OPTAX = {
    "rms": (optax.scale_by_rms(0.9, eps=0.1, eps_in_sqrt=False), lambda s: Adam(0.9, 0.1, s)),
    "adam": (
        optax.scale_by_adam(b1=0.0, b2=0.9, eps=0.1),
        lambda s: Adam(0.9, 0.1, s, corrected=True),
    ),
    "amsgrad": (
        optax.scale_by_amsgrad(b1=0.0, b2=0.9, eps=0.1),
        lambda s: metrics.amsgrad(0.9, 0.1, s, corrected=True),
    ),
    # Its signals are at least as long as the bound.
    "clip": (optax.clip_by_global_norm(1.0), lambda s: Norm(0.0, 1e-12, s)),
    "identity": (optax.identity(), lambda s: Identity()),
}


@pytest.mark.parametrize("signal", [metrics.fresh, metrics.partial])
@pytest.mark.parametrize("name", OPTAX)
def test_a_transformation_of_optax_is_the_metric_of_its_formula(name, signal):
    """The partial signal has a zero in each step, where there is no quotient to take."""
    transformation, make = OPTAX[name]
    np.testing.assert_allclose(
        run(FromOptax(transformation, 1e-9, signal)), run(make(signal)), rtol=1e-6
    )


def test_a_step_in_the_metric_is_the_step_of_optax():
    """In single precision, on a pytree, in a compiled loop, with zeros and huge entries."""
    transformation = optax.scale_by_rss(initial_accumulator_value=0.1, eps=1e-7)
    metric = FromOptax(transformation, 1e-9)
    steps = {"a": jnp.asarray([[3e9, 0.0], [-1e-3, 2.0]], jnp.float32), "b": -jnp.ones((2,), "f4")}
    like = jax.tree.map(lambda a: a[0], steps)

    def body(t, memory):
        h = jax.tree.map(lambda a: a[t], steps)
        return metric.update(memory, h, h, h)

    memory = jax.jit(lambda: jax.lax.fori_loop(0, 2, body, metric.init(like)))()
    last = jax.tree.map(lambda a: a[1], steps)
    mine = jax.tree.map(jnp.divide, last, metric.matrix(memory, like))
    with jax.numpy_dtype_promotion("standard"):
        state = transformation.init(like)
        _, state = transformation.update(jax.tree.map(lambda a: a[0], steps), state)
        update, _ = transformation.update(last, state)
    assert mine["a"].dtype == np.float32
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mine, update)


def test_a_transformation_that_has_seen_nothing_gives_the_floor():
    """The sum of squares of optax updates by zero where all signals were zero."""
    metric = FromOptax(optax.scale_by_rss(initial_accumulator_value=0.0, eps=0.0), 0.01)
    like = jnp.zeros(2, jnp.float32)
    memory = metric.init(like)
    for h, wanted in (([0, 3], [0.01, 3]), ([0, -4], [0.01, 5]), ([2, 0], [2, 5])):
        signal = jnp.asarray(h, jnp.float32)
        memory = metric.update(memory, signal, signal, signal)
        np.testing.assert_allclose(metric.matrix(memory, like), wanted, rtol=1e-6)


def test_floor_of_a_transformation():
    np.testing.assert_array_equal(run(FromOptax(optax.scale(10.0), 0.5)), 0.5)


@pytest.mark.parametrize(
    "transformation",
    [
        optax.scale_by_adam(),
        optax.scale_by_lion(),
        optax.trace(1e-3),
        optax.scale_by_optimistic_gradient(),
        optax.sgd(0.1),
        optax.set_to_zero(),
        optax.scale_by_trust_ratio(),
        optax.add_decayed_weights(0.1),
    ],
)
def test_what_is_no_metric_is_refused(transformation):
    with pytest.raises(Mistake, match=r"`FromOptax.transformation` must "):
        FromOptax(transformation)


@pytest.mark.parametrize(
    "metric",
    [
        AdaGrad(0.01, metrics.partial),
        AdaGradNorm(0.1, 0.01, metrics.partial),
        metrics.amsgrad(0.9, 0.01, metrics.partial),
        FromOptax(optax.scale_by_rms(), 0.01, metrics.partial),
    ],
)
def test_idle_is_driven_by_nothing_but_zeros(metric):
    one = jnp.ones(2)
    quiet = metric.update(metric.init(one), one, one, jnp.zeros(2))
    assert bool(metric.idle(quiet))
    assert not bool(metric.idle(metric.update(quiet, one, one, one)))


@pytest.mark.parametrize(
    "metric",
    [
        AdaGrad(),
        AdaGradNorm(),
        metrics.amsgrad(),
        metrics.amsgrad(corrected=True),
        FromOptax(optax.scale_by_stddev(), 0.1),
    ],
)
def test_metrics_in_a_run(metric):
    """On either level, in single precision; every number of theirs is felt."""
    bed = Quadratic((2, 3), condition=3.0, noise=0.3, seed=1)
    small = lambda tree: jax.tree.map(
        lambda a: np.float32(a) if np.asarray(a).dtype == float else a, tree
    )
    data = Minibatches(small(bed.outer_data), small(bed.inner_data), 2)

    def go(metric):
        solver = solvers.biadam(outer_metric=metric, inner_metric=metric)
        x, y = small((bed.x0, bed.y0))
        return biadam.run(bed.problem, solver, data, x, y, steps=8, key=jax.random.key(0))

    base = go(metric)
    assert base.x.dtype == np.float32
    numbers, structure = jax.tree.flatten(metric)
    assert numbers
    for i in range(len(numbers)):
        changed = [0.9 * v + 0.013 if j == i else v for j, v in enumerate(numbers)]
        other = go(jax.tree.unflatten(structure, changed))
        assert not np.array_equal(other.x, base.x)
        assert not np.array_equal(other.y, base.y)


def test_the_literal_signal_adapts_to_nothing_in_hyper_cleaning():
    """The outer loss does not see x: f_x = 0, A = rho I, and the run says so."""
    task = hyper_cleaning("digits", train=50, validation=50)
    go = lambda solver: biadam.run(
        task.problem,
        solver,
        task.source,
        task.x0,
        task.y0,
        steps=20,
        key=jax.random.key(0),
    )
    literal = Adam(floor=0.5, signal=metrics.partial)
    with pytest.warns(IdleWarning, match="`outer_metric` has been exactly zero"):
        result = go(solvers.biadam(outer_metric=literal))
    matrix = literal.matrix(result.state.memory.x, task.x0)
    np.testing.assert_array_equal(matrix, 0.5)
    go(solvers.biadam())  # warnings are errors: the default must not warn

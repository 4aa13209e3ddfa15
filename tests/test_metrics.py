"""The adaptive matrices, by their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
from biadam import IdleWarning, metrics, solvers
from biadam.metrics import Adam, Identity, Norm
from biadam.tasks import hyper_cleaning

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

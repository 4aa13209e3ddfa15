"""Averages of the noise: their algebra, and that both points see the very same sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from biadam import Levels, solvers
from biadam.estimators import MovingAverage, Storm
from biadam.hypergradients import Field, NeumannRandom
from biadam.metrics import Identity
from biadam.problem import Calls
from biadam.schedules import Constant
from biadam.solver import SingleLoop
from biadam.tasks import Quadratic
from counting import Counting

BED = Quadratic((2, 3), condition=3.0, noise=0.3, examples=9, seed=1)


def field(point: Levels) -> Field:
    slope = Levels(2 * point.x, point.y - 1)
    return Field(slope, point.x, jnp.asarray(0.0, jnp.float32), Calls(1, 1))


NEW, OLD = Levels(jnp.asarray([1.0, 2.0]), jnp.asarray([3.0])), Levels(jnp.zeros(2), jnp.ones(1))
DIRECTION = Levels(jnp.asarray([0.5, -1.0]), jnp.asarray([4.0]))
RATES = Levels(jnp.asarray(0.25), jnp.asarray(0.5))


def test_moving_average():
    d, fresh, calls = MovingAverage()(field, NEW, OLD, DIRECTION, RATES)
    np.testing.assert_allclose(d.x, 0.25 * np.array([2.0, 4.0]) + 0.75 * np.array([0.5, -1.0]))
    np.testing.assert_allclose(d.y, [0.5 * 2 + 0.5 * 4])
    assert fresh.value.x is not None
    assert calls == Calls(1, 1)


def test_storm():
    d, _, calls = Storm()(field, NEW, OLD, DIRECTION, RATES)
    np.testing.assert_allclose(d.x, np.array([2.0, 4.0]) + 0.75 * (np.array([0.5, -1.0]) - 0))
    np.testing.assert_allclose(d.y, [2 + 0.5 * (4 - 0)])
    assert calls == Calls(2, 2)


def test_storm_at_rest_is_a_moving_average():
    """With the point frozen the correction cancels: w = (1 - b) w + b h, exactly."""
    still, _, _ = Storm()(field, NEW, NEW, DIRECTION, RATES)
    mean, _, _ = MovingAverage()(field, NEW, NEW, DIRECTION, RATES)
    for one, other in zip(still[:2], mean[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)


def trajectory(solver, steps=30):
    data, key = BED.minibatches(2), jax.random.key(5)
    step = jax.jit(lambda state, t: solver.step(BED.problem, state, data(key, t, solver.batches)))
    state, _ = solver.init(BED.problem, BED.x0, BED.y0, data(key, 0, solver.batches))
    points = []
    for t in range(1, steps):
        state, _ = step(state, t)
        points.append(np.concatenate(state.point[:2]))
    return np.array(points)


def plain(estimator):
    return SingleLoop(
        (0.05, 0.3),
        NeumannRandom(4, 0.5),
        estimator,
        Identity(),
        Identity(),
        mixing=1.0,
        rates=Constant(1.0, 1.0),
    )


def test_rate_one_is_plain_descent_bit_for_bit():
    """Both averages at rate 1, and the recursion x - gamma h written out by hand."""
    average, storm = trajectory(plain(MovingAverage())), trajectory(plain(Storm()))
    np.testing.assert_array_equal(average, storm)

    hypergradient, data, key = NeumannRandom(4, 0.5), BED.minibatches(2), jax.random.key(5)

    @jax.jit
    def descend(point, h, t):
        point = Levels(point.x - 0.05 * h.x, point.y - 0.3 * h.y)
        return point, hypergradient(BED.problem, point, data(key, t, 5)).value

    point, points = Levels(BED.x0, BED.y0), []
    h = jax.jit(lambda: hypergradient(BED.problem, point, data(key, 0, 5)).value)()
    for t in range(1, 30):
        point, h = descend(point, h, t)
        points.append(np.concatenate(point[:2]))
    np.testing.assert_array_equal(average, np.array(points))


def test_storm_differs_from_a_moving_average_when_the_point_moves():
    """Where the old point is an alias of the new one, the two coincide: the known defect."""
    rates = Constant(0.3, 0.3)
    slots = ((0.05, 0.3), NeumannRandom(4, 0.5))
    storm = SingleLoop(*slots, Storm(), Identity(), Identity(), 1.0, rates)
    mean = SingleLoop(*slots, MovingAverage(), Identity(), Identity(), 1.0, rates)
    assert np.abs(trajectory(storm) - trajectory(mean)).max() > 1e-3


@pytest.mark.parametrize("name", ["vr_biadam", "vr_biadam_tracked", "vr_biadam_authors"])
def test_both_points_see_the_same_examples_and_the_same_length(name):
    solver = getattr(solvers, name)((0.1, 0.1))
    if name == "vr_biadam":
        solver = solvers.vr_biadam((0.1, 0.1), hypergradient=NeumannRandom(6, 0.5))
    problem, data, key = Counting(BED.problem), BED.minibatches(2), jax.random.key(7)
    state, _ = solver.init(problem, BED.x0, BED.y0, data(key, 0, solver.batches))
    lengths = set()
    for t in range(1, 9):
        old = tuple(np.asarray(state.point.x).tolist())
        problem.log.notes.clear()
        state, info = solver.step(problem, state, data(key, t, solver.batches))
        new = tuple(np.asarray(state.point.x).tolist())
        problem.log.counts()
        seen = {
            where: sorted((kind, ids) for kind, at, ids in problem.log.notes if at == where)
            for where in (old, new)
        }
        assert old != new
        assert seen[old] == seen[new]
        assert len(problem.log.notes) == 2 * len(seen[new]) == sum(int(n) for n in info.calls)
        lengths.add(int(info.calls.hessian_product))
    if name == "vr_biadam":
        assert len(lengths) > 2  # the random length did vary from step to step


def test_an_old_state_is_a_value():
    """Stepping can't change a state that was kept."""
    solver, data, key = solvers.vr_biadam(), BED.minibatches(2), jax.random.key(5)
    state, _ = solver.init(BED.problem, BED.x0, BED.y0, data(key, 0, solver.batches))
    before = jax.tree.map(np.array, state)
    solver.step(BED.problem, state, data(key, 1, solver.batches))
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, state))


def test_vr_biadam_is_biadam_but_for_its_estimator_and_schedule():
    one, other = solvers.biadam(), solvers.vr_biadam()
    differing = {
        name
        for name in vars(one)
        if jax.tree.leaves(getattr(one, name)) != jax.tree.leaves(getattr(other, name))
        or type(getattr(one, name)) is not type(getattr(other, name))
    }
    assert differing == {"estimator", "mixing", "rates"}

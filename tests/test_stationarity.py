"""The measures of stationarity, on the quadratic bed in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
from biadam import Mistake, Problem, driver, metrics, solvers, stationarity
from biadam.hypergradients import ConjugateGradient
from biadam.sets import Box
from biadam.tasks import Quadratic

BED = Quadratic((3, 4), condition=5.0, noise=0.3, seed=5)
DATA = BED.outer_data, BED.inner_data
X, Y = np.array([0.3, -0.2, 0.1]), np.array([0.5, 0.1, -0.4, 0.2])
BOX = Box(-0.25, 0.35)
BOXED = Problem(BED.outer, BED.inner, outer_set=BOX)
MATRIX = np.array([0.5, 1.0, 3.0])
KEY = jax.random.key(2)


def gradient(x):
    return BED.hypergradient(x, BED.solution(x))


def go(solver, metrics, steps=60, problem=BOXED, **given):
    return biadam.run(
        problem, solver, BED.minibatches(2), X, Y, steps=steps, key=KEY, metrics=metrics, **given
    )


def test_inner_solution_of_a_quadratic():
    y = stationarity.inner_solution(BED.problem, X, Y, BED.inner_data)
    np.testing.assert_allclose(y, BED.solution(X), rtol=1e-10)


def test_inner_solution_far_from_quadratic_and_over_pytrees():
    """The full Newton step overshoots on these walls; the minimiser is known by its slope."""

    def inner(x, y, batch):
        walls = jnp.sum(jnp.sqrt(1 + (y["a"] - batch) ** 2)) + jnp.exp(y["b"]) - x * y["b"]
        return walls + 1e-3 * (jnp.sum(y["a"] ** 2) + y["b"] ** 2)

    problem = Problem(lambda x, y, batch: x * y["b"], inner)
    x, y, batch = (
        jnp.asarray(2.0),
        {"a": jnp.full(2, 30.0), "b": jnp.asarray(-8.0)},
        jnp.arange(2.0),
    )
    found = stationarity.inner_solution(problem, x, y, batch)
    slope = problem.inner_gradient(x, found, batch)
    assert max(float(jnp.abs(a).max()) for a in jax.tree.leaves(slope)) < 1e-12
    with pytest.raises(Mistake, match=r"in 2 Newton steps, .*; raise `steps`"):
        stationarity.inner_solution(problem, x, y, batch, steps=2)
    hill = Problem(problem.outer, lambda x, y, batch: -inner(x, y, batch))
    with pytest.raises(Mistake, match="not strongly convex"):
        stationarity.inner_solution(hill, x, y, batch)


def test_inner_solution_in_single_precision():
    small = lambda tree: jax.tree.map(lambda a: np.float32(a) if a.dtype == float else a, tree)
    y = stationarity.inner_solution(BED.problem, *small((X, Y, BED.inner_data)))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, BED.solution(X), rtol=2e-5)


def test_gradient_mapping():
    mapping = stationarity.gradient_mapping
    free = mapping(BED.problem, *DATA)(X, Y)
    np.testing.assert_allclose(free, np.linalg.norm(gradient(X)), rtol=1e-7)
    scaled = mapping(BED.problem, *DATA, step_size=0.1, matrix=MATRIX)(X, Y)
    np.testing.assert_allclose(scaled, np.linalg.norm(gradient(X) / MATRIX), rtol=1e-7)
    boxed = mapping(BOXED, *DATA, step_size=0.2, matrix=MATRIX)(X, Y)
    target = np.clip(X - 0.2 * gradient(X) / MATRIX, -0.25, 0.35)
    np.testing.assert_allclose(boxed, np.linalg.norm(X - target) / 0.2, rtol=1e-7)
    assert boxed < 0.9 * scaled  # else the box was not reached
    assert mapping(BED.problem, *DATA)(BED.optimum(), Y) < 1e-7


def measured(x, y, w, a, gamma, drift, rho):
    step = np.linalg.norm(np.clip(x - gamma * w / a, -0.25, 0.35) - x) / gamma
    return step + (np.sqrt(2) * np.linalg.norm(w - BED.hypergradient(x, y)) + drift) / rho


def test_convergence_measure():
    solver = solvers.biadam((0.2, 0.1), outer_metric=metrics.AdaGrad())
    state = go(solver, {}, steps=7).state
    x, y, w = (np.asarray(a) for a in (state.point.x, state.point.y, state.direction.x))
    a = np.asarray(solver.outer_metric.matrix(state.memory.x, x))
    distance = np.linalg.norm(BED.solution(x) - y)
    gap = np.linalg.norm(gradient(x) - BED.hypergradient(x, y))
    measure = lambda **given: stationarity.convergence_measure(
        BOXED, solver, *DATA, **given
    ).function(state)
    least = a.min()
    assert a.max() > 1.1 * least
    expected = measured(x, y, w, a, 0.2, np.sqrt(2) * gap, least)
    np.testing.assert_allclose(measure(), expected, rtol=1e-7)
    expected = measured(x, y, w, a, 0.2, 7.0 * distance, least)
    np.testing.assert_allclose(measure(lipschitz=7.0), expected, rtol=1e-7)
    expected = measured(x, y, w, a, 0.2, np.sqrt(2) * gap, 1e-3)
    np.testing.assert_allclose(measure(floor=1e-3), expected, rtol=1e-7)


def test_the_measure_bounds_the_gradient_mapping_along_a_run():
    """Inequality (19), with the L_0 of the bed: sqrt 2 times the Lipschitz constant in y."""
    solver = solvers.biadam((0.2, 0.1), outer_metric=metrics.Adam(corrected=True, floor=0.1))
    inverse = np.linalg.inv(BED.hessian)
    lipschitz = float(np.sqrt(2) * np.linalg.norm(BED.coupling @ inverse, 2))

    def mapping(state):
        matrix = solver.moves(BOXED, state).x.matrix
        find = stationarity.gradient_mapping(BOXED, *DATA, step_size=0.2, matrix=matrix)
        return find(state.point.x, state.point.y)

    measure = stationarity.convergence_measure
    wanted = {
        "mapping": driver.OfState(mapping),
        "least": measure(BOXED, solver, *DATA),
        "given": measure(BOXED, solver, *DATA, lipschitz=lipschitz),
        "floor": measure(BOXED, solver, *DATA, lipschitz=lipschitz, floor=0.1),
    }
    seen = go(solver, wanted, steps=60, every=3).metrics
    for lower, upper in (("mapping", "least"), ("least", "given"), ("given", "floor")):
        assert (seen[lower] <= seen[upper] * (1 + 1e-9)).all()
    assert seen["mapping"].max() > 0.1


def test_both_vanish_at_a_constrained_optimum():
    solver = solvers.biadam(
        (0.3, 0.3),
        hypergradient=ConjugateGradient(tolerance=1e-12),
        outer_metric=metrics.AdaGrad(),
        inner_metric=metrics.Identity(),
        mixing=1.0,
    )
    result = biadam.run(
        BOXED,
        solver,
        BED.full(),
        X,
        Y,
        steps=400,
        key=KEY,
        metrics={
            "measure": stationarity.convergence_measure(BOXED, solver, *DATA),
            "mapping": stationarity.gradient_mapping(BOXED, *DATA),
        },
        every=400,
    )
    assert np.isclose(np.abs(np.asarray(result.x)), [[0.25], [0.35]]).any()
    assert result.metrics["measure"][-1] < 1e-6
    assert result.metrics["mapping"][-1] < 1e-6
    assert np.linalg.norm(gradient(np.asarray(result.x))) > 0.1


def test_no_gradient_where_the_inner_border_is_reached():
    tight = Problem(BED.outer, BED.inner, inner_set=Box(-0.1, 0.1))
    assert np.isnan(stationarity.gradient_mapping(tight, *DATA)(X, 0 * Y))
    wide = Problem(BED.outer, BED.inner, inner_set=Box(-9.0, 9.0))
    assert np.isfinite(stationarity.gradient_mapping(wide, *DATA)(X, 0 * Y))


def test_mistakes():
    for given, answer in (
        ({"lipschitz": 0.0}, "`lipschitz` must be above 0"),
        ({"floor": -1.0}, "`floor` must be above 0"),
    ):
        with pytest.raises(Mistake, match=answer):
            stationarity.convergence_measure(BOXED, solvers.biadam(), *DATA, **given)
    with pytest.raises(Mistake, match="`step_size` must be above 0"):
        stationarity.gradient_mapping(BOXED, *DATA, step_size=0.0)

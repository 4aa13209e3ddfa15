"""Every estimator of the hypergradient against its closed form on the quadratic test bed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import approx_fprime

import biadam
from biadam import Levels, Mistake, Problem, Sample
from biadam.hypergradients import (
    ConjugateGradient,
    Exact,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
    Unrolled,
)
from biadam.hypergradients.conjugate_gradient import conjugate_gradient, refined
from biadam.tasks import Quadratic

BED = Quadratic((3, 4), condition=5.0, noise=0.3, examples=6, seed=4)
X = np.array([0.3, -1.0, 0.7])
Y = np.array([1.0, 0.2, -0.4, 0.6])
POINT = Levels(jnp.asarray(X), jnp.asarray(Y))


def whole(batches: int, key: int = 0) -> Sample:
    """All data in every minibatch: no noise."""
    return BED.full()(jax.random.key(key), 0, batches)


def expected(inverse: np.ndarray) -> np.ndarray:
    """The hypergradient with another matrix for the inverse Hessian."""
    return BED.ridge * (X - BED.centre) + BED.coupling @ inverse @ (Y - BED.target)


def series(terms: int, step: float) -> np.ndarray:
    shrink = np.eye(4) - step * BED.hessian
    return step * sum(np.linalg.matrix_power(shrink, q) for q in range(terms))


def value(estimator, sample: Sample | None = None, point: Levels = POINT) -> np.ndarray:
    sample = whole(estimator.batches) if sample is None else sample
    look = eqx.filter_jit(estimator)
    return np.asarray(look(BED.problem, estimator.lift(point.x, point.y), sample).value.x)


def test_closed_form_is_the_derivative_of_the_outer_function():
    def outer(x):
        y = BED.solution(x)
        near = np.mean(np.sum((y - BED.outer_data["target"]) ** 2, axis=1))
        small = np.mean(np.sum((x - BED.outer_data["centre"]) ** 2, axis=1))
        return (near + BED.ridge * small) / 2

    slope = approx_fprime(X, outer, 1e-7)
    np.testing.assert_allclose(BED.hypergradient(X, BED.solution(X)), slope, atol=1e-6)
    np.testing.assert_allclose(
        BED.hypergradient(BED.optimum(), BED.solution(BED.optimum())), 0, atol=1e-12
    )


def test_public_hypergradient():
    got = biadam.hypergradient(
        BED.problem, POINT.x, POINT.y, BED.outer_data, BED.inner_data, tolerance=1e-12
    )
    np.testing.assert_allclose(got, BED.hypergradient(X, Y), rtol=1e-10)


def test_public_hypergradient_on_pytrees():
    def outer(x, y, batch):
        return BED.outer(jnp.concatenate([x["a"], x["b"]]), jnp.concatenate(y), batch)

    def inner(x, y, batch):
        return BED.inner(jnp.concatenate([x["a"], x["b"]]), jnp.concatenate(y), batch)

    x = {"a": POINT.x[:1], "b": POINT.x[1:]}
    got = biadam.hypergradient(
        Problem(outer, inner), x, (POINT.y[:2], POINT.y[2:]), BED.outer_data, BED.inner_data
    )
    flat = np.concatenate([got["a"], got["b"]])
    np.testing.assert_allclose(flat, BED.hypergradient(X, Y), rtol=1e-6)


def test_public_hypergradient_refuses_what_is_not_convex():
    bent = Problem(BED.outer, lambda x, y, b: BED.inner(x, y, b) - 2 * jnp.sum(y**2))
    with pytest.raises(Mistake, match="not strongly convex"):
        biadam.hypergradient(bent, POINT.x, POINT.y, BED.outer_data, BED.inner_data)


def test_public_hypergradient_says_when_it_is_not_reached():
    with pytest.raises(Mistake, match="not to the tolerance"):
        biadam.hypergradient(BED.problem, POINT.x, POINT.y, BED.outer_data, BED.inner_data, steps=1)


def ill_conditioned(condition, size):
    """An inner loss of curvatures down to 1 over its condition, and an outer one that sees all."""
    h = jnp.geomspace(1 / condition, 1.0, size, dtype=jnp.float32)
    basis = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0], "f4")
    turned = lambda y: basis @ (h * (basis.T @ y))
    inner = lambda x, y, b: 0.5 * jnp.vdot(y, turned(y)) - jnp.vdot(x, y)
    outer = lambda x, y, b: jnp.sum(y)
    return Problem(outer, inner), np.asarray(basis, float), np.asarray(h, float)


def test_public_hypergradient_restarts_from_the_true_residual():
    """In single precision the recursion says that it has arrived long before it has."""
    problem, basis, h = ill_conditioned(1e6, 100)
    zero, one = jnp.zeros(100, jnp.float32), jnp.ones(1)

    def true(s):
        missing = basis @ (h * (basis.T @ np.asarray(s, float))) - 1
        return np.linalg.norm(missing) / 10

    got = biadam.hypergradient(problem, zero, zero, one, one, tolerance=1e-2)
    assert got.dtype == jnp.float32
    # J = -I and f_x = 0, so this is s; |H s| itself is known to some 1e-3 in this precision.
    assert true(got) <= 1.3e-2
    operator = lambda u: problem.hessian_product(zero, zero, one, u)
    once = conjugate_gradient(operator, jnp.ones_like(zero), steps=10_000, tolerance=1e-2)
    assert float(once.residual) <= 1e-2
    assert true(once.s) > 1.8e-2


def test_refined_counts_the_products_of_its_checks():
    h = jnp.asarray([1.0, 2.0, 4.0])
    found = refined(lambda u: h * u, jnp.ones(3), steps=100, tolerance=1e-10)
    assert int(found.products) == 3 + 1
    np.testing.assert_allclose(found.s, 1 / h)
    few = refined(lambda u: h * u, jnp.ones(3), steps=1, tolerance=1e-10)
    assert int(few.products) == 1 + 1
    true = np.linalg.norm(h * few.s - 1) / np.sqrt(3)
    np.testing.assert_allclose(few.residual, true)
    nothing = refined(lambda u: h * u, jnp.zeros(3), steps=100, tolerance=1e-10)
    assert (int(nothing.products), float(nothing.residual)) == (0, 0.0)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_conjugate_gradient_hides_nothing_that_is_not_finite(bad):
    b = jnp.ones(3).at[1].set(bad)
    of_b = conjugate_gradient(lambda u: 2 * u, b, steps=5, tolerance=1e-3)
    of_a = conjugate_gradient(lambda u: bad * u, jnp.ones(3), steps=5, tolerance=1e-3)
    for found in (of_b, of_a):
        assert not np.isfinite(found.residual)
    assert not np.isfinite(of_b.s).all()
    if np.isnan(bad):
        assert np.isnan(of_a.s).all()


@pytest.mark.parametrize("estimator", [ConjugateGradient(5), LinearSystem(0.5)])
def test_residual_of_a_system_that_is_nan_is_nan(estimator):
    spoilt = Problem(lambda x, y, b: jnp.nan * jnp.sum(y), BED.inner)
    point = estimator.lift(POINT.x, POINT.y)
    field = eqx.filter_jit(estimator)(spoilt, point, whole(estimator.batches))
    assert np.isnan(field.residual)


@pytest.mark.parametrize(
    ("outer", "inner", "what"),
    [
        (lambda x, y, b: jnp.sqrt(jnp.sum(x) * 0) + jnp.sum(y), None, "outer loss in x"),
        (lambda x, y, b: jnp.sqrt(jnp.sum(y) * 0) + jnp.sum(x), None, "outer loss in y"),
        (None, lambda x, y, b: BED.inner(x, y, b) + jnp.nan * jnp.sum(y**2), "Hessian"),
        (
            None,
            lambda x, y, b: BED.inner(x, y, b) + jnp.sum(y) * jnp.sqrt(jnp.sum(x) * 0),
            "the hypergradient",
        ),
    ],
)
def test_public_hypergradient_refuses_what_is_not_finite(outer, inner, what):
    problem = Problem(outer or BED.outer, inner or BED.inner)
    with pytest.raises(Mistake, match=f"{what}.* not finite"):
        biadam.hypergradient(problem, POINT.x, POINT.y, BED.outer_data, BED.inner_data)


@pytest.mark.parametrize("terms", [0, 1, 5])
def test_neumann_sum(terms):
    got = value(NeumannSum(terms, 0.7))
    np.testing.assert_allclose(got, expected(series(terms + 1, 0.7)), rtol=1e-10)


@pytest.mark.parametrize("terms", [1, 4])
def test_neumann_sum_tells_what_the_series_leaves(terms):
    """f_y - H s = (I - step H)^{Q + 1} f_y; told is the power before it, which is at hand."""
    field = NeumannSum(terms, 0.7)(BED.problem, POINT, whole(terms + 2))
    f_y = Y - BED.target
    left = f_y - BED.hessian @ series(terms, 0.7) @ f_y
    np.testing.assert_allclose(
        field.residual, np.linalg.norm(left) / np.linalg.norm(f_y), rtol=1e-6
    )


def test_neumann_sum_applies_the_highest_sample_first():
    sample = BED.minibatches(1)(jax.random.key(3), 0, 4)
    hessians = np.asarray(sample.inner["hessian"]).mean(1)  # zeta, zeta^0, zeta^1, zeta^2
    coupling = np.asarray(sample.inner["coupling"]).mean(1)[1]
    target = np.asarray(sample.outer["target"]).mean(0)
    centre = np.asarray(sample.outer["centre"]).mean(0)
    shrink = [np.eye(4) - 0.7 * hessian for hessian in hessians]
    f_y = Y - target
    first = shrink[3] @ f_y
    s = 0.7 * (f_y + first + shrink[2] @ first)
    hand = BED.ridge * (X - centre) + coupling @ s
    np.testing.assert_allclose(value(NeumannSum(2, 0.7), sample), hand, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_random_length_has_the_mean_of_the_sum(length):
    """Exactly, over its lengths: the one with Q = K - 1. The lengths are found by their keys."""
    estimator = NeumannRandom(length, 0.7)
    by_length = {}
    look = eqx.filter_jit(estimator)
    for key in range(200):
        sample = whole(estimator.batches)._replace(key=jax.random.key(key))
        k = int(jax.random.randint(sample.key, (), 0, length))
        if k not in by_length:
            field = look(BED.problem, POINT, sample)
            assert int(field.calls.hessian_product) == k
            by_length[k] = np.asarray(field.value.x)
    assert sorted(by_length) == list(range(length))
    mean = np.mean([by_length[k] for k in range(length)], axis=0)
    np.testing.assert_allclose(mean, value(NeumannSum(length - 1, 0.7)), rtol=1e-12)


def test_random_length_from_one_would_be_biased():
    """Lengths 1 .. K in place of 0 .. K - 1 leave out the identity and add another power."""
    shrink = np.eye(4) - 0.7 * BED.hessian
    powers = [6 * 0.7 * np.linalg.matrix_power(shrink, k) for k in range(1, 7)]
    wrong = expected(np.mean(powers, axis=0))
    assert np.linalg.norm(wrong - value(NeumannSum(5, 0.7))) > 0.05


def test_bias_of_the_series_obeys_its_bound_and_attains_it():
    mu = np.linalg.eigvalsh(BED.hessian)[0]
    for terms in (1, 4, 16):
        left = np.linalg.inv(BED.hessian) - series(terms, 1.0)
        bound = (1 - mu) ** terms / mu
        np.testing.assert_allclose(np.linalg.norm(left, 2), bound, rtol=1e-9)


@pytest.mark.parametrize(
    "estimator",
    [
        ConjugateGradient(4),
        ConjugateGradient(50, tolerance=1e-12),
        FixedPoint(400, 1.0),
        NeumannSum(400, 1.0),
        Exact(),
    ],
)
def test_implicit_estimators_agree_with_the_closed_form(estimator):
    np.testing.assert_allclose(value(estimator), BED.hypergradient(X, Y), rtol=1e-8)


def test_fixed_point_is_the_series_on_one_sample():
    np.testing.assert_allclose(value(FixedPoint(5, 0.7)), expected(series(5, 0.7)), rtol=1e-12)


def test_damping():
    damped = np.linalg.inv(BED.hessian + 0.3 * np.eye(4))
    got = value(ConjugateGradient(20, tolerance=1e-13, damping=0.3))
    np.testing.assert_allclose(got, expected(damped), rtol=1e-9)


def test_conjugate_gradient_returns_the_iterate_that_met_the_tolerance():
    """A one-dimensional system is solved by the first product, not by the one before."""
    bed = Quadratic((1, 1), condition=1.0, seed=5)
    estimator = ConjugateGradient(10, tolerance=1e-6)
    point = Levels(jnp.ones(1), jnp.ones(1))
    field = estimator(bed.problem, point, bed.full()(jax.random.key(0), 0, 2))
    np.testing.assert_allclose(field.value.x, bed.hypergradient(np.ones(1), np.ones(1)))
    assert int(field.calls.hessian_product) == 1
    assert float(field.residual) < 1e-6


def test_conjugate_gradient_of_nothing_is_nothing():
    estimator = ConjugateGradient(5)
    solved = estimator.solve(BED.problem, POINT, whole(2), jnp.zeros(4))
    np.testing.assert_array_equal(solved.s, 0)
    assert int(solved.products) == 0
    assert float(solved.residual) == 0


def test_residual_of_conjugate_gradient_is_true():
    estimator = ConjugateGradient(2)
    sample = whole(2)
    f_y = jnp.asarray(Y - BED.target)
    s = estimator.solve(BED.problem, POINT, sample, f_y)
    true = np.linalg.norm(BED.hessian @ np.asarray(s.s) - f_y) / np.linalg.norm(f_y)
    np.testing.assert_allclose(s.residual, true, rtol=1e-10)


@pytest.mark.parametrize("truncation", [None, 3])
def test_unrolled_is_the_derivative_of_what_it_unrolls(truncation):
    estimator = Unrolled(6, 0.4, truncation)
    sample = BED.minibatches(1)(jax.random.key(1), 0, estimator.batches)

    def end(x):
        y = POINT.y
        for i in range(6):
            seen = x if truncation is None or i >= 6 - truncation else jax.lax.stop_gradient(x)
            y = y - 0.4 * BED.problem.inner_gradient(seen, y, sample.batch(i + 1))
        return BED.problem.outer(x, y, sample.outer)

    np.testing.assert_allclose(value(estimator, sample), jax.grad(end)(POINT.x), rtol=1e-10)


def test_unrolled_long_enough_is_implicit():
    at_end = Levels(POINT.x, jnp.asarray(BED.solution(X)))
    got = value(Unrolled(400, 1.0), point=at_end)
    np.testing.assert_allclose(got, BED.hypergradient(X, BED.solution(X)), rtol=1e-8)


def test_linear_system_iterated_agrees_with_the_closed_form():
    estimator, sample = LinearSystem(1.0), whole(1)
    look = eqx.filter_jit(estimator)
    point = estimator.lift(POINT.x, POINT.y)
    for _ in range(400):
        field = look(BED.problem, point, sample)
        point = point._replace(s=point.s - field.value.s)
    field = look(BED.problem, point, sample)
    np.testing.assert_allclose(field.value.x, BED.hypergradient(X, Y), rtol=1e-8)
    assert float(field.residual) < 1e-8
    slope = BED.hessian @ Y - BED.coupling.T @ X - BED.shift
    np.testing.assert_allclose(field.value.y, slope, rtol=1e-10)


def test_the_three_terms_of_one_pass_are_those_of_three():
    sample = BED.minibatches(2)(jax.random.key(2), 0, 1)
    batch, u = sample.batch(0), jnp.asarray([0.5, -1.0, 2.0, 0.1])
    together = BED.problem.gradient_and_products(POINT.x, POINT.y, batch, u)
    apart = (
        BED.problem.inner_gradient(POINT.x, POINT.y, batch),
        BED.problem.hessian_product(POINT.x, POINT.y, batch, u),
        BED.problem.cross_product(POINT.x, POINT.y, batch, u),
    )
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    hessian, cross = BED.problem.products(POINT.x, POINT.y, batch, u)
    np.testing.assert_allclose(hessian, apart[1], rtol=1e-12)
    np.testing.assert_allclose(cross, apart[2], rtol=1e-12)


def test_exact_refuses_what_is_too_large():
    with pytest.raises(Mistake, match="at most 3 inner variables, but y has 4"):
        Exact(most=3)(BED.problem, POINT, whole(2))

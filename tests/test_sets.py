"""Projections in the norm of a diagonal matrix, against references of two kinds.

* A general solver of quadratic programmes (an active-set method, since interior points are good to
  1e-5 only where a constraint holds with equality and no force), at matrices between 1e-1 and 1e1.
  The L2 ball, which is no polyhedron, takes a sequence of such programmes.
* The conditions of Karush, Kuhn and Tucker, solved by bisection in extended precision (or, for
  equations, in rational numbers) at matrices between 1e-8 and 1e8, where no solver of the first
  kind reaches 1e-7.
"""

import fractions
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax.projections
import pytest
import quadprog
from hypothesis import HealthCheck, given, settings
from jax.test_util import check_grads

from biadam import proximal, sets
from biadam.errors import Mistake
from biadam.sets import (
    Affine,
    Box,
    CappedSimplex,
    Custom,
    Free,
    HalfSpace,
    L1Ball,
    L2Ball,
    LInfBall,
    NonNegative,
    PerLeaf,
    Product,
    Simplex,
)
from biadam.tasks.ridge import Budget

N = 6  # coordinates of an instance
BATCH = 16  # instances of an example
NORMAL = np.array([1.0, -2.0, 0.0, 0.5, 3.0, 1.0])
ROWS = np.array([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, -1.0, 0.5, 3.0]])
Long = np.longdouble


# References. Each takes batches: the size of the set, the points and the matrices.


def bisect(falling: Callable[[Any], Any], low: Any, high: Any, rounds: int = 200) -> Any:
    """The root of a falling function of a batch of numbers, in extended precision."""
    low, high = Long(low), Long(high)
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (
            np.where(falling(middle) > 0, middle, low),
            np.where(falling(middle) > 0, high, middle),
        )
    return (low + high) / 2


def exact_l2(r: Any, p: Any, m: Any) -> Any:
    u = lambda nu: m * p / (m + nu[:, None])
    length = lambda x: np.sqrt((x**2).sum(1))
    nu = bisect(lambda nu: length(u(nu)) - r, 0 * r, m.max(1) * length(p) / r)
    return np.where((length(p) <= r)[:, None], p, u(nu))


def exact_capped(s: Any, p: Any, m: Any, cap: Any) -> Any:
    cap = cap if np.ndim(cap) == 2 else cap[:, None]
    u = lambda nu: np.clip(p - nu[:, None] / m, 0, cap)
    low = (m * (p - np.minimum(cap, s[:, None]))).min(1) - 1
    return u(bisect(lambda nu: u(nu).sum(1) - s, low, (m * p).max(1) + 1))


def exact_simplex(s: Any, p: Any, m: Any) -> Any:
    return exact_capped(s, p, m, s)


def exact_l1(r: Any, p: Any, m: Any) -> Any:
    outside = np.sign(p) * exact_simplex(r, abs(p), m)
    return np.where((abs(p).sum(1) <= r)[:, None], p, outside)


def exact_budget(s: Any, p: Any, m: Any) -> Any:
    clipped = np.maximum(p, 0)
    return np.where((clipped.sum(1) <= s)[:, None], clipped, exact_simplex(s, p, m))


def exact_half_space(b: Any, p: Any, m: Any, normal: Any = NORMAL) -> Any:
    c = Long(normal)
    over = np.maximum((p * c).sum(1) - b, 0) / (c * c / m).sum(1)
    return p - over[:, None] * c / m


def exact_affine(b: Any, p: Any, m: Any, rows: Any = ROWS) -> Any:
    """By Cramer's rule in rational numbers."""
    exact = np.vectorize(fractions.Fraction, otypes=[object])
    c, (b, p, m) = exact(rows), (exact(np.float64(a)) for a in (b, p, m))
    answers = []
    for b_, p_, m_ in zip(b, p, m, strict=True):
        g = (c / m_) @ c.T
        gap = c @ p_ - np.array([b_, 2 * b_])
        det = g[0, 0] * g[1, 1] - g[0, 1] * g[1, 0]
        y = [g[1, 1] * gap[0] - g[0, 1] * gap[1], g[0, 0] * gap[1] - g[1, 0] * gap[0]]
        answers.append(p_ - (c.T @ np.array(y)) / det / m_)
    return np.array(answers).astype(np.float64)


class Family(NamedTuple):
    """A set that depends on one number, what it should give, and how a solver sees it."""

    make: Callable[[Any], sets.AbstractSet]
    exact: Callable[[Any, Any, Any], Any]
    # rows and bounds of rows @ u >= bounds for a size, and how many of them are equations
    polyhedron: Callable[[float], tuple[Any, Any, int]] | None
    violation: Callable[[Any, Any], Any]  # of the size and the batch, relative
    bounded: bool = True


EYE = np.eye(N)
SIGNS = np.array(list(itertools.product([1.0, -1.0], repeat=N)))

FAMILIES = {
    "free": Family(
        lambda size: Free(),
        lambda size, p, m: p,
        lambda size: (np.zeros((0, N)), np.zeros(0), 0),
        lambda size, u: 0 * size,
        bounded=False,
    ),
    "box": Family(
        lambda size: Box(-size / 2, size),
        lambda size, p, m: np.clip(p, -size[:, None] / 2, size[:, None]),
        lambda size: (np.vstack([-EYE, EYE]), [-size] * N + [-size / 2] * N, 0),
        lambda size, u: np.maximum(u.max(1) - size, -size / 2 - u.min(1)) / size,
    ),
    "nonnegative": Family(
        lambda size: NonNegative(),
        lambda size, p, m: np.maximum(p, 0),
        lambda size: (EYE, [0.0] * N, 0),
        lambda size, u: -u.min(1),
        bounded=False,
    ),
    "linf": Family(
        LInfBall,
        lambda size, p, m: np.clip(p, -size[:, None], size[:, None]),
        lambda size: (np.vstack([-EYE, EYE]), [-size] * (2 * N), 0),
        lambda size, u: abs(u).max(1) / size - 1,
    ),
    "l2": Family(L2Ball, exact_l2, None, lambda size, u: np.sqrt((u**2).sum(1)) / size - 1),
    "l1": Family(
        L1Ball,
        exact_l1,
        lambda size: (SIGNS, [-size] * len(SIGNS), 0),
        lambda size, u: abs(u).sum(1) / size - 1,
    ),
    "simplex": Family(
        Simplex,
        exact_simplex,
        lambda size: (np.vstack([np.ones(N), EYE]), [size] + [0.0] * N, 1),
        lambda size, u: np.maximum(abs(u.sum(1) / size - 1), -u.min(1) / size),
    ),
    "capped simplex": Family(
        lambda size: CappedSimplex(size, size / 2.5),
        lambda size, p, m: exact_capped(size, p, m, size / 2.5),
        lambda size: (
            np.vstack([np.ones(N), EYE, -EYE]),
            [size] + [0.0] * N + [-size / 2.5] * N,
            1,
        ),
        lambda size, u: np.maximum(
            abs(u.sum(1) / size - 1), np.maximum(-u.min(1), u.max(1) - size / 2.5) / size
        ),
    ),
    "budget": Family(
        Budget,
        exact_budget,
        lambda size: (np.vstack([-np.ones(N), EYE]), [-size] + [0.0] * N, 0),
        lambda size, u: np.maximum(u.sum(1) - size, -u.min(1)) / size,
    ),
    "half-space": Family(
        lambda size: HalfSpace(jnp.asarray(NORMAL), size),
        exact_half_space,
        lambda size: (-NORMAL[None], [-size], 0),
        lambda size, u: (u @ NORMAL - size) / (abs(u) @ abs(NORMAL) + size),
        bounded=False,
    ),
    "affine": Family(
        lambda size: Affine(ROWS, jnp.stack([jnp.asarray(size), 2 * jnp.asarray(size)])),
        exact_affine,
        lambda size: (ROWS, [size, 2 * size], 2),
        lambda size, u: (
            abs(u @ ROWS.T - size[:, None] * [1, 2]) / (abs(u) @ abs(ROWS.T) + size[:, None])
        ).max(1),
        bounded=False,
    ),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


@functools.cache
def projector(name: str) -> Callable[..., Any]:
    return jax.jit(jax.vmap(lambda size, p, m: FAMILIES[name].make(size).project(p, m)))


def project(name: str, size: Any, p: Any, m: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(projector(name)(*(jnp.asarray(a, dtype) for a in (size, p, m))))


# Instances: zeros and ties are common, and magnitudes go from far inside to far outside.

simple = st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0])
coordinate = st.one_of(simple, st.floats(-3, 3), st.floats(-1e6, 1e6))
exponent = st.one_of(st.sampled_from([0.0, 8.0, -8.0]), st.floats(-8, 8))
size = st.sampled_from([0.01, 0.5, 1.0, 2.0, 30.0])


@st.composite
def instances(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    array = lambda shape, of: draw(hnp.arrays(np.float64, shape, elements=of, fill=st.nothing()))
    shape = (BATCH, N)
    return array(BATCH, size), array(shape, coordinate), 10.0 ** array(shape, exponent)


def many(examples: int) -> Callable[[Any], Any]:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return lambda test: settings(max_examples=examples, deadline=None, suppress_health_check=slow)(
        given(instances())(test)
    )


def scale_of(name: str, size: Any, p: Any) -> Any:
    return size if FAMILIES[name].bounded else np.maximum(abs(p).max(1), size)


@each_family
@many(100)
def test_the_projection_is_exact_for_matrices_from_1e_8_to_1e8(name: str, instance: Any) -> None:
    """To 1e-7 of the set's size (of the point's, for unbounded sets), in 1600 instances each."""
    size, p, m = instance
    u = project(name, size, p, m)
    wanted = FAMILIES[name].exact(Long(size), Long(p), Long(m))
    error = abs(u - wanted).max(1)
    assert (error <= 1e-7 * scale_of(name, size, p)).all(), (error, size, p, m)


@each_family
@many(20)
def test_projecting_twice_changes_nothing_and_members_stay(name: str, instance: Any) -> None:
    size, p, m = instance
    once = project(name, size, p, m)
    twice = project(name, size, once, m)
    assert (abs(twice - once).max(1) <= 1e-11 * scale_of(name, size, p)).all()
    inside = 0.5 * once if name in ("box", "linf", "l2", "l1", "nonnegative") else once
    kept = project(name, size, inside, m)
    assert (abs(kept - inside).max(1) <= 1e-11 * scale_of(name, size, p)).all()


@each_family
@many(20)
def test_single_precision_is_feasible_to_1e_6(name: str, instance: Any) -> None:
    """As long as the round-off of the point itself is below the set: up to 1e6 sizes away."""
    size, p, m = (np.float32(a) for a in instance)
    p = p * size[:, None] if FAMILIES[name].bounded else p
    u = project(name, size, p, m, np.float32)
    assert u.dtype == np.float32
    assert np.isfinite(u).all()
    violation = FAMILIES[name].violation(np.float64(size), np.float64(u))
    assert (violation <= 1e-6).all(), (violation, size, p, m)


def drawn(seed: int, n: int, count: int = 100) -> tuple[Any, Any, Any]:
    """Sizes, points and matrices of a random batch, sixteen orders of magnitude wide."""
    rng = np.random.default_rng(seed)
    p = rng.normal(size=(count, n)) * 10 ** rng.uniform(-3, 3, (count, 1))
    return 10 ** rng.uniform(-2, 2, count), p, 10 ** rng.uniform(-8, 8, (count, n))


@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("name", ["l2", "l1", "simplex", "capped simplex", "budget"])
def test_the_projection_is_exact_for_any_number_of_coordinates(name: str, n: int) -> None:
    if (name, n) in [("capped simplex", 1), ("capped simplex", 2)]:
        pytest.skip("the caps of this family leave no member")
    size, p, m = drawn(n, n)
    wanted = FAMILIES[name].exact(Long(size), Long(p), Long(m))
    assert (abs(project(name, size, p, m) - wanted).max(1) <= 1e-7 * size).all()


def test_the_projection_is_exact_for_random_caps_normals_and_rows() -> None:
    size, p, m = drawn(3, N)
    rng = np.random.default_rng(4)
    caps = rng.exponential(size=(100, N)) * rng.integers(0, 2, (100, N)) + EYE[0]
    total = rng.uniform(0, 1, 100) * caps.sum(1)
    run = jax.jit(jax.vmap(lambda s, c, p, m: CappedSimplex(s, c).project(p, m)))
    wanted = exact_capped(Long(total), Long(p), Long(m), Long(caps))
    assert (abs(np.asarray(run(total, caps, p, m)) - wanted).max(1) <= 1e-7 * total).all()

    normals = rng.normal(size=(100, N)) * 10 ** rng.uniform(-3, 3, (100, 1))
    offset = size * abs(normals).max(1)
    run = jax.jit(jax.vmap(lambda b, c, p, m: HalfSpace(c, b).project(p, m)))
    wanted = exact_half_space(Long(offset), Long(p), Long(m), normals)
    far = np.maximum(abs(p).max(1), abs(wanted).max(1).astype(float))
    assert (abs(np.asarray(run(offset, normals, p, m)) - wanted).max(1) <= 1e-9 * far).all()

    ends = lambda s: jnp.stack([s, 2 * s])
    run = jax.jit(jax.vmap(lambda s, c, p, m: Affine(c, ends(s)).project(p, m)))
    rows = rng.normal(size=(100, 2, N))
    each = zip(size, p, m, rows, strict=True)
    wanted = np.concatenate([exact_affine(s[None], p[None], m[None], c) for s, p, m, c in each])
    far = np.maximum(abs(p).max(1), abs(wanted).max(1))
    assert (abs(np.asarray(run(size, rows, p, m)) - wanted).max(1) <= 1e-7 * far).all()


def programme(p: Any, m: Any, rows: Any, bounds: Any, equations: int) -> Any:
    """The least ``(u - p)' diag(m) (u - p)`` over a polyhedron."""
    if not len(rows):
        return p
    rows, bounds = np.asarray(rows, float), np.asarray(bounds, float)
    return quadprog.solve_qp(np.diag(m), m * p, rows.T.copy(), bounds, equations)[0]


def ball(p: Any, m: Any, radius: float) -> Any:
    """The same over the L2 ball, by sequential quadratic programmes."""
    u, force = p, 0.0
    for _ in range(100):
        slack = (radius**2 - u @ u) / 2
        step, _, _, _, forces, _ = quadprog.solve_qp(
            np.diag(m + force), m * (p - u), -u[:, None], np.array([-slack])
        )
        u, force = u + step, forces[0]
        if np.linalg.norm(step) <= 1e-15 * radius:
            break
    return u


@each_family
@many(20)
def test_a_general_convex_solver_agrees(name: str, instance: Any) -> None:
    """To 1e-7 of the set's size, in 320 instances each; an eighth of the exponents elsewhere."""
    size, p, m = instance
    p, m = np.where(abs(p) > 3, p / 1e5, p), m**0.125
    u = project(name, size, p, m)
    polyhedron = FAMILIES[name].polyhedron
    wanted = [
        ball(p_, m_, s) if polyhedron is None else programme(p_, m_, *polyhedron(s))
        for s, p_, m_ in zip(size, p, m, strict=True)
    ]
    assert (abs(u - wanted).max(1) <= 1e-7 * scale_of(name, size, p)).all()


def test_the_euclidean_projection_is_another_point() -> None:
    p, m = jnp.array([2.0, 1.0, 0.5]), jnp.array([1.0, 10.0, 100.0])
    for each in (L2Ball(1.0), Simplex(1.0)):
        right, wrong = each.project(p, m), each.project(p, jnp.array(1.0))
        cost = lambda u: float(jnp.sum(m * (u - p) ** 2))
        assert cost(right) < 0.9 * cost(wrong)


def seen_of(name: str, n: int) -> Any:
    """Which coordinates a first guess looks at."""
    stride = n // (proximal.SAMPLE if name == "l2" else sets.SAMPLE) | 1
    (seen,) = proximal.sample([jnp.arange(n)], stride)
    (share,) = proximal.share([jnp.zeros(n)], stride)
    assert 1 < n / len(seen) == share < 2 * stride
    return np.asarray(seen)


def test_inside_the_ball_a_move_of_the_point_is_a_move_of_the_projection() -> None:
    p, m = jnp.array([0.3, -0.4, 0.1]), jnp.array([1.0, 10.0, 100.0])
    turned = jax.jacobian(L2Ball(1.0).project)(p, m)
    np.testing.assert_array_equal(turned, np.eye(3))
    np.testing.assert_array_equal(L2Ball(1.0).project(p, m), p)
    scaled = jax.grad(lambda m: jnp.sum(L2Ball(1.0).project(p, m)))(m)
    np.testing.assert_array_equal(scaled, np.zeros(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["l2", "l1", "simplex", "capped simplex"])
def test_large_variables_whose_sample_misleads(name: str, dtype: Any) -> None:
    """The first guess sees few coordinates; here those are unlike the others, or zero."""
    n = 100_001
    seen = seen_of(name, n)
    rng = np.random.default_rng(0)
    run = jax.jit(lambda size, p, m: FAMILIES[name].make(size).project(p, m))
    for size, kind in itertools.product([1e-3, 1.0, 2e3], range(3)):
        p, m = rng.normal(size=n), np.exp(2 * rng.normal(size=n))
        if kind == 1:
            p[seen] += 100
        elif kind == 2:
            p[seen], m[seen] = 0, 1e-6
        p, m, s = dtype(p), dtype(m), dtype([size])
        u = np.asarray(run(s[0], p, m))[None]
        wanted = FAMILIES[name].exact(Long(s), Long(p)[None], Long(m)[None])
        tolerance = 1e-10 if dtype is np.float64 else 2e-5
        assert abs(u - wanted).max() <= tolerance * size
        assert FAMILIES[name].violation(np.float64(s), np.float64(u))[0] <= 1e-6


def test_a_sample_takes_its_share_of_every_leaf() -> None:
    """Sums over a sample, each entry with its share, are sums over all on average."""
    leaves = [jnp.ones(shape) for shape in ((), (3,), (5, 7), (1000, 3), (100_000, 17))]
    for stride in (1, 3, 101, 10_001):
        some, shares = proximal.sample(leaves, stride), proximal.share(leaves, stride)
        for leaf, thin, share in zip(leaves, some, shares, strict=True):
            assert thin.size * share == pytest.approx(leaf.size)
            assert 0 < thin.size <= leaf.size / stride + 16


def test_a_sample_inside_the_ball_says_nothing_of_the_curve_outside() -> None:
    """One coordinate that no sample sees leads out, and bends the curve as far as can be."""
    n = 100_001
    p, m = np.full(n, (0.5 / n) ** 0.5, np.float32), np.full(n, 1e9, np.float32)
    p[-1], m[-1] = 2911.6, 1.0
    assert seen_of("l2", n)[-1] < n - 1
    u = np.float64(jax.jit(L2Ball(np.float32(1.0)).project)(p, m))
    assert np.sqrt((u**2).sum()) - 1 <= 1e-6


def test_a_few_coordinates_that_no_sample_sees_outweigh_all_others() -> None:
    """What the sample says of the curve is wrong; single precision is as exact all the same."""
    n, rng = 200_001, np.random.default_rng(3)
    unseen = np.setdiff1d(np.arange(n), seen_of("l2", n))
    for spread in (0.1, 3.0):
        p, m = rng.normal(size=n), np.exp(0.1 * rng.normal(size=n))
        few = rng.choice(unseen, 20, replace=False)
        p[few], m[few] = 1e4, 100 * np.exp(spread * rng.normal(size=20))
        for dtype in (np.float32, np.float64):
            for size in (1.0, 300.0, 3e4):
                q, w = dtype(p), dtype(m)
                u = np.asarray(jax.jit(L2Ball(dtype(size)).project)(q, w))[None]
                wanted = exact_l2(Long([size]), Long(q)[None], Long(w)[None])
                tolerance = 1e-10 if dtype is np.float64 else 2e-5
                assert abs(u - wanted).max() <= tolerance * size
                assert np.sqrt((np.float64(u) ** 2).sum()) / size - 1 <= 1e-6


@pytest.mark.parametrize("name", ["l2", "l1", "simplex", "capped simplex"])
def test_the_search_is_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No search comes near its limit, even for six coordinates sixteen orders apart."""
    rng = np.random.default_rng(1)
    p = jnp.asarray(rng.normal(size=(2000, N)) * 10 ** rng.uniform(-3, 6, (2000, 1)))
    m = jnp.asarray(10 ** rng.uniform(-8, 8, (2000, N)))
    s = jnp.asarray(10 ** rng.uniform(-3, 3, 2000))

    def run() -> Any:
        return jax.jit(jax.vmap(lambda s, p, m: FAMILIES[name].make(s).project(p, m)))(s, p, m)

    full = run()
    monkeypatch.setattr(proximal, "PASSES", 40)
    monkeypatch.setattr(sets, "PASSES", 40)
    np.testing.assert_array_equal(run(), full)


@pytest.mark.parametrize("name", ["l2", "l1", "simplex", "capped simplex"])
def test_the_search_is_short_where_the_sample_misleads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search ends within 30 evaluations: a limit there changes nothing."""
    n = 100_001
    rng = np.random.default_rng(2)
    seen = seen_of(name, n)
    p, m = rng.normal(size=(2, n)), np.exp(2 * rng.normal(size=(2, n)))
    p[0, seen] += 100
    p[1, seen], m[1, seen] = 0, 1e-6

    def run() -> Any:
        return jax.jit(jax.vmap(FAMILIES[name].make(1.0).project))(p, m)

    full = run()
    monkeypatch.setattr(proximal, "PASSES", 30)
    monkeypatch.setattr(sets, "PASSES", 30)
    np.testing.assert_array_equal(run(), full)


# Pytrees.

TREE = {"a": np.array([[1.0, -2.0], [0.5, 3.0]]), "b": [np.array(-1.5), np.array([0.25])]}
WEIGHTS = {"a": np.array([[1.0, 5.0], [0.2, 3.0]]), "b": [np.array(2.0), np.array([0.3])]}
JOINT: dict[str, tuple[Any, Any]] = {
    "l2": (L2Ball(1.5), L2Ball(1.5)),
    "l1": (L1Ball(1.5), L1Ball(1.5)),
    "simplex": (Simplex(1.5), Simplex(1.5)),
    "capped simplex": (CappedSimplex(1.5, 0.8), CappedSimplex(1.5, 0.8)),
    "half-space": (
        HalfSpace(jax.tree.map(np.cos, TREE), -0.5),
        HalfSpace(np.concatenate([np.ravel(np.cos(a)) for a in jax.tree.leaves(TREE)]), -0.5),
    ),
    "affine": (
        Affine(jax.tree.map(lambda a: np.stack([np.cos(a), a]), TREE), np.ones(2)),
        Affine(
            np.concatenate(
                [np.stack([np.cos(a), a]).reshape(2, -1) for a in jax.tree.leaves(TREE)], axis=1
            ),
            np.ones(2),
        ),
    ),
}


@pytest.mark.parametrize("name", JOINT)
def test_leaves_are_one_vector(name: str) -> None:
    over_tree, over_vector = JOINT[name]
    over_tree.check("x", TREE)
    flat, back = jax.flatten_util.ravel_pytree(TREE)
    weights, _ = jax.flatten_util.ravel_pytree(WEIGHTS)
    wanted = back(over_vector.project(flat, weights))
    got = over_tree.project(TREE, WEIGHTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), got, wanted)


@each_family
def test_single_numbers_stand_for_a_multiple_of_the_identity(name: str) -> None:
    each = FAMILIES[name].make(0.7)
    p = jnp.array([1.0, -2.0, 0.5, 3.0, 0.1, 0.0])
    full = each.project(p, jnp.full(6, 3.0))
    for matrix in (jnp.array(3.0), 3.0):
        np.testing.assert_allclose(each.project(p, matrix), full, rtol=0, atol=1e-14)
    pair, weights = {"a": p[:3], "b": p[3:]}, {"a": jnp.array(2.0), "b": jnp.full(3, 5.0)}
    if name not in ("half-space", "affine"):
        got = each.project(pair, weights)
        wanted = each.project(p, jnp.array([2.0] * 3 + [5.0] * 3))
        np.testing.assert_allclose(jnp.concatenate([got["a"], got["b"]]), wanted, atol=1e-14)


@pytest.mark.parametrize(
    "mine, theirs",
    [
        (L2Ball(1.0), optax.projections.projection_l2_ball),
        (LInfBall(1.0), optax.projections.projection_linf_ball),
        (NonNegative(), optax.projections.projection_non_negative),
        (Box(0.0, 1.0), optax.projections.projection_hypercube),
        (L1Ball(1.0), optax.projections.projection_l1_ball),
        (Simplex(1.0), optax.projections.projection_simplex),
    ],
)
def test_the_identity_gives_the_euclidean_projection(mine: Any, theirs: Any) -> None:
    p = jnp.array([1.0, -2.0, 0.5, 3.0, 0.1, 0.0])
    with jax.numpy_dtype_promotion("standard"):
        wanted = theirs(p)
    for matrix in (jnp.array(1.0), jnp.ones(6)):
        np.testing.assert_allclose(mine.project(p, matrix), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["l2", "l1", "simplex", "capped simplex", "custom"])
def test_leaves_without_entries_stay_as_they_are(name: str) -> None:
    known = FAMILIES["simplex" if name == "custom" else name].make(1.5)
    each = Custom(lambda p: known.project(p, 1.0), 1e-13) if name == "custom" else known
    part = {"a": jnp.array([1.0, -2.0]), "c": jnp.array([3.0])}
    weight = {"a": jnp.array([2.0, 1.0]), "c": jnp.array(0.5)}
    none = jnp.zeros((2, 0))
    each.check("x", {**part, "b": none})
    run = jax.jit(each.project)
    got = run({**part, "b": none}, {**weight, "b": none})
    assert got.pop("b").shape == none.shape
    wanted = known.project(part, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, wanted)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e19, 1e30])
def test_a_half_space_is_the_same_however_its_normal_is_scaled(scale: float) -> None:
    """In single precision, where squares of these are zero or infinite."""
    run = jax.jit(lambda c, b, p: HalfSpace(c, b).project(p, jnp.ones_like(p)))
    c, b = np.float32(scale) * np.float32([1, -2, 3]), np.float32(scale)
    inside, outside = np.float32([0.1, 0.2, 0.3]), np.float32([1, 2, 3])
    np.testing.assert_array_equal(run(c, b, inside), inside)
    np.testing.assert_allclose(run(c, b, outside), outside - 5 / 14 * c / scale, rtol=1e-5)


def test_every_leaf_on_its_own() -> None:
    each = PerLeaf(L2Ball(0.5))
    each.check("x", TREE)
    got = each.project(TREE, WEIGHTS)
    wanted = jax.tree.map(L2Ball(0.5).project, TREE, WEIGHTS)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert all(np.linalg.norm(leaf) <= 0.5 + 1e-12 for leaf in jax.tree.leaves(got))


def test_a_set_for_every_part() -> None:
    parts = Product({"a": Simplex(2.0), "b": [NonNegative(), Free()]})
    parts.check("x", TREE)
    got = parts.project(TREE, WEIGHTS)
    np.testing.assert_array_equal(got["a"], Simplex(2.0).project(TREE["a"], WEIGHTS["a"]))
    assert float(got["b"][0]) == 0.0
    assert got["b"][1] is TREE["b"][1]
    upper = Product({"a": Free(), "b": L1Ball(1.0)}).project(TREE, 2.0)
    wanted = L1Ball(1.0).project(TREE["b"], 2.0)
    jax.tree.map(np.testing.assert_array_equal, upper["b"], wanted)


def test_caps_may_differ_by_coordinate() -> None:
    caps = {"a": np.array([0.1, 0.0, 5.0]), "b": 0.3}
    point = {"a": np.array([4.0, 9.0, 0.2]), "b": np.array([1.0, 1.0])}
    each = CappedSimplex(1.0, caps)
    each.check("x", point)
    got = each.project(point, 2.0)
    np.testing.assert_allclose(got["a"], [0.1, 0.0, 0.3], atol=1e-15)
    np.testing.assert_allclose(got["b"], [0.3, 0.3], atol=1e-15)


# Sets given by a Euclidean projection.


@pytest.mark.parametrize("name", ["l2", "simplex", "affine"])
def test_a_custom_set_is_projected_in_the_norm_of_the_matrix(name: str) -> None:
    known = FAMILIES[name].make(0.8)
    mine = Custom(lambda p: known.project(p, jnp.array(1.0)))
    rng = np.random.default_rng(2)
    p = jnp.asarray(3 * rng.normal(size=(50, N)))
    m = jnp.asarray(10 ** rng.uniform(-1.5, 1.5, (50, N)))
    got = jax.jit(jax.vmap(mine.project))(p, m)
    np.testing.assert_allclose(got, jax.vmap(known.project)(p, m), rtol=0, atol=1e-7)
    np.testing.assert_allclose(mine.project(p[0], 2.0), known.project(p[0], 2.0), atol=1e-13)


@functools.cache
def custom(name: str) -> Callable[..., Any]:
    each = lambda s: Custom(lambda p: FAMILIES[name].make(s).project(p, 1.0), 1e-9)
    return jax.jit(jax.vmap(lambda s, p, m: each(s).project(p, m)))


@pytest.mark.parametrize("name", ["l2", "simplex"])
@many(10)
def test_a_custom_set_is_exact_for_matrices_within_four_orders(name: str, instance: Any) -> None:
    """To the tolerance that was asked for, of the length of the answer."""
    size, p, m = instance
    m = m**0.25
    wanted = FAMILIES[name].exact(Long(size), Long(p), Long(m))
    error = np.sqrt(((np.asarray(custom(name)(size, p, m)) - wanted) ** 2).sum(1))
    assert (error <= 1e-8 * size + 1e-14 * abs(p).max(1)).all()


def test_the_numbers_of_a_custom_set_are_leaves() -> None:
    """A projection that is a module keeps its numbers, and passes through jit as an argument."""

    class Shifted(eqx.Module):
        center: Any

        def __call__(self, p: Any) -> Any:
            return jnp.maximum(p, self.center)

    traces = []

    @jax.jit
    def run(each: Custom, p: Any, m: Any) -> Any:
        traces.append(1)
        return each.project(p, m)

    p, m = jnp.array([0.0, 3.0]), jnp.array([1.0, 2.0])
    np.testing.assert_allclose(run(Custom(Shifted(jnp.array(1.0))), p, m), [1.0, 3.0])
    np.testing.assert_allclose(run(Custom(Shifted(jnp.array(4.0))), p, m), [4.0, 4.0])
    assert len(traces) == 1


def test_a_custom_set_stops_at_its_passes() -> None:
    """An answer that is out of passes is still a member."""
    hasty = Custom(lambda p: Simplex(1.0).project(p, 1.0), passes=2)
    got = hasty.project(jnp.array([3.0, 1.0, 0.0]), jnp.array([1e-3, 1.0, 1e3]))
    np.testing.assert_allclose(jnp.sum(got), 1.0)


# On the device.

POINT = jnp.asarray([1.3, -2.1, 0.45, 2.9, 0.17, -0.6])
MATRIX = jnp.asarray([1.0, 0.4, 2.3, 1.7, 0.9, 3.1])


@each_family
def test_derivatives(name: str) -> None:
    """Of the projection by the point, the matrix and the size, where it is differentiable."""
    p, m, size = (jnp.asarray(a, jnp.float64) for a in (POINT, MATRIX, 0.9))
    run = jax.jit(lambda size, p, m: FAMILIES[name].make(size).project(p, m))
    check_grads(run, (size, p, m), order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)
    inside = lambda size, p, m: run(size, 0.01 * p, m)
    check_grads(inside, (size, p, m), order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["l2", "simplex"])
def test_second_derivatives(name: str) -> None:
    p, m, size = (jnp.asarray(a, jnp.float64) for a in (POINT, MATRIX, 0.9))
    run = jax.jit(lambda size, p, m: FAMILIES[name].make(size).project(p, m))
    check_grads(run, (size, p, m), order=2, modes=("rev",), atol=1e-5, rtol=1e-5)


def test_derivatives_of_a_custom_set() -> None:
    run = lambda p, m: Custom(lambda p: L2Ball(1.0).project(p, 1.0), 1e-13).project(p, m)
    args = jnp.asarray(POINT, jnp.float64), jnp.asarray(MATRIX, jnp.float64)
    check_grads(run, args, order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)


@each_family
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_results_keep_the_dtype(name: str, dtype: str) -> None:
    p = jnp.asarray(POINT, dtype)
    for size in (0.5, np.float32(0.5), np.float64(0.5), jnp.float32(0.5)):
        with jax.numpy_dtype_promotion("standard"):
            each = FAMILIES[name].make(size)
        for matrix in (jnp.asarray(MATRIX, dtype), jnp.ones((), dtype)):
            got = jax.eval_shape(each.project, p, matrix)
            assert (got.dtype, got.shape) == (p.dtype, p.shape)
    mixed = {"a": jnp.asarray(POINT, "float32"), "b": p}
    if name not in ("half-space", "affine"):
        parts = jax.eval_shape(each.project, mixed, jax.tree.map(jnp.ones_like, mixed))
        assert (parts["a"].dtype, parts["b"].dtype) == (jnp.float32, p.dtype)


@each_family
def test_another_number_never_recompiles(name: str) -> None:
    traces = []

    @jax.jit
    def run(each: Any, p: Any) -> Any:
        traces.append(1)
        return each.project(p, jnp.asarray(MATRIX, p.dtype))

    for size in (0.5, 0.7, 2.0):
        run(FAMILIES[name].make(size), jnp.asarray(POINT, jnp.float64))
    assert len(traces) == 1


@each_family
def test_nothing_leaves_the_device(name: str) -> None:
    project = FAMILIES[name].make(0.5).project
    text = str(jax.make_jaxpr(project)(POINT, MATRIX))
    assert "callback" not in text


def test_infinities_and_nans_end_the_search() -> None:
    m = jnp.asarray(MATRIX, jnp.float64)
    for bad in (jnp.nan, jnp.inf):
        p = jnp.asarray(POINT, jnp.float64).at[2].set(bad)
        for name in ("l2", "l1", "simplex", "capped simplex"):
            assert FAMILIES[name].make(1.0).project(p, m).shape == p.shape


# Mistakes.

VECTOR = np.zeros(3)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "empty box": (lambda: Box(1.0, 0.0), r"`Box` .* empty: .* `lower` is 1 where `upper` is 0"),
    "box with an empty side": (
        lambda: Box(np.zeros(3), np.array([1.0, -1.0, 1.0])),
        r"`Box` .* empty: some entry of `lower` is above",
    ),
    "box of a number and an array": (lambda: Box(0.0, np.array([1.0, -1.0])), "`Box` .* empty"),
    "box of a number and a tree": (lambda: Box({"a": 1.0, "b": 3.0}, 2.0), "`Box` .* empty"),
    "box of NaN": (lambda: Box(np.nan, 1.0), "`Box` .* empty"),
    "box of another shape": (
        lambda: Box(np.zeros(2), 1.0).check("x", VECTOR),
        r"`Box.lower` must have the shape \(3,\) of x, but it has \(2,\)",
    ),
    "box of another structure": (
        lambda: Box(0.0, {"a": 1.0}).check("x", VECTOR),
        "`Box.upper` must be a number or a pytree like x",
    ),
    "negative L2 radius": (lambda: L2Ball(-1.0), "`L2Ball.radius` must be above 0.* is -1.0"),
    "zero L1 radius": (lambda: L1Ball(0.0), "`L1Ball.radius` must be above 0.* is 0.0"),
    "negative radius in an array": (
        lambda: L2Ball(np.array([1.0, -2.0])),
        "`L2Ball.radius` must be above 0 and finite, but it has -2",
    ),
    "infinite radius": (lambda: L1Ball(np.inf), "`L1Ball.radius` must be .* inf"),
    "negative bound": (lambda: LInfBall(-0.1), "`LInfBall.radius` must be at least 0.* is -0.1"),
    "many radii": (
        lambda: L2Ball(np.ones(3)).check("x", VECTOR),
        r"`L2Ball.radius` must be one number, but it has the shape \(3,\)",
    ),
    "negative total": (lambda: Simplex(-1.0), "`Simplex.total` must be above 0.* is -1.0"),
    "total above the caps": (
        lambda: CappedSimplex(4.0, 1.0).check("x", VECTOR),
        "`CappedSimplex.total` must be at most the sum of the caps, 3 for x, but it is 4; lower it",
    ),
    "total above caps of a tree": (
        lambda: CappedSimplex(1.0, {"a": 0.1, "b": 0.2}).check("x", {"a": VECTOR, "b": VECTOR}),
        "`CappedSimplex.total` .* 0.9 for x, but it is 1;",
    ),
    "negative cap": (lambda: CappedSimplex(1.0, -1.0), "`CappedSimplex.cap` must be at least 0"),
    "cap of another shape": (
        lambda: CappedSimplex(1.0, np.ones(4)).check("x", VECTOR),
        r"`CappedSimplex.cap` must have the shape \(3,\)",
    ),
    "zero normal": (
        lambda: HalfSpace(VECTOR, 1.0),
        "`HalfSpace.normal` must have an entry other than zero",
    ),
    "normal of another shape": (
        lambda: HalfSpace(np.ones(2), 1.0).check("x", VECTOR),
        r"`HalfSpace.normal` must have the shape \(3,\) of x, but it has \(2,\)",
    ),
    "dependent equations": (
        lambda: Affine(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]), np.ones(2)),
        "`Affine.matrix` must .* independent rows, .* 2 rows have the rank 1 in float64; leave",
    ),
    "more equations than unknowns": (
        lambda: Affine(np.random.default_rng(0).normal(size=(4, 3)), np.ones(4)),
        "its 4 rows have the rank 3",
    ),
    "equations of another shape": (
        lambda: Affine(np.eye(2), np.ones(2)).check("x", VECTOR),
        r"`Affine.matrix` must have the shape \(2, 3\), .* of x, but it has \(2, 2\)",
    ),
    "an offset too many": (
        lambda: Affine(np.eye(3)[:2], np.ones(3)),
        r"`Affine.offset` must have .* the shape \(2,\), but it has \(3,\)",
    ),
    "equations that are numbers": (
        lambda: Affine(1.0, 1.0),
        "`Affine.matrix` must have one row per equation",
    ),
    "equations of another structure": (
        lambda: Affine({"a": np.eye(3)}, np.ones(3)).check("x", VECTOR),
        "`Affine.matrix` must be a pytree like x",
    ),
    "a projection that shortens": (
        lambda: Custom(lambda p: p[:2]).check("x", VECTOR),
        "`Custom.projection` must return a pytree like x",
    ),
    "no passes": (lambda: Custom(lambda p: p, passes=0), "`Custom.passes` must be a whole number"),
    "part without a set": (
        lambda: Product({"a": Free(), "b": 3.0}),
        "`Product.sets` must be a pytree of sets, but it has 3.0 in it",
    ),
    "parts of another structure": (
        lambda: Product({"a": Free()}).check("x", {"a": VECTOR, "b": VECTOR}),
        "`Product.sets` must have the upper part of the structure of x",
    ),
    "a part that does not fit": (
        lambda: Product({"a": Free(), "b": Box(np.zeros(2), 1.0)}).check(
            "x", {"a": VECTOR, "b": VECTOR}
        ),
        r"`Box.lower` must have the shape \(3,\) of x\['b'\]",
    ),
    "a leaf that does not fit": (
        lambda: PerLeaf(CappedSimplex(3.5)).check("y", {"a": np.zeros(4), "b": VECTOR}),
        r"`CappedSimplex.total` must be at most the sum of the caps, 3 for y\['b'\]",
    ),
    "whole numbers": (
        lambda: L2Ball(1.0).check("x", {"a": VECTOR, "b": np.arange(3)}),
        r"x\['b'\] must be of a floating-point dtype, but it is int64",
    ),
    "nothing": (lambda: Simplex(1.0).check("x", np.zeros(0)), "x must have at least one entry"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_one_sentence(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(Mistake, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@each_family
def test_what_fits_is_not_refused(name: str) -> None:
    each = FAMILIES[name].make(0.5)
    each.check("x", POINT)
    jax.jit(lambda size: FAMILIES[name].make(size).check("x", POINT))(0.5)
    jax.eval_shape(lambda p: each.check("x", p), POINT)

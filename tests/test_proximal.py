"""Proximal terms in the norm of a diagonal matrix, against references of two kinds.

* The dual problem, solved by a general solver of quadratic programmes, at matrices between 1e-1 and
  1e1.
* The conditions of optimality in extended precision, at matrices between 1e-8 and 1e8.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadprog
from hypothesis import HealthCheck, given, settings
from jax.test_util import check_grads

from biadam.errors import Mistake
from biadam.proximal import L1, AbstractProximal, ElasticNet, GroupL1, Separate, SquaredL2
from biadam.sets import Free, L2Ball, NonNegative

N = 6
BATCH = 16
Long = np.longdouble


# What a term should give for batches of weights, points and matrices, by coordinate or by group.


def exact_l1(weight: Any, p: Any, m: Any) -> Any:
    return np.sign(p) * np.maximum(m * abs(p) - weight[:, None], 0) / m


def exact_squared(weight: Any, p: Any, m: Any) -> Any:
    return m * p / (m + weight[:, None])


def exact_net(weight: Any, p: Any, m: Any) -> Any:
    return np.sign(p) * np.maximum(m * abs(p) - weight[:, None], 0) / (m + weight[:, None] / 2)


def exact_group(weight: Any, p: Any, m: Any) -> Any:
    """By bisection on the length of the answer."""
    length = lambda x: np.sqrt((x**2).sum(1))
    weight = weight[:, None]
    low, high = 0 * length(p), length(p)
    for _ in range(200):
        middle = (low + high) / 2
        longer = length(m * p / (m * middle[:, None] + weight)) > 1
        low, high = np.where(longer, middle, low), np.where(longer, high, middle)
    reach = ((low + high) / 2)[:, None]
    return np.where(length(m * p)[:, None] <= weight, 0, m * p * reach / (m * reach + weight))


def solve_box(p: Any, m: Any, weight: float) -> Any:
    """The prox of a weighted L1 norm: its dual has bounds for constraints."""
    rows = np.hstack([np.eye(len(p)), -np.eye(len(p))])
    z = quadprog.solve_qp(np.diag(1 / m), p, rows, np.full(2 * len(p), -weight))[0]
    return p - z / m


def solve_squared(p: Any, m: Any, weight: float) -> Any:
    return quadprog.solve_qp(np.diag(m + weight), m * p)[0]


def solve_net(p: Any, m: Any, weight: float) -> Any:
    return solve_box(m * p / (m + weight / 2), m + weight / 2, weight)


def solve_group(p: Any, m: Any, weight: float) -> Any:
    """The prox of a weighted length: its dual has a ball for constraint, met by a sequence."""
    z, force = m * p, 0.0
    for _ in range(100):
        slack = (weight**2 - z @ z) / 2
        step, _, _, _, forces, _ = quadprog.solve_qp(
            np.diag(1 / m + force), p - z / m, -z[:, None], np.array([-slack])
        )
        z, force = z + step, forces[0]
        if np.linalg.norm(step) <= 1e-15 * weight:
            break
    return p - z / m


class Family(NamedTuple):
    """A term that depends on one number."""

    make: Callable[[Any], AbstractProximal]
    exact: Callable[[Any, Any, Any], Any]
    solve: Callable[[Any, Any, float], Any]


FAMILIES = {
    "l1": Family(L1, exact_l1, solve_box),
    "squared l2": Family(SquaredL2, exact_squared, solve_squared),
    "elastic net": Family(lambda size: ElasticNet(size, size / 2), exact_net, solve_net),
    "group l1": Family(lambda size: GroupL1(size, axes=0), exact_group, solve_group),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


@functools.cache
def runner(name: str) -> Callable[..., Any]:
    return jax.jit(jax.vmap(lambda size, p, m: FAMILIES[name].make(size).prox(p, m)))


def prox(name: str, size: Any, p: Any, m: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(runner(name)(*(jnp.asarray(a, dtype) for a in (size, p, m))))


simple = st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0])
coordinate = st.one_of(simple, st.floats(-3, 3), st.floats(-1e6, 1e6))
exponent = st.one_of(st.sampled_from([0.0, 8.0, -8.0]), st.floats(-8, 8))
size = st.sampled_from([1e-8, 0.01, 0.5, 1.0, 2.0, 30.0, 1e8])


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


@each_family
@many(100)
def test_the_prox_is_exact_for_matrices_from_1e_8_to_1e8(name: str, instance: Any) -> None:
    """To 1e-7 of the point's size, in 1600 instances each."""
    size, p, m = instance
    u = prox(name, size, p, m)
    wanted = FAMILIES[name].exact(Long(size), Long(p), Long(m))
    assert (abs(u - wanted).max(1) <= 1e-7 * np.maximum(abs(p).max(1), 1e-8)).all()


@each_family
@many(20)
def test_a_general_convex_solver_agrees(name: str, instance: Any) -> None:
    """To 1e-7 of the point's size, in 320 instances each; an eighth of the exponents elsewhere."""
    size, p, m = instance
    p, m, size = np.where(abs(p) > 3, p / 1e5, p), m**0.125, np.clip(size, 0.01, 30)
    u = prox(name, size, p, m)
    wanted = [FAMILIES[name].solve(p_, m_, s) for s, p_, m_ in zip(size, p, m, strict=True)]
    assert (abs(u - wanted).max(1) <= 1e-7 * np.maximum(abs(p).max(1), 1)).all()


@each_family
@many(20)
def test_single_precision_is_as_exact_as_it_can_be(name: str, instance: Any) -> None:
    """Groups lose half of the digits in a coordinate far lighter than those that set the length."""
    size, p, m = (np.float32(a) for a in instance)
    u = prox(name, size, p, m, np.float32)
    wanted = FAMILIES[name].exact(Long(size), Long(p), Long(m))
    tolerance = 2e-3 if name == "group l1" else 1e-6
    assert u.dtype == np.float32
    assert (abs(u - wanted).max(1) <= tolerance * np.maximum(abs(p).max(1), 1e-30)).all()


def test_a_term_without_weight_changes_nothing() -> None:
    p, m = jnp.array([1.0, -2.0, 0.0]), jnp.array([1e-3, 1.0, 1e3])
    for term in (L1(0.0), SquaredL2(0.0), ElasticNet(0.0, 0.0), GroupL1(0.0), GroupL1(0.0, axes=0)):
        np.testing.assert_array_equal(term.prox(p, m), p)


def test_weights_may_differ_by_coordinate() -> None:
    point = {"a": jnp.array([3.0, -3.0]), "b": jnp.array(4.0)}
    weight = {"a": jnp.array([1.0, 0.0]), "b": 2.0}
    got = L1(weight).prox(point, 2.0)
    np.testing.assert_allclose(got["a"], [2.5, -3.0])
    np.testing.assert_allclose(got["b"], 3.0)
    got = ElasticNet(weight, {"a": 0.0, "b": jnp.array(2.0)}).prox(point, 2.0)
    np.testing.assert_allclose(got["b"], 1.5)
    got = SquaredL2(weight).prox(point, 2.0)
    np.testing.assert_allclose(got["a"], [2.0, -3.0])


ROWS = {
    "matrix": np.array([[3.0, 4.0], [0.1, 0.1], [-1.0, 2.0]]),
    "vector": np.array([2.0, -0.1]),
    "number": np.array(-3.0),
    "cube": np.arange(12.0).reshape(2, 3, 2),
}


def test_groups_are_rows() -> None:
    """A leaf with one axis has groups of one entry; a number is its own group."""
    got = GroupL1(1.0).prox(ROWS, 1.0)
    shorten = lambda row: row * max(0.0, 1 - 1 / np.linalg.norm(row))
    np.testing.assert_allclose(got["matrix"], [shorten(row) for row in ROWS["matrix"]])
    np.testing.assert_allclose(got["vector"], [1.0, 0.0])
    np.testing.assert_allclose(got["number"], -2.0)
    for row, before in zip(got["cube"], ROWS["cube"], strict=True):
        np.testing.assert_allclose(row, shorten(before))


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_groups_of_any_number_of_axes(axes: int) -> None:
    weights = jax.tree.map(lambda a: np.exp(0.3 * a), ROWS)
    term = GroupL1(1.5, axes)
    term.check("x", ROWS)
    got = term.prox(ROWS, weights)["cube"]
    groups = ROWS["cube"].reshape(int(np.prod((2, 3, 2)[:axes])), -1)
    scales = weights["cube"].reshape(groups.shape)
    wanted = exact_group(np.full(len(groups), 1.5), groups, scales)
    np.testing.assert_allclose(got, wanted.reshape(2, 3, 2), rtol=0, atol=1e-13)


def test_a_group_at_zero_stays_there_when_its_data_moves() -> None:
    p, m = jnp.array([[0.3, -0.4], [3.0, 4.0]]), jnp.array([[1.0, 0.5], [1.0, 2.0]])
    slope = jax.jacobian(GroupL1(1.0).prox)(p, m)
    np.testing.assert_array_equal(GroupL1(1.0).prox(p, m)[0], [0, 0])
    np.testing.assert_array_equal(slope[0], np.zeros((2, 2, 2)))
    assert float(jnp.abs(slope[1, :, 1]).min()) > 0


def test_large_groups() -> None:
    """One group so large that the search starts from a sample."""
    rng = np.random.default_rng(0)
    p, m = rng.normal(size=70_001), np.exp(2 * rng.normal(size=70_001))
    for weight in (1.0, 50.0, 1000.0):
        got = jax.jit(lambda w, p, m: GroupL1(w, axes=0).prox(p, m))(weight, p, m)
        wanted = exact_group(np.array([weight]), p[None], m[None])[0]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)


def test_terms_and_sets_on_separate_parts() -> None:
    terms = Separate({"a": L1(1.0), "b": [NonNegative(), Free()], "c": L2Ball(1.0)})
    point = {
        "a": jnp.array([3.0, 0.1]),
        "b": [jnp.array(-1.0), jnp.array(-1.0)],
        "c": {"d": jnp.array([3.0]), "e": jnp.array([4.0])},
    }
    terms.check("x", point)
    for matrix in (2.0, jax.tree.map(lambda a: jnp.full(a.shape, 2.0), point)):
        got = terms.prox(point, matrix)
        np.testing.assert_allclose(got["a"], [2.5, 0.0])
        np.testing.assert_allclose(got["b"], [0.0, -1.0])
        np.testing.assert_allclose(got["c"]["d"], [0.6])
        np.testing.assert_allclose(got["c"]["e"], [0.8])


POINT = np.array([1.3, -2.1, 0.45, 2.9, 0.17, -0.6])
MATRIX = np.array([1.0, 0.4, 2.3, 1.7, 0.9, 3.1])


@each_family
def test_derivatives(name: str) -> None:
    """By the weight, the point and the matrix, where the prox is differentiable."""
    p, m, size = (jnp.asarray(a, jnp.float64) for a in (POINT, MATRIX, 0.9))
    run = jax.jit(lambda size, p, m: FAMILIES[name].make(size).prox(p, m))
    check_grads(run, (size, p, m), order=2, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)


@each_family
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_results_keep_the_dtype(name: str, dtype: str) -> None:
    p = jnp.asarray(POINT, dtype)
    for size in (0.5, np.float32(0.5), np.float64(0.5), jnp.float32(0.5)):
        with jax.numpy_dtype_promotion("standard"):
            term = FAMILIES[name].make(size)
        for matrix in (jnp.asarray(MATRIX, dtype), jnp.ones((), dtype)):
            got = jax.eval_shape(term.prox, p, matrix)
            assert (got.dtype, got.shape) == (p.dtype, p.shape)


@each_family
def test_another_number_never_recompiles(name: str) -> None:
    traces = []

    @jax.jit
    def run(term: Any, p: Any) -> Any:
        traces.append(1)
        return term.prox(p, jnp.asarray(MATRIX))

    for size in (0.5, 0.7, 2.0):
        run(FAMILIES[name].make(size), jnp.asarray(POINT))
    assert len(traces) == 1


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "negative weight": (lambda: L1(-1.0), "`L1.weight` must be at least 0.* is -1.0"),
    "weight that is no number": (
        lambda: SquaredL2(np.array([1.0, np.nan])),
        "`SquaredL2.weight` must be at least 0 and finite, but it has nan",
    ),
    "negative part": (lambda: ElasticNet(1.0, -2.0), "`ElasticNet.l2` must be at least 0"),
    "weight of another shape": (
        lambda: L1(np.ones(2)).check("y", POINT),
        r"`L1.weight` must have the shape \(6,\) of y, but it has \(2,\)",
    ),
    "weight of another structure": (
        lambda: ElasticNet({"a": 1.0}, 1.0).check("y", POINT),
        "`ElasticNet.l1` must be a number or a pytree like y",
    ),
    "many weights": (
        lambda: GroupL1(np.ones(2)).check("y", POINT),
        r"`GroupL1.weight` must be one number, but it has the shape \(2,\)",
    ),
    "negative axes": (
        lambda: GroupL1(1.0, -1),
        "`GroupL1.axes` must be a whole number of at least 0",
    ),
    "no term": (
        lambda: Separate([Free(), None, 2.0]),
        "`Separate.terms` must be a pytree of terms and sets, but it has 2.0 in it",
    ),
    "parts of another structure": (
        lambda: Separate([Free(), Free()]).check("y", [POINT]),
        "`Separate.terms` must have the upper part of the structure of y",
    ),
    "whole numbers": (
        lambda: SquaredL2(1.0).check("y", np.arange(3)),
        "y must be of a floating-point dtype, but it is int64",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_one_sentence(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(Mistake, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@each_family
def test_what_fits_is_not_refused(name: str) -> None:
    FAMILIES[name].make(0.5).check("x", POINT)
    jax.jit(lambda size: FAMILIES[name].make(size).check("x", POINT))(0.5)

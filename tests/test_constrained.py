"""Constraints: the right optimum by the right projection, feasible all the way, and the warnings.

The matrix is driven by f_x, the letter of Algorithm 1: at the optimum over a simplex all entries of
the gradient that belong to the support are equal, so that a matrix driven by the gradient tends to
a multiple of the identity there and the Euclidean projection would get away with it.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import biadam
from biadam import Levels, Mistake, Problem, driver, metrics, schedules, solvers
from biadam.data import Minibatches
from biadam.driver import ActiveConstraintWarning
from biadam.hypergradients import Exact
from biadam.outputs import AbstractOutput
from biadam.proximal import L1, AbstractProximal, Separate
from biadam.sets import (
    Affine,
    Box,
    Free,
    HalfSpace,
    L1Ball,
    L2Ball,
    NonNegative,
    PerLeaf,
    Product,
    Simplex,
)
from biadam.tasks import Quadratic
from matrix import ROWS

BED = Quadratic((4, 5), condition=3.0, seed=6)
KEY = jax.random.key(0)
STEPS = 1500  # after which both methods have converged to 1e-6
NORMAL = np.array([1.0, -2.0, 0.3, 0.5])
INVERSE = np.linalg.inv(BED.hessian)
CURVATURE = BED.ridge * np.eye(4) + BED.coupling @ INVERSE @ INVERSE @ BED.coupling.T
SLOPE = CURVATURE @ BED.optimum()


class Case(NamedTuple):
    """A set or term of x, and what a general solver must know of it."""

    home: AbstractProximal
    excess: Callable[[Any], Any]  # how far outside a point is
    margin: float  # by how much at least the Euclidean projection misses the optimum
    bounds: tuple[float, float] | None = None  # of the solver's variables
    constraint: str | None = "ineq"  # whether the excess is an inequality, an equation or nothing
    split: bool = False  # the solver sees x as the difference of two nonnegative vectors
    weight: float = 0.0  # of a penalty on the sum of these


CASES = {
    # The projection onto a box is the same in every diagonal metric.
    "box": Case(Box(-0.3, 0.2), lambda x: abs(x + 0.05).max() - 0.25, 0.0, (-0.3, 0.2), None),
    "l2 ball": Case(L2Ball(0.5), lambda x: (x @ x) ** 0.5 - 0.5, 0.1),
    "simplex": Case(Simplex(0.8), lambda x: x.sum() - 0.8, 0.5, (0.0, 1.0), "eq"),
    "l1 ball": Case(L1Ball(0.7), lambda x: abs(x).sum() - 0.7, 0.5, (0.0, 9.0), split=True),
    "half-space": Case(HalfSpace(NORMAL, -0.4), lambda x: NORMAL @ x + 0.4, 0.1),
    "l1 term": Case(L1(0.3), lambda x: 0.0, 0.2, (0.0, 9.0), None, split=True, weight=0.3),
}
METHODS = {
    # The floors keep the steps stable where f_x is zero.
    "biadam": (solvers.biadam, 0.05, metrics.Adam(0.9, 0.2, metrics.partial, corrected=True)),
    "vr_biadam": (solvers.vr_biadam, 0.4, metrics.AdaGrad(1.0, metrics.partial)),
}


def constrained_optimum(case):
    """By sequential quadratic programming; F is quadratic, so that one such problem is all."""
    whole = (lambda z: z[:4] - z[4:]) if case.split else (lambda z: z)
    both = (lambda g: np.concatenate([g, -g])) if case.split else (lambda g: g)
    outside = (lambda z: z.sum() - 0.7) if case.split else case.excess  # smooth in the parts
    found = minimize(
        lambda z: whole(z) @ (CURVATURE @ whole(z) / 2 - SLOPE) + case.weight * z.sum(),
        np.full(8 if case.split else 4, 0.1),
        jac=lambda z: both(CURVATURE @ whole(z) - SLOPE) + case.weight,
        bounds=None if case.bounds is None else [case.bounds] * (8 if case.split else 4),
        constraints=[{"type": case.constraint, "fun": lambda z: -outside(z)}]
        if case.constraint
        else [],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 500},
    )
    return whole(found.x)


class Path(AbstractOutput):
    """All x of a run, in place of one: those that its steps began at, and the last."""

    steps: int = eqx.field(static=True)

    def init(self, point):
        return jnp.zeros((self.steps, *point.x.shape), point.x.dtype)

    def update(self, kept, point, step, key):
        return kept.at[step - 1].set(point.x)

    def pick(self, kept, best, last):
        return Levels(jnp.concatenate([kept, last.x[None]]), last.y)


class Metric(AbstractProximal):
    """A set or term in the norm of the matrix, or in a multiple of the Euclidean one in its place.

    Which of them is a leaf, so that the right and the wrong step share a compiled program.
    """

    home: AbstractProximal
    euclidean: Any
    scale: float  # of the Euclidean norm; a projection does not feel it, a term does

    def prox(self, point, matrix):
        return self.home.prox(point, jnp.where(self.euclidean, self.scale, matrix))

    def check(self, name, point):
        self.home.check(name, point)


def go(problem, solver, x=BED.x0, y=BED.y0, steps=STEPS, data=None, **given):
    data = BED.full() if data is None else data
    return biadam.run(problem, solver, data, x, y, steps=steps, every=steps, key=KEY, **given)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_converges_to_the_constrained_optimum_and_by_the_right_projection_only(name, method):
    case = CASES[name]
    make, step_size, metric = METHODS[method]
    solver = make(
        (step_size, 1.0),
        hypergradient=Exact(),
        outer_metric=metric,
        inner_metric=metrics.Identity(),
        mixing=0.7,
        rates=schedules.Constant(0.8, 0.8),
    )
    start = case.home.prox(BED.x0, 1.0)

    def path(euclidean):
        home = Metric(case.home, jnp.asarray(euclidean), 1 / step_size)
        problem = Problem(BED.outer, BED.inner, outer_set=home)
        return np.asarray(go(problem, solver, start, output=Path(STEPS)).x)

    optimum = constrained_optimum(case)
    right = path(False)
    np.testing.assert_allclose(right[-1], optimum, atol=1e-6)
    assert max(case.excess(x) for x in right) <= 1e-12
    if case.constraint == "eq":
        assert max(abs(case.excess(x)) for x in right) <= 1e-12
    wrong = path(True)
    if case.margin:
        assert abs(wrong[-STEPS // 3 :] - optimum[None]).max(1).min() > case.margin
    else:
        np.testing.assert_array_equal(wrong, right)
    assert max(case.excess(x) for x in wrong) <= 1e-12


INNER = np.asarray(BED.solution(BED.optimum()))
TIGHT, WIDE = 0.9 * abs(INNER).max(), 1.1 * abs(INNER).max()


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_inner_border_that_is_reached_is_told_once(noise):
    """A run on a set whose border the solution stays clear of is silent: warnings are errors."""
    bed = Quadratic((4, 5), condition=3.0, seed=6, noise=noise)
    data = bed.minibatches(2) if noise else bed.full()
    solver = solvers.biadam((0.05, 0.3), hypergradient=Exact())
    home = lambda edge: Problem(bed.outer, bed.inner, inner_set=Box(-edge, edge))
    with pytest.warns(ActiveConstraintWarning, match=r"`inner_set` \(Box\) still holds y") as told:
        result = go(home(TIGHT), solver, steps=3000, data=data)
    assert len(told) == 1
    assert abs(np.asarray(result.y)).max() > 0.9 * TIGHT
    go(home(2 * WIDE), solver, steps=3000, data=data)


IMPLICIT = [name for name, about in solvers.METHODS.items() if about.sets[1]]
IMPLICIT.remove("pbgd_value")  # which does not use the implicit formula


@pytest.mark.parametrize("name", IMPLICIT)
def test_every_method_that_takes_the_set_tells(name):
    """In a set around y*(x) no border is met; in half of it one is."""
    solver = ROWS[name].solver(BED)
    for edge, told in ((9 * WIDE, False), (0.5 * TIGHT, True)):
        problem = Problem(BED.outer, BED.inner, inner_set=Box(-edge, edge))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            biadam.run(problem, solver, BED.full(), BED.x0, BED.y0, steps=200, key=KEY, every=200)
        assert [w.category for w in caught] == [ActiveConstraintWarning] * told


@pytest.mark.parametrize("steps", [1, 9, 1000])
def test_a_border_that_is_reached_on_the_way_only_is_not_told(steps):
    """Nor that of a run too short to have come near its limit."""
    solver = solvers.biadam(
        (0.05, 1.5), hypergradient=Exact(), inner_metric=metrics.Identity(), mixing=0.9
    )
    problem = Problem(BED.outer, BED.inner, inner_set=Box(-WIDE, WIDE))
    result = go(problem, solver, BED.x0 - 9, jnp.full(5, WIDE), steps=steps)
    assert (abs(np.asarray(result.y)).max() == WIDE) == (steps < 1000)


@pytest.mark.parametrize(
    "solver",
    [
        solvers.biadam_tracked(),
        solvers.alset((0.01, 0.01), inner_steps=2),  # these two keep no direction of y
        solvers.mstsa((0.01, 0.01)),
    ],
    ids=["biadam_tracked", "alset", "mstsa"],
)
def test_one_coordinate_of_thousands_held_back_is_told_through_the_noise(solver):
    """Its force is half of its deviation in one example, and a hundredth of that of all."""
    draw = np.random.default_rng(0).normal(size=(64, 4000))
    examples = np.float32(draw - draw.mean(0) + np.eye(1, 4000))
    data = Minibatches(examples[:, :1], examples, 8)
    inner = lambda x, y, b: jnp.mean(jnp.sum((y[None] - b) ** 2, axis=1)) / 2
    outer = lambda x, y, b: jnp.mean((y[0] + x - b) ** 2)
    start = jnp.float32(0), jnp.zeros(4000, jnp.float32)
    held = {}
    for edge in (0.5, 1.02):
        above = jnp.full(4000, 9.0, jnp.float32).at[0].set(edge)
        problem = Problem(outer, inner, inner_set=Box(-9.0, above))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = go(problem, solver, *start, steps=1000, data=data)
        held[edge] = [w.category for w in caught], float(result.y[0])
    assert held[0.5] == ([ActiveConstraintWarning], 0.5)
    assert held[1.02][0] == []
    assert held[1.02][1] > 0.97  # the noise reaches this border too, now and then


@pytest.mark.parametrize(
    ("home", "start", "answer"),
    [
        (Box(-1.0, 1.0), jnp.asarray([0.0, 0.0, 1.5, 0.0]), "0.5 away from .* onto Box"),
        (Simplex(), jnp.zeros(4), "0.25 away from its projection onto Simplex"),
        (NonNegative(), jnp.full(4, -1e-3), "0.001 away"),
        (L2Ball(1e-6), jnp.full(4, 1e-6), "5e-07 away"),
    ],
)
def test_a_start_outside_is_refused(home, start, answer):
    problem = Problem(BED.outer, BED.inner, outer_set=home)
    with pytest.raises(Mistake, match=f"`x` must start inside `outer_set`, but .* {answer}"):
        go(problem, solvers.biadam(), start, steps=1)
    y = jnp.concatenate([start, jnp.zeros(1)])
    problem = Problem(BED.outer, BED.inner, inner_set=home)
    with pytest.raises(Mistake, match="`y` must start inside `inner_set`"):
        go(problem, solvers.biadam(), y=y, steps=1)


def test_a_start_of_the_wrong_sum_is_refused_however_many_share_it():
    """In single precision, where every entry of a thousand is off by a little only."""
    tilted = jnp.full(1000, 3e-4, jnp.float32).at[0].add(1.0)
    ones = {"a": jnp.ones(1000, jnp.float32)}
    for home, start in (
        (Simplex(), tilted),
        (HalfSpace(1.0, 1.0), tilted),
        (Affine(jax.tree.map(lambda a: a[None], ones), jnp.ones(1)), {"a": tilted}),
    ):
        with pytest.raises(Mistake, match="`x` must start inside `outer_set`"):
            driver._check_start("x", start, "outer_set", home)
        inside = home.project(start, 1.0)
        kept = driver._check_start("x", inside, "outer_set", home)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), kept, inside)
    slack = Simplex(1 + 6e-6).project(tilted, 1.0)
    run_from = driver._check_start("x", slack, "outer_set", Simplex())
    assert abs(float(np.sum(run_from, dtype=float)) - 1) < 2e-7  # the round-off of one entry
    assert abs(float(np.sum(slack, dtype=float)) - 1) > 2e-6


@pytest.mark.parametrize(
    "home",
    [
        Separate({"a": L1(0.1), "b": NonNegative()}),
        Separate({"a": L1(0.1), "b": Separate(NonNegative())}),
        Product({"a": Free(), "b": NonNegative()}),
        Product({"a": Free(), "b": PerLeaf(NonNegative())}),
    ],
)
def test_a_part_of_the_start_outside_its_set_is_refused(home):
    """However large the other parts are."""
    start = {"a": jnp.full(2, 1e9), "b": -jnp.ones(3)}
    with pytest.raises(Mistake, match=r"`y\['b'\]` must start inside `inner_set`, but .* 1 away"):
        driver._check_start("y", start, "inner_set", home)
    inside = {"a": start["a"], "b": jnp.zeros(3)}
    kept = driver._check_start("y", inside, "inner_set", home)
    jax.tree.map(np.testing.assert_array_equal, kept, inside)


def test_a_start_inside_or_on_the_border_is_taken():
    single = lambda a: jnp.asarray(a, jnp.float32)
    uneven = np.array([0.1, 0.2, 0.3, 0.4])
    for home, start in (
        (Simplex(), single(uneven)),
        (Simplex(0.1), single(uneven / 10)),
        (L2Ball(0.3), single(uneven) * (0.3 / jnp.linalg.norm(single(uneven)))),
        (L1(0.5), jnp.ones(4)),  # a term is finite everywhere
    ):
        driver._check_start("x", start, "outer_set", home)


@pytest.mark.parametrize("home", [Simplex(), L2Ball(0.5)])
def test_small_rates_in_single_precision_stay_in_the_set(home):
    """Round-off is forgotten within 1 / eta steps, so some 30 times that of one step is left."""
    steps, bed = 4000, Quadratic((100, 2), noise=0.3, examples=4)
    single = lambda tree: jax.tree.map(
        lambda a: np.float32(a) if np.asarray(a).dtype == float else a, tree
    )
    data = Minibatches(single(bed.outer_data), single(bed.inner_data), 2)
    solver = solvers.biadam((0.3, 0.3), mixing=1e-3)
    problem = Problem(bed.outer, bed.inner, outer_set=home)
    start = home.project(jnp.zeros(100, jnp.float32) + 0.2, 1.0)
    run = go(problem, solver, start, single(bed.y0), steps, data, output=Path(steps))
    x = np.asarray(run.x, float)
    if isinstance(home, Simplex):
        assert x.min() >= 0
        assert abs(x.sum(1) - 1).max() < 3e-6
    else:
        assert np.linalg.norm(x, axis=1).max() < 0.5 * (1 + 3e-6)
    assert abs(x[-1] - x[0]).max() > 1e-3

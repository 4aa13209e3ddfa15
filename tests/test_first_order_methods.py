"""Penalty methods and tuning-free ones: rows, exact fixed points, second implementations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
import reference
from beds import BEDS
from biadam import Levels, Mistake
from biadam.penalty import PowerGrowth, Ramp
from biadam.sets import Box
from biadam.solvers.bome import bome
from biadam.solvers.f2ba import f2ba
from biadam.solvers.f2sa import f2sa
from biadam.solvers.pbgd import pbgd_gradient, pbgd_value
from biadam.solvers.tfbo import d_tfbo, s_tfbo
from biadam.tasks import Quadratic
from rows_first_order import (
    ROWS,
    bome_limit,
    inverse,
    offset,
    penalised,
    series,
    value_limit,
)


def run(solver: Any, bed: Quadratic, steps: int, **slots: Any) -> biadam.Result:
    data = slots.pop("data", bed.full())
    key = jax.random.key(slots.pop("seed", 0))
    problem = slots.pop("problem", bed.problem)
    return biadam.run(problem, solver, data, bed.x0, bed.y0, steps=steps, key=key, every=steps)


def close(a: Any, b: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b))


@pytest.mark.parametrize("name", ROWS)
def test_all_of_the_point_is_the_closed_form(name):
    """With its y, on one bed: that of the penalised problem, not y*(x)."""
    bed, row = BEDS["small"], ROWS[name]
    result = run(row.solver(bed), bed, row.steps)
    x = row.limit(bed)
    fits = {
        "f2sa": lambda: penalised(bed, 100.0, slack=inverse(bed), solve=inverse(bed))[1],
        "f2ba": lambda: penalised(bed, 100.0, slack=inverse(bed), solve=series(bed, 4, 0.5))[1],
        "pbgd_value": lambda: penalised(bed, 20.0, slack=inverse(bed), solve=inverse(bed))[1],
        "pbgd_gradient": lambda: penalised(
            bed, 100.0, slack=inverse(bed) @ inverse(bed), solve=inverse(bed)
        )[1],
        "s_tfbo": lambda: bed.solution(x),
        "d_tfbo": lambda: bed.solution(x),
    }
    assert close(result.x, x) <= row.tolerance
    if name in fits:
        assert close(result.y, fits[name]()) <= row.tolerance
    if name == "f2sa" or name == "pbgd_value":
        assert close(result.state.z, bed.solution(x)) <= row.tolerance


OFFSETS = {
    "f2sa": (
        lambda m: f2sa((1.0 / m, 0.5), penalty=m, inner_steps=2),
        lambda m: 200 * int(m),
        lambda bed: inverse(bed),
        lambda bed: inverse(bed),
    ),
    "f2ba": (
        lambda m: f2ba((0.1, 0.5), penalty=m, inner_steps=4),
        lambda m: 2000,
        lambda bed: inverse(bed),
        lambda bed: series(bed, 4, 0.5),
    ),
    "pbgd_value": (
        lambda m: pbgd_value((0.3, 0.3), penalty=m),
        lambda m: 200 * int(m),
        lambda bed: inverse(bed),
        lambda bed: inverse(bed),
    ),
    "pbgd_gradient": (
        lambda m: pbgd_gradient((0.3, 0.3), penalty=m),
        lambda m: 200 * int(m),
        lambda bed: inverse(bed) @ inverse(bed),
        lambda bed: inverse(bed),
    ),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_the_offset_is_the_predicted_constant_over_the_penalty(name):
    """``m (x_m - x_inf) = constant + O(1 / m)``: ten times m leaves a tenth of the remainder."""
    make, steps, slack, solve = OFFSETS[name]
    bed = BEDS["small"]
    constant = offset(bed, slack=slack(bed), solve=solve(bed))
    remainder = []
    for m in (100.0, 1000.0):
        x = run(make(m), bed, steps(m)).x
        remainder.append(close(m * (np.asarray(x) - bed.optimum(solve(bed))), constant))
    assert remainder[0] <= 0.1
    assert remainder[1] == pytest.approx(remainder[0] / 10, rel=0.1)


def test_a_growing_multiplier_follows_its_fixed_point():
    """F2SA with the noise-free schedule (a, c) = (1/3, 0): its error is the offset at lambda_k."""
    bed, steps = BEDS["small"], 20000
    outer = lambda t: 0.1 / (10 + jnp.asarray(t, float)) ** (1 / 3)
    growth = PowerGrowth(scale=5.0, offset=10.0, power=1 / 3)
    x = run(f2sa((outer, 0.5), penalty=growth), bed, steps).x
    now = float(growth(jnp.asarray(steps)))
    assert now > 100
    constant = offset(bed, slack=inverse(bed), solve=inverse(bed))
    assert close(now * (np.asarray(x) - bed.optimum()), constant) <= 0.05


def test_bome_keeps_the_bias_of_its_inner_steps_and_of_its_step_size():
    """Without a guard: half the step, half the distance to the floor of T Neumann terms."""
    bed = BEDS["wide"]
    floor = bed.optimum(series(bed, 10, 0.5))
    errors = [
        close(run(bome((s, s), guard=1e-14), bed, int(400 / s)).x, floor) for s in (0.01, 0.005)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert 8 * errors[1] > close(bed.optimum(), floor) > 4 * errors[1]  # the floor is not x*
    limits = [bome_limit(10, 0.5, 0.5, guard)(bed) for guard in (1e-9, 1e-12)]
    assert close(limits[0], floor) / close(limits[1], floor) == pytest.approx(10, rel=0.1)


# ------------------------------------------------------------------------- second implementations

NOISY = Quadratic((3, 4), condition=4.0, noise=0.2, examples=12, seed=5)
ORACLE = reference.Quadratic()
KEY = jax.random.key(3)
LENGTH = 50


def zeta(sample: Any, i: int) -> dict[str, np.ndarray]:
    """The i-th inner minibatch in the reference's words."""
    batch = jax.tree.map(lambda a: np.asarray(a)[i].mean(0), sample.inner)
    return {"H": batch["hessian"], "B": -batch["coupling"], "c": -batch["shift"]}


def xi(sample: Any) -> dict[str, Any]:
    batch = jax.tree.map(lambda a: np.asarray(a).mean(0), sample.outer)
    return {"t": batch["target"], "r": batch["centre"], "a": NOISY.ridge}


def compare(solver: Any, second: Callable[[np.ndarray, np.ndarray, list[Any]], Any]) -> list[Any]:
    """Both on shared samples; ``second`` returns the points after each iteration."""
    data = NOISY.minibatches(2)
    samples = [data(KEY, t, solver.batches) for t in range(LENGTH + 1)]
    x = jnp.asarray([0.3, -0.2, 0.5])
    y = jnp.asarray([0.1, 0.4, -0.3, 0.2])
    state, _ = solver.init(NOISY.problem, x, y, samples[0])
    step = jax.jit(lambda state, sample: solver.step(NOISY.problem, state, sample))
    ours = []
    for sample in samples[1:]:
        state, info = step(state, sample)
        ours.append(state.point)
    theirs = second(np.asarray(x), np.asarray(y), samples[1:])
    assert len(theirs) == LENGTH
    for point, (x, y) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(point.x, x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(point.y, y, rtol=1e-10, atol=1e-12)
    return [state, info]


@pytest.mark.parametrize("paired", [False, True])
def test_f2sa_is_the_second_implementation(paired):
    solver = f2sa(inner_steps=3, paired=paired)
    other = 0 if paired else 4

    def second(x, y, samples):
        (outer, inner), growth = solver.step_size, solver.penalty
        lam = lambda t: float(growth(jnp.asarray(t)))
        gamma = lambda t: float(inner(jnp.asarray(t)))
        alpha = lambda t: gamma(t) / (2 * lam(t))
        entries = [
            {
                "inner": [
                    {"zeta_y": zeta(s, i), "zeta_z": zeta(s, i + other), "xi": xi(s)}
                    for i in range(3)
                ],
                "xi": xi(s),
                "zeta_y": zeta(s, 3),
                "zeta_z": zeta(s, 3 + other),
            }
            for s in samples
        ]
        return reference.f2sa(
            ORACLE,
            x,
            y,
            entries,
            alpha=alpha,
            gamma=gamma,
            ratio=lambda t: float(outer(jnp.asarray(t))) / alpha(t),
            lam=lam(1),
            delta=lambda t: lam(t + 1) - lam(t),
        )[1:]

    compare(solver, second)


def test_f2ba_is_the_second_implementation():
    """F2SA of one iteration at a time, so that z begins at y."""

    def second(x, y, samples):
        points, lam = [], 7.0
        for s in samples:
            inner = [{"zeta_y": zeta(s, i), "zeta_z": zeta(s, i), "xi": xi(s)} for i in range(3)]
            entry = {"inner": inner, "xi": xi(s), "zeta_y": zeta(s, 3), "zeta_z": zeta(s, 3)}
            x, y = reference.f2sa(
                ORACLE,
                x,
                y,
                [entry],
                alpha=0.4 / lam,
                gamma=0.4,
                ratio=0.1 / (0.4 / lam),
                lam=lam,
                delta=0.0,
            )[1]
            points.append((x, y))
        return points

    compare(f2ba((0.1, 0.4), penalty=7.0, inner_steps=3), second)


def test_bome_is_the_second_implementation():
    solver = bome((0.1, 0.07), inner_steps=3, solution_step=0.4, decrease=0.6)

    def second(x, y, samples):
        entries = [
            {"inner": [zeta(s, i) for i in range(3)], "zeta": zeta(s, 3), "xi": xi(s)}
            for s in samples
        ]
        return reference.bome(ORACLE, x, y, entries, a_x=0.1, a_y=0.07, a_inner=0.4, eta=0.6)[1:]

    compare(solver, second)


def test_s_tfbo_is_the_second_implementation():
    def second(x, y, samples):
        entries = [{"xi": xi(s), "zeta": zeta(s, 0)} for s in samples]
        return reference.s_tfbo(ORACLE, x, y, entries, a=2.0, b=1.5, c=0.5)[1:]

    compare(s_tfbo((1.0, 1.0), start=Levels(2.0, 1.5, 0.5)), second)


def test_pbgd_value_written_out():
    def second(x, y, samples):
        z, points = y, []
        for k, s in enumerate(samples):
            for i in range(2):
                z = z - 0.4 * ORACLE.g_y(x, z, zeta(s, i))
            gamma = min(4.0, 4.0 * k / 20)
            gap = ORACLE.g_x(x, y, zeta(s, 2)) - ORACLE.g_x(x, z, zeta(s, 2))
            scale = 1 / max(gamma, 1.0)
            w = scale * (ORACLE.f_x(x, y, xi(s)) + gamma * gap)
            v = scale * (ORACLE.f_y(x, y, xi(s)) + gamma * ORACLE.g_y(x, y, zeta(s, 2)))
            x, y = x - 0.1 * w, y - 0.2 * v
            points.append((x, y))
        return points

    ramp = Ramp(0.0, 4.0, 20.0)
    solver = pbgd_value((0.1, 0.2), penalty=ramp, inner_steps=2, solution_step=0.4)
    compare(solver, second)


def test_pbgd_gradient_written_out():
    def second(x, y, samples):
        points = []
        for s in samples:
            u = ORACLE.g_y(x, y, zeta(s, 0))
            w = ORACLE.f_x(x, y, xi(s)) / 4.0 + ORACLE.cross(x, y, zeta(s, 1)) @ u
            v = ORACLE.f_y(x, y, xi(s)) / 4.0 + ORACLE.hess(x, y, zeta(s, 1)) @ u
            x, y = x - 0.1 * w, y - 0.2 * v
            points.append((x, y))
        return points

    compare(pbgd_gradient((0.1, 0.2), penalty=4.0), second)


@pytest.mark.parametrize("restart", [False, True])
def test_d_tfbo_written_out(restart):
    """With a tolerance that ends some of the loops early, and their calls."""
    most, tolerance, looks = 4, 0.05, []

    def second(x, y, samples):
        s, points = np.zeros_like(y), []
        a, b, c = 4.0, 2.25, 0.25
        for sample in samples:
            if restart:
                b, c = 2.25, 0.25
            for i in range(most):
                d = ORACLE.g_y(x, y, zeta(sample, i))
                if d @ d <= tolerance:
                    break
                b += d @ d
                y = y - d / np.sqrt(b)
            n = i + 1
            f_y = ORACLE.f_y(x, y, xi(sample))
            for i in range(most):
                d = ORACLE.hess(x, y, zeta(sample, most + i)) @ s - f_y
                if d @ d <= tolerance:
                    break
                c += d @ d
                s = s - d / np.sqrt(c)
            looks.append((1, n, i + 1, 1))
            w = ORACLE.f_x(x, y, xi(sample)) - ORACLE.cross(x, y, zeta(sample, 2 * most)) @ s
            a += w @ w
            x = x - w / np.sqrt(a)
            points.append((x, y))
        return points

    start = Levels(2.0, 1.5, 0.5)
    solver = d_tfbo(start=start, tolerance=tolerance, inner_steps=most, restart=restart)
    _, info = compare(solver, second)
    assert len(set(looks)) > 3  # both ends of the loops did occur
    assert tuple(int(n) for n in info.calls) == looks[-1]


# ---------------------------------------------------------------------------------- special to them


def test_d_tfbo_stops_where_it_need_not_move():
    """Once converged a step is one look at either level, and the tolerance holds."""
    bed, tolerance = BEDS["small"], 1e-8
    result = run(d_tfbo(tolerance=tolerance, inner_steps=50), bed, 2000)
    start = run(d_tfbo(tolerance=tolerance, inner_steps=50), bed, 10)
    assert result.oracle_calls["inner_gradient"] < 2000 + 50 * 200
    assert start.oracle_calls["hessian_product"] > 10 * 10
    x, y = np.asarray(result.x), np.asarray(result.y)
    slope = bed.hessian @ y - bed.coupling.T @ x - bed.shift
    assert slope @ slope <= 1.1 * tolerance
    assert close(x, bed.optimum()) <= 10 * tolerance**0.5


def test_v_pbgd_with_a_constraint_on_x():
    """The limit is where a projected step of the penalised F does not move."""
    bed, m = BEDS["small"], 20.0
    free = value_limit(m)(bed)
    edge = 0.5 * float(np.abs(free).max())
    problem = biadam.Problem(bed.outer, bed.inner, outer_set=Box(-edge, edge))
    x = np.asarray(run(pbgd_value((0.3, 0.3), penalty=m), bed, 20000, problem=problem).x)
    shrink = np.linalg.inv(np.eye(3) + inverse(bed) / m)
    y = shrink @ (bed.solution(x) + inverse(bed) @ bed.target / m)
    w = bed.ridge * (x - bed.centre) - m * bed.coupling @ (y - bed.solution(x))
    np.testing.assert_allclose(np.clip(x - 0.1 * w, -edge, edge), x, atol=1e-10)
    assert np.abs(x).max() == pytest.approx(edge)


def test_sharing_minibatches_keeps_the_multiplier_from_amplifying_noise():
    """At lambda = 300 the independent minibatches of F2SA drown what the shared ones leave."""
    bed = Quadratic((2, 3), condition=3.0, noise=0.2, seed=1)

    def error(paired: bool) -> float:
        solver = f2sa((0.002, 0.3), penalty=300.0, inner_steps=2, paired=paired)
        runs = [run(solver, bed, 4000, data=bed.minibatches(2), seed=s) for s in range(4)]
        return float(np.mean([close(r.x, value_limit(300.0)(bed)) for r in runs]))

    assert error(False) > 3 * error(True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: f2sa(penalty=0.0), "`penalty` must be above 0"),
        (lambda: f2sa(inner_steps=0), "`inner_steps` must be a whole number"),
        (lambda: f2sa(ratio=-1.0), "`ratio` must be above 0"),
        (lambda: bome(guard=0.0), "`guard` must be above 0"),
        (lambda: bome(decrease=0.0), "`decrease` must be above 0"),
        (lambda: bome(solution_step=0.0), "`solution_step` must be above 0"),
        (lambda: pbgd_value(penalty=-1.0), "`penalty` must be above 0"),
        (lambda: Ramp(steps=0.0), "`Ramp.steps` must be above 0"),
        (lambda: PowerGrowth(power=-1.0), "`PowerGrowth.power` must be at least 0"),
        (lambda: s_tfbo(start=Levels(1.0, 1.0)), "`start.s` must be a number"),
        (lambda: d_tfbo(start=Levels(0.0, 1.0, 1.0)), "`start.x` must be above 0"),
        (lambda: d_tfbo(tolerance=-1.0), "`tolerance` must be at least 0"),
    ],
)
def test_mistakes(make, match):
    with pytest.raises(Mistake, match=match):
        make()

"""The single-loop and variance-reduced methods: their rows, the second implementation, specials."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import biadam
import reference
from beds import BEDS, neumann_floor
from biadam import Calls, Levels, Mistake, Sample, dense
from biadam.data.blocks import Blocks
from biadam.estimators import MovingAverage, Spider, Storm, Table
from biadam.hypergradients import LinearSystem, NeumannRandom, NeumannSum
from biadam.metrics import Adam, Norm
from biadam.schedules import Constant, Coupled, PowerDecay
from biadam.solvers.fsla import fsla, fsla_plain
from biadam.solvers.ma_soba import ma_soba
from biadam.solvers.mrbo import mrbo
from biadam.solvers.mstsa import mstsa
from biadam.solvers.saba import saba
from biadam.solvers.slip import slip
from biadam.solvers.smb import smb
from biadam.solvers.soba import soba
from biadam.solvers.srba import srba
from biadam.solvers.stable import stable
from biadam.solvers.sustain import sustain
from biadam.solvers.svrb import svrb
from biadam.solvers.vrbo import _draw, vrbo
from biadam.tasks import Quadratic
from counting import Counting
from rows_single_loop import SUM, blocks, convexity
from shared_samples import BED, KEY, Shared, agree, pair, series, xi_of, zeta_of

# ------------------------------------------------------------------- against the NumPy reference

ETA = PowerDecay(1.0, 3.0, 1 / 3)
RANDOM = NeumannRandom(4, 0.7)


@pytest.mark.parametrize("inner", ["ema", "sgd"])
def test_smb_is_the_second_implementation(inner):
    solver = smb(
        (0.1, 0.3), hypergradient=RANDOM, rates=Constant(0.3, 0.4 if inner == "ema" else 1.0)
    )
    agree(
        solver, reference.smb, lambda s: series(s, 4), first=0,
        eta=0.1, lam=0.3, beta=0.3, alpha=0.4, inner=inner, theta=0.7, K=4,
    )  # fmt: skip


def test_sustain_is_the_second_implementation():
    solver = sustain((0.1, 0.3), hypergradient=RANDOM, mixing=ETA, rates=Coupled(0.7, 0.9, 2.0))
    eta = lambda t: (3 + t) ** (-1 / 3)
    agree(
        solver, reference.sustain, lambda s: series(s, 4), first=0,
        alpha=lambda t: 0.1 * eta(t), beta=lambda t: 0.3 * eta(t),
        a_f=lambda t: 0.7 * eta(t - 1) ** 2, a_g=lambda t: 0.9 * eta(t - 1) ** 2, theta=0.7, K=4,
    )  # fmt: skip


def test_mrbo_is_the_second_implementation():
    solver = mrbo(
        (0.1, 0.3), hypergradient=NeumannSum(3, 0.7), mixing=ETA, rates=Coupled(0.7, 0.9, 2.0)
    )
    agree(
        solver, reference.mrbo, series, first=0,
        gamma=0.1, lam=0.3, d=1.0, m=3.0, c1=0.7, c2=0.9, theta=0.7,
    )  # fmt: skip


def test_mstsa_is_the_second_implementation():
    solver = mstsa((PowerDecay(0.3, 0.0, 1 / 2), 0.3), rate=0.4, hypergradient=RANDOM)
    agree(
        solver, reference.mstsa, lambda s: series(s, 4), first=1,
        alpha=lambda t: 0.3 / np.sqrt(t), beta=0.3, c=0.4, theta=0.7, K=4,
    )  # fmt: skip


def test_vrbo_is_the_second_implementation():
    solver = vrbo((0.1, 0.3), inner_steps=2, period=3, hypergradient=NeumannSum(2, 0.7))
    per = solver.hypergradient.batches

    def entry(sample: Sample) -> dict[str, Any]:
        small = []
        for t, key in enumerate(jr.split(sample.key, 3)):
            inner = jax.tree.map(lambda a, t=t: a[t * per : (t + 1) * per], sample.inner)
            small.append(series(sample._replace(outer=_draw(key, sample.whole[0], 2), inner=inner)))
        outer, inner = sample.whole
        everything = jax.tree.map(lambda a: jnp.stack([a] * per), inner)
        return {
            "inner": small,
            "big": series(sample._replace(outer=outer, inner=everything)),
        }

    agree(solver, reference.vrbo, entry, first=1, alpha=0.1, beta=0.3, q=3, theta=0.7)


@pytest.mark.parametrize("form", ["storm", "none"])
def test_fsla_is_the_second_implementation(form):
    eta = lambda t: 0.9 / np.sqrt(t)
    steps, slot = (0.1, 0.3), {"system_step": 0.4}
    storm = fsla(steps, rate=PowerDecay(0.9, 0.0, 1 / 2), **slot)
    solver = storm if form == "storm" else fsla_plain(steps, **slot)

    def entry(sample: Sample) -> dict[str, Any]:
        names = {f"zeta{i + 1}": zeta_of(sample.batch(i)) for i in range(3)}
        return names | dict.fromkeys(("xi1", "xi2"), xi_of(sample.outer))

    agree(
        solver, reference.fsla, entry, first=1,
        alpha=0.1, beta=0.3, rho=0.4, eta=eta, momentum=form,
    )  # fmt: skip


def test_stable_is_the_second_implementation():
    """With bounds that cut: the first sample's matrices, which the reference takes raw, do not."""
    low, bound = 0.3, 0.8
    first = Shared(2).sample(1).batch(1)
    seen = zeta_of(first)
    bound = float(np.linalg.norm(seen["B"], 2)) * 1.001
    low = float(np.linalg.eigvalsh(seen["H"])[0]) * 0.999
    solver = stable((0.1, 0.3), rate=0.3, cross_bound=bound, convexity=low)
    cuts = [zeta_of(Shared(2).sample(t).batch(1)) for t in range(1, 6)]
    assert any(np.linalg.norm(z["B"], 2) > bound for z in cuts)
    assert any(np.linalg.eigvalsh(z["H"])[0] < low for z in cuts)
    agree(
        solver, reference.stable, lambda s: pair(s) | {"phi": zeta_of(s.batch(1))}, first=1,
        alpha=0.1, beta=0.3, tau=0.3, C_gxy=bound, mu=low,
    )  # fmt: skip


def test_svrb_is_the_second_implementation():
    solver = svrb((0.1, 0.3), rate=0.3, convexity=0.4, smoothness=0.9)
    agree(
        solver, reference.svrb, pair, first=1, gamma=0.1, lam=0.3, a=0.3, mu=0.4, L_g=0.9
    )  # fmt: skip


def test_soba_is_the_second_implementation():
    solver = soba((0.1, 0.3), hypergradient=LinearSystem(0.3), mixing=ETA)
    eta = lambda t: (3 + t) ** (-1 / 3)
    agree(
        solver, reference.soba, pair, first=0,
        gamma=lambda t: 0.1 * eta(t), rho=lambda t: 0.3 * eta(t),
    )  # fmt: skip


def test_ma_soba_is_the_second_implementation():
    solver = ma_soba(
        (0.1, 0.3), hypergradient=LinearSystem(0.2), mixing=1.0, rates=Constant(outer=0.4)
    )
    agree(
        solver, reference.ma_soba, pair, first=0,
        alpha=0.1, beta=0.3, gamma=0.2, theta=0.4, simultaneous=True,
    )  # fmt: skip


def test_saba_is_the_second_implementation():
    cut = lambda data: [jax.tree.map(lambda a, i=i: a[2 * i : 2 * i + 2], data) for i in range(4)]
    entry = lambda s: {"j": int(s.block[0]), "i": int(s.block[1][0])}
    agree(
        saba((0.1, 0.3)), reference.saba, entry, first=1, data=blocks(BED), gamma=0.1, rho=0.3,
        zetas=[zeta_of(z) for z in cut(BED.inner_data)],
        xis=[xi_of(x) for x in cut(BED.outer_data)],
    )  # fmt: skip


def test_srba_is_the_second_implementation():
    solver = srba((0.1, 0.3), hypergradient=LinearSystem(0.3), period=4)
    outer, inner = BED.outer_data, BED.inner_data
    big = {"big": {"xi": xi_of(outer), "zeta": zeta_of(inner)}}
    agree(
        solver, reference.srba, lambda s: pair(s) | big, first=0, gamma=0.1, rho=0.3, q=4
    )  # fmt: skip


# --------------------------------------------------------------------------------- finite sums

NOISY = Quadratic(noise=0.3)


def solve(bed: Quadratic, solver: Any, data: Any, steps: int) -> Any:
    return biadam.run(bed.problem, solver, data, bed.x0, bed.y0, steps=steps, key=KEY)


def error(bed: Quadratic, x: Any, limit: np.ndarray) -> float:
    return float(np.linalg.norm(x - limit) / np.linalg.norm(limit))


@pytest.mark.parametrize("factory", [saba, srba])
def test_constant_steps_solve_a_finite_sum_exactly(factory):
    result = solve(NOISY, factory(), blocks(NOISY, 1), 8000)
    assert error(NOISY, result.x, NOISY.optimum()) < 1e-10


def test_plain_descent_with_the_same_steps_does_not():
    plain = soba((0.01, 0.5), mixing=1.0)
    result = solve(NOISY, plain, blocks(NOISY, 1), 8000)
    assert error(NOISY, result.x, NOISY.optimum()) > 1e-3


def test_vrbo_reaches_its_floor_on_a_finite_sum():
    """Only if v and w belong to the point that is left; small minibatches, exact in the end."""
    result = solve(NOISY, vrbo(hypergradient=NeumannSum(3, 0.5)), NOISY.minibatches(2), 4000)
    assert error(NOISY, result.x, neumann_floor(4, 0.5)(NOISY)) < 1e-10


@pytest.mark.parametrize("period", [1, 3])
def test_vrbo_leaves_estimates_at_its_point(period):
    """On a quadratic without noise they are the field itself, whenever all the data was seen."""
    data, solver = NOISY.full(), vrbo(period=period, inner_steps=2)
    state, _ = solver.init(NOISY.problem, NOISY.x0, NOISY.y0, data(KEY, 0, solver.batches))
    step = eqx.filter_jit(solver.step)
    for t in range(1, 5):
        state, _ = step(NOISY.problem, state, data(KEY, t, solver.batches))
        there = solver.hypergradient(NOISY.problem, state.point, data(KEY, 0, 5)).value
        np.testing.assert_allclose(state.direction.x, there.x, atol=1e-12)
        np.testing.assert_allclose(state.direction.y, there.y, atol=1e-12)


def test_a_look_at_all_the_data_counts_its_minibatches():
    """8 examples in minibatches of 2: 4 of them, beside the 2 of a correction otherwise."""
    for solver, steps, looks in (
        (srba(period=5), 10, 8 * 2 + 2 * 4),
        (vrbo(inner_steps=2, period=5), 10, 10 * 6 + 2 * 4),
    ):
        begun = solve(NOISY, solver, NOISY.minibatches(2), 0).oracle_calls
        ended = solve(NOISY, solver, NOISY.minibatches(2), steps).oracle_calls
        assert ended["outer_gradient"] - begun["outer_gradient"] == looks
        assert ended["inner_gradient"] - begun["inner_gradient"] == looks


def test_saba_keeps_the_mean_of_its_tables():
    solver, data = saba(), blocks(NOISY)
    state, _ = solver.init(NOISY.problem, NOISY.x0, NOISY.y0, data(KEY, 0, 1))
    step = eqx.filter_jit(solver.step)
    for t in range(1, 60):
        state, _ = step(NOISY.problem, state, data(KEY, t, 1))
        for table in (state.outer, state.inner):
            means = jax.tree.map(lambda a: jnp.mean(a, 0), table.values)
            for mean, kept in zip(*map(jax.tree.leaves, (means, table.mean)), strict=True):
                np.testing.assert_allclose(kept, mean, atol=1e-13)


def test_table_estimates_the_mean_without_bias():
    table = Table.of(jnp.array([1.0, 5.0, 0.0]))
    fresh = jnp.array([2.0, 3.0, 7.0])
    guesses = [float(table.exchange(jnp.asarray(i), fresh[i])[0]) for i in range(3)]
    assert np.mean(guesses) == pytest.approx(4.0)
    _, new = table.exchange(jnp.asarray(1), fresh[1])
    np.testing.assert_allclose(new.values, [1.0, 3.0, 0.0])
    assert float(new.mean) == pytest.approx(4 / 3)


def test_blocks_tell_which_they_are():
    data = blocks(NOISY)
    for t in range(5):
        sample = data(KEY, t, 3)
        j, i = sample.block
        np.testing.assert_array_equal(sample.outer["index"], [2 * j, 2 * j + 1])
        np.testing.assert_array_equal(sample.inner["index"], [[2 * n, 2 * n + 1] for n in i])
    drawn = {int(data(KEY, t, 1).block[0]) for t in range(60)}
    assert drawn == {0, 1, 2, 3}


def test_blocks_must_divide_the_data():
    with pytest.raises(Mistake, match=r"size.*outer.*divide the 8 examples.*3; the nearest.*is 2"):
        Blocks(NOISY.outer_data, NOISY.inner_data, 3)


@pytest.mark.parametrize("factory", [saba, srba, vrbo])
def test_finite_sums_need_all_the_data(factory):
    solver = factory()
    sample = NOISY.minibatches(2)(KEY, 0, solver.batches)._replace(whole=None)
    with pytest.raises(Mistake, match=r"looks at all the data.*does not tell it"):
        state, _ = solver.init(NOISY.problem, NOISY.x0, NOISY.y0, sample)
        solver.step(NOISY.problem, state, sample)


def test_saba_needs_blocks():
    with pytest.raises(Mistake, match=r"which block a minibatch is.*biadam.data.Blocks"):
        solve(NOISY, saba(), NOISY.minibatches(2), 1)


# ----------------------------------------------------------------------------- variance reduction


def rings(solver: Any, steps: int, factory_data: Any = None) -> list[Any]:
    """What the problem noted of its oracle calls, step by step."""
    data = factory_data or BED.minibatches(1)
    problem = Counting(BED.problem)
    state, _ = solver.init(problem, BED.x0, BED.y0, data(KEY, 0, solver.batches))
    step = eqx.filter_jit(solver.step)
    notes = []
    for t in range(1, steps + 1):
        problem.log.counts()
        problem.log.notes.clear()
        state, _ = step(problem, state, data(KEY, t, solver.batches))
        problem.log.counts()
        notes.append(list(problem.log.notes))
    return notes


@pytest.mark.parametrize(
    "solver",
    [
        sustain(hypergradient=RANDOM),
        mrbo(),
        mstsa(hypergradient=RANDOM),
        fsla(),
        svrb(),
        srba(period=100),
    ],
    ids=["sustain", "mrbo", "mstsa", "fsla", "svrb", "srba"],
)
def test_both_points_see_the_same_samples(solver):
    """Minibatch by minibatch, and as many of them, the random length included."""
    lengths = set()
    for notes in rings(solver, 6)[1:]:
        points = {where for _, where, _ in notes}
        assert len(points) == 2
        kinds = {"outer_gradient", "cross_product"}
        if not isinstance(solver, type(fsla())):
            kinds |= {"hessian_product"}
        seen = {
            point: sorted(
                (kind, ids) for kind, where, ids in notes if where == point and kind in kinds
            )
            for point in points
        }
        one, other = seen.values()
        assert one == other
        lengths.add(len(one))
    if getattr(solver, "hypergradient", None) == RANDOM:
        assert len(lengths) > 1


def test_alternating_methods_look_no_more_than_they_need():
    """No g_y at an old point, and f_x and f_y of the new one together."""
    for solver, outer in ((mstsa(), 2), (fsla(), 2), (fsla_plain(), 1)):
        for notes in rings(solver, 4):
            kinds = [kind for kind, _, _ in notes]
            assert kinds.count("inner_gradient") == 1
            assert kinds.count("outer_gradient") == outer


def test_spider_is_storm_that_forgets_nothing():
    """And at points that do not move it stays where it is."""
    solver = NeumannRandom(4, 0.7)
    sample = BED.minibatches(1)(KEY, 0, solver.batches)
    field = lambda z: solver(BED.problem, z, sample)
    point = Levels(jnp.ones(2), jnp.ones(3))
    far = Levels(jnp.zeros(2), jnp.ones(3))
    d = Levels(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0, 5.0]))
    still, _, calls = Spider()(field, point, point, d, Levels(0.3, 0.3))
    np.testing.assert_allclose(still.x, d.x, rtol=1e-14)
    moved, _, _ = Spider()(field, point, far, d, Levels(0.3, 0.3))
    storm, _, _ = Storm()(field, point, far, d, Levels(jnp.zeros(()), jnp.zeros(())))
    np.testing.assert_array_equal(moved.x, storm.x)
    assert calls.outer_gradient == 2


# ------------------------------------------------------------------------------- dense matrices


def test_projections_of_matrices_are_the_second_implementations():
    draw = np.random.default_rng(0)
    square, wide = draw.normal(size=(5, 5)), draw.normal(size=(3, 5))
    between = dense.between(jnp.asarray(square), 0.2, 1.5)
    np.testing.assert_allclose(between, reference.clip_eigenvalues(square, 0.2, 1.5), atol=1e-12)
    above = dense.between(jnp.asarray(square), 0.2)
    np.testing.assert_allclose(above, reference.clip_eigenvalues(square, 0.2), atol=1e-12)
    at_most = dense.at_most(jnp.asarray(wide), 0.7)
    np.testing.assert_allclose(at_most, reference.clip_spectral(wide, 0.7), atol=1e-12)
    np.testing.assert_allclose(dense.between(between, 0.2, 1.5), between, atol=1e-12)
    np.testing.assert_allclose(dense.at_most(at_most, 0.7), at_most, atol=1e-12)


def test_matrices_are_the_second_derivatives():
    sample = NOISY.full()(KEY, 0, 1)
    found, calls = dense.matrices(NOISY.problem, Levels(NOISY.x0, NOISY.y0), sample.batch(0))
    np.testing.assert_allclose(found.hessian, NOISY.hessian, atol=1e-12)
    np.testing.assert_allclose(found.cross, -NOISY.coupling, atol=1e-12)
    assert calls == Calls(0, 0, 5, 5)


@pytest.mark.parametrize("factory", [stable, svrb])
def test_dense_methods_refuse_what_is_too_large(factory):
    solver = factory()
    sample = BED.minibatches(1)(KEY, 0, solver.batches)
    with pytest.raises(Mistake, match=r"dense second derivatives.*at most 4000000 numbers.*soba"):
        solver.init(BED.problem, jnp.zeros(10), jnp.zeros(2000), sample)
    with pytest.raises(Mistake, match="at most 14 numbers"):
        factory(most=14).init(BED.problem, BED.x0, BED.y0, sample)
    factory(most=15).init(BED.problem, BED.x0, BED.y0, sample)


def test_every_bound_of_the_matrices_acts():
    def end(solver: Any) -> np.ndarray:
        return np.asarray(solve(BED, solver, BED.minibatches(1), 5).x)

    assert not np.array_equal(end(stable()), end(stable(cross_bound=0.3)))
    assert not np.array_equal(end(stable()), end(stable(convexity=0.6)))
    assert not np.array_equal(end(svrb()), end(svrb(convexity=0.6)))
    assert not np.array_equal(end(svrb()), end(svrb(smoothness=0.5)))


def test_stable_stays_on_the_solution_of_the_inner_problem():
    """Its drift correction is exact on a quadratic with the exact matrices."""
    bed = Quadratic((2, 3), condition=3.0, seed=1)
    solver, data = stable((0.1, 0.3)), bed.full()
    y = jnp.asarray(bed.solution(np.zeros(2)))
    state, _ = solver.init(bed.problem, bed.x0, y, data(KEY, 0, 2))
    step = eqx.filter_jit(solver.step)
    for t in range(1, 6):
        state, _ = step(bed.problem, state, data(KEY, t, 2))
        np.testing.assert_allclose(
            state.point.y, bed.solution(np.asarray(state.point.x)), rtol=1e-12
        )
    assert np.linalg.norm(state.point.x) > 0.1


# ------------------------------------------------------------------------------------ each its own


@pytest.mark.parametrize(
    "solver",
    [
        soba((0.01, 0.3), outer_metric=Adam(corrected=True), inner_metric=Norm(corrected=True)),
        mrbo((0.01, 0.3), hypergradient=SUM, outer_metric=Adam(corrected=True)),
        srba((0.01, 0.5), outer_metric=Adam(corrected=True)),
        fsla(outer_metric=Adam(floor=0.1)),
        mstsa(outer_metric=Adam(floor=0.1), estimator=MovingAverage()),
    ],
    ids=["soba", "mrbo", "srba", "fsla", "mstsa"],
)
def test_adaptive_metrics_fill_the_slots(solver):
    result = solve(NOISY, solver, NOISY.minibatches(2), 3000)
    assert error(NOISY, result.x, NOISY.optimum()) < 0.35


def test_momentum_of_one_is_plain_descent():
    """STORM at a weight of 1 forgets all, bit for bit: FSLA is its own plain form."""
    slots = {"system_step": 0.4}
    storm = Shared(3).trajectory(fsla((0.1, 0.3), rate=1.0, **slots))
    plain = Shared(3).trajectory(fsla_plain((0.1, 0.3), **slots))
    np.testing.assert_array_equal(storm[0], plain[0])


def test_slip_stands_still_and_then_takes_steps_of_its_length():
    solver, data = slip((0.07, 0.5), warm_steps=3), BED.minibatches(2)
    state, _ = solver.init(BED.problem, BED.x0, BED.y0, data(KEY, 0, 1))
    step = eqx.filter_jit(solver.step)
    for t in range(1, 9):
        new, _ = step(BED.problem, state, data(KEY, t, 1))
        length = float(np.linalg.norm(new.point.x - state.point.x))
        assert length == pytest.approx(0.07 if t > 3 else 0.0, rel=1e-6, abs=1e-9)
        assert not np.array_equal(new.point.y, state.point.y)
        state = new


@pytest.mark.parametrize("factory", [svrb, vrbo])
def test_methods_without_sets_say_so(factory):
    solver = factory()
    home = biadam.Problem(BED.outer, BED.inner, outer_set=biadam.sets.Box(-1.0, 1.0))
    sample = blocks(BED)(KEY, 0, solver.batches)
    with pytest.raises(Mistake, match="takes no `outer_set`"):
        solver.init(home, BED.x0, BED.y0, sample)


def test_beds_are_those_of_the_table():
    """The steps above are chosen for them."""
    assert {round(1 / convexity(bed)) for bed in BEDS.values()} == {3, 10, 20}

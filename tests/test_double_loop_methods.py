"""The double-loop methods: their rows, the second implementation, and what is special to them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import biadam
import reference
from biadam import Mistake, Problem, Sample
from biadam.data import FullBatch
from biadam.double_loop import Amortized
from biadam.hypergradients import ConjugateGradient, FixedPoint, NeumannRandom, NeumannSum
from biadam.hypergradients.conjugate_gradient import conjugate_gradient
from biadam.schedules import PowerDecay
from biadam.solvers.adambo import Unbiased, adambo
from biadam.solvers.aid import aid_cg, aid_fp
from biadam.solvers.alset import alset
from biadam.solvers.amigo import amigo
from biadam.solvers.bo_rep import bo_rep
from biadam.solvers.bsa import bsa
from biadam.solvers.newton_cg import newton_cg
from biadam.solvers.reverse import reverse
from biadam.solvers.stocbio import stocbio
from biadam.solvers.ttsa import ttsa
from biadam.tasks import Quadratic, hyper_cleaning
from counting import Counting
from rows_double_loop import SUM, Geometric

# ------------------------------------------------------------------- against the NumPy methods

D, P, T = 3, 4, 50
ORACLE = reference.Quadratic()
START = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, -0.5, 0.3])


def outer(x: Any, y: Any, xi: Any) -> Any:
    return jnp.sum((y - xi["t"]) ** 2) / 2 + xi["a"] * jnp.sum((x - xi["r"]) ** 2) / 2


def inner(x: Any, y: Any, zeta: Any) -> Any:
    return y @ zeta["H"] @ y / 2 + x @ zeta["B"] @ y + zeta["c"] @ y


PROBLEM = Problem(outer, inner)


class Stream:
    """T samples of a noisy problem, as the library takes them and as the reference does."""

    def __init__(self, batches: int, seed: int = 0):
        draw = np.random.default_rng(seed)
        basis = np.linalg.qr(draw.normal(size=(P, P)))[0]
        mean = (basis * np.linspace(0.3, 1.0, P)) @ basis.T
        wobble = 0.02 * draw.normal(size=(T, batches, P, P))
        self.zeta = {
            "H": mean + wobble + np.swapaxes(wobble, 2, 3),
            "B": 0.3 * draw.normal(size=(D, P)) + 0.1 * draw.normal(size=(T, batches, D, P)),
            "c": draw.normal(size=P) + 0.3 * draw.normal(size=(T, batches, P)),
        }
        self.xi = {
            "t": draw.normal(size=(T, P)),
            "r": draw.normal(size=(T, D)),
            "a": 0.5 + 0.1 * draw.random(T),
        }
        self.keys = jr.split(jr.key(seed), T)

    def outer(self, t: int) -> dict[str, Any]:
        return {name: a[t] for name, a in self.xi.items()}

    def inner(self, t: int, i: int) -> dict[str, Any]:
        return {name: a[t, i] for name, a in self.zeta.items()}

    def entries(self, inner_steps: int, terms: int, length: int | None = None) -> list[Any]:
        """Entries of the reference: the inner steps' minibatches, then zeta^0, zeta^1, ..."""
        entries = []
        for t in range(T):
            rest = [self.inner(t, inner_steps + i) for i in range(terms + 1)]
            steps = [self.inner(t, i) for i in range(inner_steps)]
            entry = {"xi": self.outer(t), "inner": steps, "zeta0": rest[0], "zetas": rest[1:]}
            if length is not None:
                entry["k"] = int(jr.randint(self.keys[t], (), 0, length))
            entries.append({**entry, "zeta": steps[0]})
        return entries

    def run(self, solver: Any) -> list[Any]:
        """The points of all iterations, in one compiled loop."""
        assert solver.batches == self.zeta["c"].shape[1]

        @jax.jit
        def go(x: Any, y: Any, samples: Sample) -> Any:
            first = jax.tree.map(lambda a: a[0], samples)
            state, _ = solver.init(PROBLEM, x, y, first)
            follow = lambda state, sample: (solver.step(PROBLEM, state, sample)[0],) * 2
            return jax.lax.scan(follow, state, samples)[1].point

        x, y, s = go(*map(jnp.asarray, START), Sample(self.xi, self.zeta, self.keys))
        return [x, y] if s is None else [x, y, s]


def agree(found: list[Any], wanted: Any) -> None:
    """Both variables (and s) over all iterations, to round-off."""
    for one, other in zip(found, zip(*wanted, strict=True), strict=True):
        assert np.isfinite(one).all() and np.std(one) > 1e-2  # something happened
        np.testing.assert_allclose(one, np.array(other), rtol=1e-10, atol=1e-10)


STEPS = PowerDecay(0.3, 5.0, 0.6), PowerDecay(0.9, 2.0, 0.4)
POWERS = lambda t: 0.3 / (5 + t) ** 0.6, lambda t: 0.9 / (2 + t) ** 0.4


def test_ttsa_is_the_reference():
    stream = Stream(1 + 4)
    entries = stream.entries(1, 3, length=4)
    assert {e["k"] for e in entries} == {0, 1, 2, 3}
    wanted = reference.ttsa(
        ORACLE, *START, entries, alpha=POWERS[0], beta=POWERS[1], theta=0.7, K=4
    )
    agree(stream.run(ttsa(STEPS, hypergradient=NeumannRandom(4, 0.7))), wanted[1:])


def test_stocbio_is_the_reference():
    stream = Stream(3 + 4)
    wanted = reference.stocbio(
        ORACLE, *START, stream.entries(3, 3), alpha=POWERS[1], beta=POWERS[0], theta=0.7
    )
    solver = stocbio(STEPS, inner_steps=3, hypergradient=NeumannSum(3, 0.7))
    agree(stream.run(solver), wanted[1:])


@pytest.mark.parametrize("make", [bsa, alset])
def test_random_lengths_in_a_double_loop_are_the_reference(make):
    stream = Stream(3 + 4, seed=1)
    wanted = reference.stocbio(
        ORACLE,
        *START,
        stream.entries(3, 3, length=4),
        alpha=POWERS[1],
        beta=POWERS[0],
        theta=0.7,
        K=4,
        estimator="random",
    )
    solver = make(STEPS, inner_steps=3, hypergradient=NeumannRandom(4, 0.7))
    agree(stream.run(solver), wanted[1:])


def test_aid_fp_is_a_series_on_one_minibatch():
    stream = Stream(3 + 1)
    entries = stream.entries(3, 0)
    for entry in entries:
        entry["zetas"] = [entry["zeta0"]] * 3
    wanted = reference.stocbio(ORACLE, *START, entries, alpha=POWERS[1], beta=POWERS[0], theta=0.7)
    agree(stream.run(aid_fp(STEPS, inner_steps=3, hypergradient=FixedPoint(4, 0.7))), wanted[1:])


def by_hand(
    stream: Stream,
    inner_steps: int,
    solve: Callable[[Any, Any, Any, Any, int], Any],
    move: Callable[[Any, Any, int], Any],
    period: int = 1,
) -> Any:
    """Both loops in NumPy: ``solve(x, y, s, f_y, t)`` is s, ``move(x, h, t)`` the next x."""
    (x, y), s = START, np.zeros(P)
    for t in range(T):
        for i in range(inner_steps if t % period == 0 else 0):
            y = y - 0.4 * ORACLE.g_y(x, y, stream.inner(t, i))
        xi = stream.outer(t)
        s = solve(x, y, s, ORACLE.f_y(x, y, xi), t)
        zeta = stream.inner(t, inner_steps)
        x = move(x, ORACLE.f_x(x, y, xi) - ORACLE.cross(x, y, zeta) @ s, t)
        yield x, y, s


def test_aid_cg_is_the_exact_solution_on_its_minibatch():
    stream = Stream(2 + 1)
    solve = lambda x, y, s, f_y, t: np.linalg.solve(stream.zeta["H"][t, 2], f_y)
    wanted = by_hand(stream, 2, solve, lambda x, h, t: x - 0.05 * h)
    solver = aid_cg((0.05, 0.4), inner_steps=2, hypergradient=ConjugateGradient(8, 1e-14))
    agree(stream.run(solver), [(x, y) for x, y, _ in wanted])


def test_amigo_by_hand():
    stream = Stream(2 + 1 + 3)

    def solve(x, y, s, f_y, t):
        for n in range(3):
            s = s - 0.6 * (stream.zeta["H"][t, 3 + n] @ s - f_y)
        return s

    wanted = by_hand(stream, 2, solve, lambda x, h, t: x - 0.05 * h)
    solver = amigo((0.05, 0.4), inner_steps=2, hypergradient=Amortized(3, 0.6))
    agree(stream.run(solver), wanted)


def test_bo_rep_by_hand():
    """Y moves in iterations 1, 3, 5 ..; every step of x has the length that it is told."""
    stream = Stream(3 + 1 + 1)
    solve = lambda x, y, s, f_y, t: s - 0.6 * (stream.zeta["H"][t, 4] @ s - f_y)
    w = []

    def move(x, h, t):
        w.append(0.2 * h + 0.8 * w[-1] if w else h)
        return x - 0.05 * w[-1] / (np.linalg.norm(w[-1]) + 1e-8)

    wanted = by_hand(stream, 3, solve, move, period=2)
    solver = bo_rep((0.05, 0.4), rate=0.2, hypergradient=Amortized(1, 0.6))
    found = stream.run(solver)
    agree(found, wanted)
    lengths = np.linalg.norm(np.diff(found[0], axis=0), axis=1)
    np.testing.assert_allclose(lengths, 0.05, rtol=1e-6)
    assert [bool(np.any(d)) for d in np.diff(found[1], axis=0)][:4] == [False, True, False, True]


def test_adambo_is_adam_on_the_reference_hypergradient():
    """The running mean of weight `Unbiased` is the bias-corrected first moment of optax's Adam."""
    stream = Stream(1 + 1 + 3)
    entries = stream.entries(1, 3)
    adam = optax.adam(0.03, 0.8, 0.95, 1e-3)
    x, y = START
    with jax.numpy_dtype_promotion("standard"):  # which optax leans on
        memory, wanted = adam.init(jnp.asarray(x)), []
        for entry in entries:
            y = y - 0.4 * ORACLE.g_y(x, y, entry["zeta"])
            h = reference.hypergradient(ORACLE, x, y, entry, "sum", 0.7, None) + 0.1 * x
            change, memory = adam.update(jnp.asarray(h), memory)
            x = x + np.asarray(change)
            wanted.append((x, y))
    solver = adambo(
        (0.03, 0.4),
        hypergradient=NeumannSum(3, 0.7),
        rate=Unbiased(0.8),
        outer_metric=biadam.metrics.Adam(0.95, 1e-3, corrected=True),
        decay=0.1,
    )
    agree(stream.run(solver), wanted)


def test_reverse_is_the_gradient_through_the_loop():
    """Unrolled by hand and differentiated as a whole; the first minibatch is the spare one."""
    stream = Stream(1 + 4)
    x, y = map(jnp.asarray, START)
    wanted = []

    def end(x, y, t):
        for i in range(4):
            y = y - 0.4 * PROBLEM.inner_gradient(x, y, stream.inner(t, 1 + i))
        return outer(x, y, stream.outer(t)), y

    slope = jax.jit(jax.grad(end, has_aux=True), static_argnums=2)
    for t in range(3):
        w, new = slope(x, y, t)
        x, y = x - 0.05 * w, new
        wanted.append((x, y))
    found = stream.run(reverse((0.05, 0.4), inner_steps=4))
    for one, other in zip(found, zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(one[:3], np.array(other), rtol=1e-12)


# --------------------------------------------------------------------------- special to a method

NOISY = Quadratic((2, 3), condition=3.0, noise=0.3, seed=4)


def follow(solver: Any, state: Any, times: range, data: Any) -> tuple[Any, list[Any]]:
    """The states after each of some iterations, and what was told of them."""
    step = eqx.filter_jit(lambda s, sample: solver.step(NOISY.problem, s, sample))
    infos = []
    for t in times:
        state, info = step(state, data(jr.key(0), t, solver.batches))
        infos.append((state, info))
    return state, infos


def test_warm_up_moves_y_alone_and_leaves_no_trace():
    """Its outer part costs nothing, and what follows is a cold run from the y it found."""
    data = NOISY.minibatches(2)
    make = lambda warm: adambo(inner_steps=2, hypergradient=SUM, warm_up=warm)
    warm, cold = make(3), make(0)
    sample = data(jr.key(0), 0, warm.batches)
    state, _ = warm.init(NOISY.problem, NOISY.x0, NOISY.y0, sample)
    state, told = follow(warm, state, range(1, 4), data)
    for after, info in told:
        np.testing.assert_array_equal(after.point.x, NOISY.x0)
        assert tuple(map(int, info.calls)) == (0, 2, 0, 0)
    assert np.all(state.point.y != NOISY.y0)
    # With the samples of iterations 4.. and the schedules of a first step.
    other, _ = cold.init(NOISY.problem, NOISY.x0, state.point.y, sample)
    state, told = follow(warm, state, range(4, 8), data)
    other, _ = follow(cold, other, range(4, 8), data)
    assert tuple(map(int, told[0][1].calls)) == (1, 2, 3, 1)
    for one, another in zip(state.point[:2], other.point[:2], strict=True):
        np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("warm_up, pattern", [(0, [3, 0, 0, 3, 0, 0, 3]), (2, [3, 3, 3, 0, 0, 3])])
def test_a_period_counts_from_the_end_of_the_warm_up(warm_up, pattern):
    data = NOISY.minibatches(2)
    solver = bo_rep(inner_steps=3, period=3, warm_up=warm_up)
    sample = data(jr.key(0), 0, solver.batches)
    state, _ = solver.init(NOISY.problem, NOISY.x0, NOISY.y0, sample)
    _, told = follow(solver, state, range(1, 1 + len(pattern)), data)
    assert [int(info.calls.inner_gradient) for _, info in told] == pattern
    assert [int(info.calls.hessian_product) for _, info in told] == [0] * warm_up + [1] * (
        len(pattern) - warm_up
    )


def test_amortized_tells_the_residual_before_its_last_step():
    found = Amortized(2, 1.0)
    x, y, s = NOISY.x0, NOISY.y0, jnp.ones(3)
    sample = NOISY.full()(jr.key(0), 0, found.batches)
    f_y = jnp.asarray([1.0, 2.0, 3.0])
    solved = found.solve(NOISY.problem, biadam.Levels(x, y, s), sample, f_y)
    once = s - (NOISY.hessian @ s - f_y)
    gap = np.linalg.norm(NOISY.hessian @ once - f_y) / np.linalg.norm(f_y)
    np.testing.assert_allclose(float(solved.residual), gap, rtol=1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: bsa(inner_steps=0), "`inner_steps` must be a whole number of at least 1"),
        (lambda: reverse(inner_steps=3, truncation=4), "`Unrolled.truncation` must be at most"),
        (lambda: bo_rep(period=0), "`period` must be a whole number"),
        (lambda: adambo(warm_up=-1), "`warm_up` must be a whole number"),
        (lambda: adambo(decay=-0.1), "`decay` must be at least 0"),
        (lambda: adambo(rate=Unbiased(1.0)), "`Unbiased.decay` must be below 1"),
        (lambda: amigo(hypergradient=Amortized(0)), "`Amortized.steps` must be a whole number"),
        (lambda: newton_cg(tolerance=0.0), "`tolerance` must be above 0"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(Mistake, match=message):
        make()


# ------------------------------------------------------------------ the deterministic reference


def softmax() -> tuple[Problem, FullBatch, Any, Any]:
    """A small hyper-cleaning problem in double precision."""
    task = hyper_cleaning("digits", train=200, validation=200, noise=0.2)
    real = lambda a: a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a
    data, x, y = jax.tree.map(real, ((task.source.outer, task.source.inner), task.x0, task.y0))
    return task.problem, FullBatch(*data), x, y


def test_newton_cg_solves_both_equations_of_a_softmax_problem():
    problem, data, x, y = softmax()
    solver = newton_cg()
    scale = float(jnp.linalg.norm(problem.inner_gradient(x, y, data.inner)))
    result = biadam.run(problem, solver, data, x, y, steps=30, key=jr.key(0))
    x, y, _ = result.state.point
    assert float(problem.outer(x, y, data.outer)) < 0.55  # from log(10)
    assert float(jnp.linalg.norm(problem.inner_gradient(x, y, data.inner))) <= 1e-6 * scale
    wanted = biadam.hypergradient(problem, x, y, data.outer, data.inner, tolerance=1e-12)
    error = jnp.linalg.norm(result.state.direction - wanted) / jnp.linalg.norm(wanted)
    assert float(error) <= 1e-5
    assert result.info["residual"].max() <= 1e-6


def test_newton_cg_converges_where_a_plain_newton_step_does_not():
    problem, data, x, y = softmax()
    y = 30 * jr.normal(jr.key(1), y.shape)
    gradient = lambda y: problem.inner_gradient(x, y, data.inner)

    def plain(y):
        product = lambda u: problem.hessian_product(x, y, data.inner, u)
        return y - conjugate_gradient(product, gradient(y), steps=500, tolerance=1e-6).s

    far = jax.jit(lambda y: jax.lax.fori_loop(0, 20, lambda _, y: plain(y), y))(y)
    assert float(jnp.linalg.norm(gradient(far))) > 0.1 * float(jnp.linalg.norm(gradient(y)))
    solver = newton_cg()
    init = eqx.filter_jit(lambda y: solver.init(problem, x, y, data(jr.key(0), 0, 1)))
    state, info = init(y)
    assert float(state.gap) <= 1e-6
    assert not solver.remarks(problem, state)
    assert int(info.calls.inner_gradient) < 60


def test_newton_cg_counts_what_a_quadratic_takes():
    """On one inner variable a Newton step is exact: the counts have a closed form."""
    bed = Quadratic((2, 1), condition=1.0, seed=5)
    problem, data = Counting(bed.problem), bed.full()
    solver = newton_cg(optax.sgd(0.1), tolerance=1e-12)
    sample = data(jr.key(0), 0, 1)
    state, _ = solver.init(problem, bed.x0, bed.y0, sample)
    problem.log.counts()
    problem.log.notes.clear()
    step = eqx.filter_jit(lambda state: solver.step(problem, state, sample))
    for _ in range(3):
        state, info = step(state)
        # g_y at the start and after the one Newton step; a product each for the step, for the
        # residual that the warm start leaves, and for its correction.
        assert tuple(map(int, info.calls)) == (1, 2, 3, 1)
    told = {"outer_gradient": 3, "inner_gradient": 6, "hessian_product": 9, "cross_product": 3}
    assert problem.log.counts() == told


def test_newton_cg_counts_every_trial():
    """On one inner variable every Newton step costs a product, so that the halvings show."""

    def inner(x: Any, y: Any, batch: Any) -> Any:
        return jnp.sum(jnp.sqrt(1 + 100 * (y - x) ** 2)) / 10 + jnp.sum(y**2) / 100

    bed = Quadratic((1, 1), seed=5)
    problem = Counting(Problem(bed.outer, inner))
    solver = newton_cg()
    look = eqx.filter_jit(lambda y: solver.init(problem, bed.x0, y, bed.full()(jr.key(0), 0, 1)))
    state, info = look(jnp.full(1, 5.0))
    told = {kind: int(n) for kind, n in info.calls._asdict().items()}
    assert problem.log.counts() == told
    newton_steps = told["hessian_product"] - 2
    assert told["inner_gradient"] > 1 + newton_steps > 2
    assert abs(float(state.point.y[0])) < 1e-6


def test_newton_cg_says_when_it_gave_up():
    problem, data, x, y = softmax()
    solver = newton_cg(newton_steps=1)
    with pytest.warns(biadam.IdleWarning, match="the inner gradient was reduced to"):
        biadam.run(problem, solver, data, x, y, steps=1, key=jr.key(0))


def test_newton_cg_takes_no_more_products_than_it_is_told():
    """At each x the first residual, at most one product in either system, and another answer."""
    problem, data, x, y = NOISY.problem, NOISY.full(), NOISY.x0, NOISY.y0
    ends = []
    for solver in (newton_cg(), newton_cg(products=1)):
        state, info = solver.init(problem, x, y, data(jr.key(0), 0, 1))
        ends.append((state.point.s, info))
    (one, free), (other, bound) = ends
    exact = np.linalg.solve(NOISY.hessian, NOISY.solution(np.asarray(x)) - NOISY.target)
    np.testing.assert_allclose(one, exact, rtol=1e-4)
    assert np.abs(other - exact).max() > 1e-2
    # For each trial of an inner step a gradient, for each step a product; two for the system.
    assert bound.calls.hessian_product <= bound.calls.inner_gradient - 1 + 2
    assert free.calls.hessian_product > free.calls.inner_gradient - 1 + 2


def test_newton_cg_wants_all_the_data():
    sample = NOISY.full()(jr.key(0), 0, 1)._replace(whole=None)
    with pytest.raises(Mistake, match="needs all the data"):
        newton_cg().init(NOISY.problem, NOISY.x0, NOISY.y0, sample)


def test_newton_cg_follows_a_schedule_of_tolerances_and_keeps_the_optimisers_types():
    """With Adam, in single precision, inside a compiled loop."""
    bed = Quadratic((2, 3), condition=3.0, seed=1)
    single = lambda tree: jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float32) if np.issubdtype(a.dtype, np.floating) else a, tree
    )
    data = FullBatch(single(bed.outer_data), single(bed.inner_data))
    solver = newton_cg(tolerance=Geometric(0.1, 0.98))
    result = biadam.run(
        bed.problem, solver, data, single(bed.x0), single(bed.y0), steps=400, key=jr.key(0)
    )
    np.testing.assert_allclose(result.x, bed.optimum(), atol=2e-4)
    assert result.x.dtype == np.float32

"""A stage of the losses that does not see y: computed once, and the same as through all of it."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import biadam
from biadam import Levels, Problem, solvers
from biadam.data import FullBatch, Minibatches
from biadam.hypergradients import (
    ConjugateGradient,
    Exact,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
    Newton,
    PerSample,
    Steps,
    Unrolled,
)

KEY = jr.key(3)
D, P, WIDTH = 4, 3, 5


def stage(x, batch):
    """Features of each example; nothing else here takes a sine."""
    return jnp.sin(batch["a"] @ x["in"]) @ x["out"]


def outer(features, y, batch):
    return jnp.mean((features @ y - batch["b"]) ** 2)


def inner(features, y, batch):
    return jnp.mean(jnp.logaddexp(0, features @ y) - batch["b"] * (features @ y)) + 0.1 * y @ y


STAGED = Problem(outer, inner, stage=stage)
WHOLE = Problem(
    lambda x, y, batch: outer(stage(x, batch), y, batch),
    lambda x, y, batch: inner(stage(x, batch), y, batch),
)


def draw(seed, n):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(n, D)), "b": rng.normal(size=n)}


DATA = Minibatches(draw(0, 12), draw(1, 12), size=4)
X = {"in": 0.5 * jr.normal(jr.key(0), (D, WIDTH)), "out": 0.5 * jr.normal(jr.key(1), (WIDTH, P))}
Y = 0.3 * jr.normal(jr.key(2), (P,))

FIELDS = {
    "series": NeumannSum(3, 0.5),
    "random series": NeumannRandom(4, 0.5),
    "conjugate gradients": ConjugateGradient(3),
    "fixed point": FixedPoint(4, 0.5),
    "unrolled": Unrolled(4, 0.5),
    "truncated": Unrolled(4, 0.5, truncation=2),
    "linear system": LinearSystem(),
    "exact": Exact(),
    "per sample, steps": PerSample(NeumannSum(3, 0.5), Steps(4, 0.5)),
    "per sample, Newton": PerSample(Exact(), Newton(1e-10)),
    "per sample, unrolled": PerSample(Unrolled(4, 0.5), Steps(0)),
}


def same(one, other, rtol=1e-9):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("source", [DATA, FullBatch(DATA.outer, DATA.inner)], ids=["many", "one"])
@pytest.mark.parametrize("name", FIELDS)
def test_the_field_is_that_of_the_whole(name, source):
    field = FIELDS[name]
    point = Levels(X, Y, 0.1 + Y if name == "linear system" else None)
    sample = source(KEY, 0, field.batches)
    staged, whole = (
        jax.jit(lambda p=p: (lambda f: (f.value, f.partial, f.calls))(field(p, point, sample)))()
        for p in (STAGED, WHOLE)
    )
    same(staged, whole)


METHODS = {
    "biadam": {},
    "vr_biadam_tracked": {},
    "stocbio": {"inner_steps": 2, "hypergradient": NeumannSum(2, 0.5)},
    "reverse": {"inner_steps": 3},
    "fsla": {},
    "mstsa": {},
    "vrbo": {},
    "svrb": {},
    "f2sa": {},
    "pbgd_gradient": {},
    "newton_cg": {},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_moves_as_on_the_whole(name):
    solver = getattr(solvers, name)(**METHODS[name])

    def go(problem):
        state, _ = solver.init(problem, X, Y, DATA(KEY, 0, solver.batches))
        move = lambda t, s: solver.step(problem, s, DATA(KEY, t, solver.batches))[0]
        return jax.lax.fori_loop(1, 5, move, state).point

    same(jax.jit(lambda: go(STAGED))(), jax.jit(lambda: go(WHOLE))(), rtol=1e-8)


def sines(program, inside=False):
    """Which sines and cosines a program takes: forward and backward passes of the stage."""
    found = []
    for equation in program.eqns:
        name = equation.primitive.name
        if name in ("sin", "cos"):
            found.append((name, inside))
        within = inside or name in ("while", "scan")
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    found.extend(sines(part, within))
    return found


@pytest.mark.parametrize(
    ("solver", "points"),
    [
        (solvers.biadam(hypergradient=PerSample(NeumannSum(5, 0.4), Steps(16))), 1),
        (solvers.vr_biadam(hypergradient=PerSample(NeumannSum(5, 0.4), Steps(16))), 2),
        (solvers.biadam(hypergradient=PerSample(ConjugateGradient(9), Newton())), 1),
        (solvers.biadam(hypergradient=NeumannRandom(5)), 1),
        (solvers.stocbio(inner_steps=16), 1),
        (solvers.reverse(inner_steps=16), 1),
        (solvers.fsla_plain(), 1),
    ],
)
def test_the_stage_is_passed_once_for_each_point_and_minibatch(solver, points):
    """Forward and backward, and never inside the loops of inner steps and products."""
    sample = FullBatch(DATA.outer, DATA.inner)(KEY, 0, solver.batches)
    state, _ = solver.init(STAGED, X, Y, sample)
    step = lambda state: solver.step(STAGED, state, sample)[0]
    assert not any(inside for _, inside in sines(jax.make_jaxpr(step)(state).jaxpr))
    # Counted after the compiler has dropped the signals that nobody listens to.
    live = jax.jit(step).lower(state).compile().as_text()
    assert live.count(" sine(") == 2 * points  # on the outer and on the inner minibatch
    assert live.count(" cosine(") == 2 * points


def test_per_sample_starts_where_the_user_says_and_stays_there():
    solver = solvers.biadam(hypergradient=PerSample(Exact(), Newton(1e-12)))
    result = biadam.run(STAGED, solver, DATA, X, Y, steps=5, key=KEY)
    np.testing.assert_allclose(result.y, Y, rtol=1e-12)
    assert result.oracle_calls["outer_gradient"] == 6


def test_per_sample_is_the_gradient_of_the_task():
    """The slope of f(x, y*(x)), the inner problem solved for the sample's own minibatch."""
    source = FullBatch(DATA.outer, DATA.inner)
    sample = source(KEY, 0, 2)

    def value(x):
        y = Newton(1e-13)(WHOLE, x, Y, sample.batch(0)).y
        return WHOLE.outer(x, y, sample.outer)

    slope = PerSample(Exact(), Newton(1e-13))(STAGED, Levels(X, Y), sample).value.x
    direction = jax.tree.map(jnp.ones_like, X)
    ahead, back = (
        value(jax.tree.map(lambda a, d, h=h: a + h * d, X, direction)) for h in (1e-5, -1e-5)
    )
    along = sum(float(jnp.sum(a)) for a in jax.tree.leaves(slope))
    np.testing.assert_allclose(along, (ahead - back) / 2e-5, rtol=1e-7)


@pytest.mark.parametrize("name", ["stocbio", "aid_cg", "aid_fp", "reverse"])
def test_a_cold_start_forgets_the_inner_variable_and_returns_the_last(name):
    """The second step starts at the user's y again, and y is where its inner steps ended."""
    cold, warm = (
        getattr(solvers, name)((0.1, 0.5), inner_steps=4, **given)
        for given in ({"warm_start": False}, {})
    )

    @jax.jit
    def second(solver_state, x, y):
        """The step on the second sample: of a state, and of the same x at the user's y."""
        go = lambda state: cold.step(WHOLE, state, DATA(KEY, 2, cold.batches))[0].point
        fresh, _ = cold.init(WHOLE, x, y, DATA(KEY, 0, cold.batches))
        return go(solver_state), go(fresh)

    first = jax.jit(
        lambda solver: solver.step(
            WHOLE,
            solver.init(WHOLE, X, Y, DATA(KEY, 0, solver.batches))[0],
            DATA(KEY, 1, solver.batches),
        )[0]
    )
    one, other = first(cold), first(warm)
    same(one.point, other.point)  # the first inner loop starts at the user's y in any case
    assert other.start is None
    assert np.abs(one.point.y - Y).max() > 1e-3
    after, again = second(one, one.point.x, Y)
    same(after, again)
    assert np.abs(after.y - Y).max() > 1e-3


def test_losses_with_convolutions_are_stepped_from_outside():
    image = {"a": np.full((3, 1, 5, 5), 0.01), "b": np.zeros(3)}
    filters = jnp.ones((1, 1, 2, 2))
    convolve = lambda x, batch: jnp.sum(
        jax.lax.conv(batch["a"], x, (1, 1), "VALID"), axis=(1, 2, 3)
    )
    flat = lambda z, y, batch: jnp.mean((z * y - batch["b"]) ** 2) + jnp.sum(y**2)
    problem = Problem(flat, flat, stage=convolve)
    sample = FullBatch(image, image)(KEY, 0, 1)
    assert problem.convolves(filters, jnp.ones(()), sample)
    assert not STAGED.convolves(X, Y, DATA(KEY, 0, 1))
    data, start = FullBatch(image, image), (filters, jnp.ones(()))
    solver = solvers.soba((1e-5, 1e-3))
    chosen, loop = (
        biadam.run(problem, solver, data, *start, steps=3, key=KEY, compiled_loop=compiled)
        for compiled in (None, True)
    )
    np.testing.assert_allclose(chosen.x, loop.x, rtol=1e-12)

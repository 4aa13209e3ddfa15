"""What every method owes its users, whatever it computes."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
from biadam import AbstractSolver, Calls, Info, Problem, solvers, tree
from biadam.hypergradients import NeumannRandom
from biadam.sets import Box, Free
from biadam.solvers import METHODS
from biadam.tasks import Quadratic
from counting import Counting
from matrix import EVERY, ROWS

BED = Quadratic((2, 3), condition=3.0, noise=0.2, examples=8, seed=9)
DATA = BED.minibatches(2)
KEY = jax.random.key(11)
BOX = Box(-0.05, 0.05)


def source(name):
    """The data of a row: minibatches, unless the method needs more of its source."""
    return EVERY[name].data(BED) if EVERY[name].data else DATA


def solver_of(name):
    return tree.with_arrays(EVERY[name].solver(BED))


class Program(NamedTuple):
    """The two compiled functions of a method, and how often the second was traced."""

    init: Any
    step: Any
    traces: list


@functools.cache
def program(name, home=(Free(), Free())):
    """Compiled once for all tests of a method; the problem counts its oracle calls."""
    problem = Counting(Problem(BED.outer, BED.inner, *home))
    data, batches = source(name), solver_of(name).batches
    traces = []

    @eqx.filter_jit
    def init(solver):
        return solver.init(problem, BED.x0, BED.y0, data(KEY, 0, batches))

    @eqx.filter_jit
    def step(solver, state, t):
        traces.append(t)
        return solver.step(problem, state, data(KEY, t, batches))

    return Program(
        init, lambda solver, state, t: step(solver, state, jnp.asarray(t)), traces
    ), problem.log


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def flat(state):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(state.point)])


@pytest.mark.parametrize("name", EVERY)
def test_types_one_trace_and_restart(name):
    """The state keeps its types, one trace serves all steps, a saved state goes on bit for bit."""
    solver = solver_of(name)
    assert isinstance(solver, AbstractSolver)
    (init, step, traces), _ = program(name)
    state, info = init(solver)
    assert isinstance(info, Info)
    kinds = lambda s: [(a.shape, a.dtype) for a in leaves(s)]
    saved = None
    for t in range(1, 7):
        new, info = step(solver, state, t)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert kinds(new) == kinds(state)
        assert all(n.dtype == jnp.int32 for n in info.calls)
        state = new
        if t == 3:
            saved = jax.tree.map(np.array, state)
    assert len(traces) == 1
    again = jax.tree.map(jnp.asarray, saved)
    for t in range(4, 7):
        again, _ = step(solver, again, t)
    for one, other in zip(leaves(state), leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_of_seeds_equals_a_loop(name):
    """Seeds that differ, but for the method that looks at all the data in any case."""
    solver = solver_of(name)

    def go(key):
        data = source(name)
        state, _ = solver.init(BED.problem, BED.x0, BED.y0, data(key, 0, solver.batches))
        body = lambda t, s: solver.step(BED.problem, s, data(key, t, solver.batches))[0]
        return jax.lax.fori_loop(1, 9, body, state).point

    keys = jax.random.split(KEY, 3)
    together = jax.jit(jax.vmap(go))(keys)
    one = jax.jit(go)
    for i in range(3):
        for a, b in zip(leaves(together), leaves(one(keys[i])), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-9, atol=1e-12)
    assert (np.ptp(together.y, axis=0).max() > 1e-6) == (name != "newton_cg")


def perturbed(solver):
    """The solver with each of its numbers changed in turn."""
    numbers, rest = eqx.partition(solver, eqx.is_inexact_array)
    values, structure = jax.tree.flatten(numbers)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(numbers)]
    for i, path in enumerate(paths):
        changed = [0.9 * v + 0.013 if j == i else v for j, v in enumerate(values)]
        yield path, eqx.combine(jax.tree.unflatten(structure, changed), rest)


@pytest.mark.parametrize("name", EVERY)
def test_every_number_changes_the_trajectory(name):
    """No dead knobs: a number that is ignored fails here."""
    solver = solver_of(name)
    unused = EVERY[name].inert
    (init, step, traces), _ = program(name)

    def trajectory(of):
        state, _ = init(of)
        points = []
        for t in range(1, 8):
            state, _ = step(of, state, t)
            points.append(flat(state))
        return np.array(points)

    base = trajectory(solver)
    seen = set()
    for path, changed in perturbed(solver):
        seen.add(path)
        moved = not np.array_equal(base, trajectory(changed))
        assert moved != (path in unused), f"{path} {'moves' if moved else 'changes nothing'}"
    assert unused <= seen
    assert len(traces) == 1  # and none of them recompiles


@pytest.mark.parametrize("name", EVERY)
def test_oracle_calls(name):
    """Counted by the problem itself, told by the method, and those of the table: all three."""
    row, solver = EVERY[name], solver_of(name)
    (init, step, _), log = program(name)
    state, _ = init(solver)
    told = Calls(0, 0, 0, 0)
    log.counts()
    log.notes.clear()
    steps = row.period * 2
    for t in range(1, steps + 1):
        state, info = step(solver, state, t)
        told = told.plus(Calls(*(int(n) for n in info.calls)))
    size = jax.tree.leaves(source(name)(KEY, 0, 1).outer)[0].shape[0]
    assert log.counts(size) == {k: n for k, n in told._asdict().items() if n}
    assert tuple(n / steps for n in told) == tuple(row.calls)


LENGTH, DRAWS = 5, 400  # K, and how many are drawn
LOOKS = {
    "alset": 1, "biadam": 1, "bsa": 1, "mstsa": 2, "smb": 1, "sustain": 2, "ttsa": 1, "vr_biadam": 2
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_a_random_length_costs_half_the_longest(name):
    """(K - 1) / 2 products on average for each look, both looks of a step with one length.

    Counted by the problem. The tolerance is four standard errors of the mean of a uniform length.
    """
    problem = Counting(BED.problem)
    log = problem.log
    solver = getattr(solvers, name)(hypergradient=NeumannRandom(LENGTH, 0.5))

    @jax.jit
    def go():
        state, _ = solver.init(problem, BED.x0, BED.y0, DATA(KEY, 0, solver.batches))
        step = lambda t, s: solver.step(problem, s, DATA(KEY, t, solver.batches))[0]
        return jax.lax.fori_loop(1, DRAWS + 1, step, state)

    jax.block_until_ready(go())
    calls = log.counts()
    lengths = calls["hessian_product"] / calls["cross_product"]
    assert lengths == pytest.approx((LENGTH - 1) / 2, abs=4 * (2 / DRAWS) ** 0.5)
    assert calls["cross_product"] / DRAWS == pytest.approx(LOOKS[name], abs=2 / DRAWS)


@pytest.mark.parametrize("name", EVERY)
def test_iterates_stay_feasible(name):
    """Where a method takes constraints, no iterate leaves them; where not, it says so."""
    takes_x, takes_y = METHODS[name.split()[0]].sets
    solver, sample = solver_of(name), source(name)(KEY, 0, solver_of(name).batches)
    for takes, home in ((takes_x, (BOX, Free())), (takes_y, (Free(), BOX))):
        if not takes:
            with pytest.raises(biadam.Mistake, match="takes no"):
                solver.init(Problem(BED.outer, BED.inner, *home), BED.x0, BED.y0, sample)
    if not (takes_x or takes_y):
        return
    home = (BOX if takes_x else Free(), BOX if takes_y else Free())
    (init, step, _), _ = program(name, home)
    state, _ = init(solver)
    touched = False
    for t in range(1, 25):
        state, _ = step(solver, state, t)
        for where, z in zip(home, (state.point.x, state.point.y), strict=True):
            if where is BOX:
                far = np.abs(np.asarray(z)).max()
                assert far <= 0.05 * (1 + 1e-12)
                touched = touched or far > 0.0499
    assert touched  # else nothing was tested


@pytest.mark.parametrize("name", EVERY)
def test_single_precision_and_pytrees(name):
    """Variables keep their type and their structure, and nothing is promoted on the way."""
    solver = solver_of(name)
    join = lambda tree: jnp.concatenate([tree["a"], tree["b"][0]])
    cast = lambda data: jax.tree.map(
        lambda a: a.astype(np.float32) if a.dtype == np.float64 else a, data
    )
    problem = Problem(
        lambda x, y, b: BED.outer(join(x), join(y), b),
        lambda x, y, b: BED.inner(join(x), join(y), b),
    )
    x = {"a": jnp.zeros(1, jnp.float32), "b": (jnp.zeros(1, jnp.float32),)}
    y = {"a": jnp.zeros(1, jnp.float32), "b": (jnp.zeros(2, jnp.float32),)}
    sample = source(name)(KEY, 0, solver.batches)
    sample = sample._replace(
        outer=cast(sample.outer), inner=cast(sample.inner), whole=cast(sample.whole)
    )
    state, _ = eqx.filter_jit(solver.init)(problem, x, y, sample)
    new, _ = eqx.filter_jit(solver.step)(problem, state, sample)
    assert jax.tree.structure(new.point.x) == jax.tree.structure(x)
    assert all(a.dtype == np.float32 for a in leaves(new.point))
    assert all(np.isfinite(a).all() for a in leaves(new.point))


def test_every_method_is_in_the_table():
    assert sorted(METHODS) == sorted(solvers.__all__)
    assert sorted(ROWS) == sorted(solvers.__all__)

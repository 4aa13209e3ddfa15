r"""With noise, every method stays as near to its limit as linear theory says.

Around the point of rest a small deviation of one example moves all later iterates in proportion.
Minibatches are drawn independently, so that the mean square distance n steps after the rest is

.. math:: E |z_n - z_*|^2 = \sum_{i} \frac{1}{b_i} \sum_{k=1}^{n} E_e |r_k(i, e)|^2,

with :math:`r_k(i, e)` the distance k steps after the i-th minibatch of one step was the example e
alone, and all else the mean. The right side is the second implementation's (`reference.py`), on the
examples of the test bed as they stand, and shares no line with the library; the left side is that
of the library over seeds. Samples that are mixed up, reused or thrown away miss it.

The noise is small, so that what is of higher order is below one hundredth; matrices have a floor of
1, which is then all there is of them. The remaining tolerance is four and a half standard errors
of a mean over the seeds, were all the noise in one direction.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest

import reference
from biadam import AbstractSolver, solvers, tree
from biadam.double_loop import Amortized
from biadam.hypergradients import (
    ConjugateGradient,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
)
from biadam.metrics import Adam, Norm, momentum
from biadam.schedules import Constant
from biadam.solvers.stable import Stable
from biadam.solvers.svrb import Svrb
from biadam.tasks import Quadratic
from shared_samples import xi_of, zeta_of

LEFT_OUT = {
    "d_tfbo": "its steps shrink with all that was seen, so that it never comes to rest",
    "newton_cg": "it looks at all the data, and there is no noise",
    "s_tfbo": "its steps shrink with all that was seen, so that it never comes to rest",
    "saba": "its tables hold every example, and the noise vanishes",
    "srba": "it looks at all the data, and the noise vanishes in between",
    "vrbo": "it looks at all the data, and the noise vanishes in between",
}

SIZE = 2
BED = Quadratic((2, 3), condition=3.0, noise=0.005, examples=8, seed=12)
QUIET, STEPS, SEEDS = 300, 60, 4000

Form = Callable[[Any, Sequence[Any]], reference.Entry]


class Theory(NamedTuple):
    """A method with constant numbers, and what predicts it."""

    solver: AbstractSolver
    second: Callable[..., reference.Iterates]
    form: Form  # the second implementation's entry, of xi and the inner minibatches
    numbers: dict[str, Any]
    early: bool = False  # a step follows the sample of the step before
    unused: tuple[int, ...] = ()  # inner minibatches that the method does not look at


def neumann(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"xi": xi, "zeta": zeta[0], "zeta0": zeta[1], "zetas": zeta[2:]}


def pair(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"xi": xi, "zeta": zeta[0]}


def matrices(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"xi": xi, "zeta": zeta[0], "phi": zeta[1]}


def in_turn(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"xi1": xi, "xi2": xi, "zeta1": zeta[0], "zeta2": zeta[1], "zeta3": zeta[2]}


def double(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"inner": zeta[:2], "xi": xi, "zeta0": zeta[2], "zetas": zeta[3:]}


def fixed_point(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"inner": zeta[:2], "xi": xi, "zeta0": zeta[2], "zetas": [zeta[2]] * 2}


def unrolled(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"inner": zeta[1:], "xi": xi}


def gap(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"inner": zeta[:-1], "zeta": zeta[-1], "xi": xi}


def slope(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
    return {"zeta0": zeta[0], "zeta": zeta[1], "xi": xi}


def penalty(other: int) -> Form:
    """Two inner steps, whose minibatches for z come so many places after those for y."""

    def form(xi: Any, zeta: Sequence[Any]) -> reference.Entry:
        both = lambda i: {"xi": xi, "zeta_y": zeta[i], "zeta_z": zeta[i + other]}
        return {"inner": [both(0), both(1)], **both(2)}

    return form


SUM = NeumannSum(2, 0.7)
SYSTEM = LinearSystem(0.5)
STEP, HALF, SLOW = (0.1, 0.5), (0.05, 0.5), (0.02, 0.5)
PLAIN = {"mixing": 1.0, "rates": Constant(0.2, 0.2)}
FLOOR = {"outer_metric": Adam(floor=1.0), "inner_metric": Norm(floor=1.0)}
INSIDE = dict.fromkeys(FLOOR, Adam(floor=1.0, signal=momentum, inside=True))
LENGTH = {"outer_metric": Norm(0.0, 1.0, signal=momentum)}
TRACKED = {"hypergradient": SYSTEM, **PLAIN, **FLOOR}

PRINTED = {
    "gamma": 0.1, "lam": 0.5, "tau": 0.99, "rho": 1.0, "k": np.inf, "m": 1.0, "c1": 0.2, "c2": 0.2,
    "theta": 0.7, "estimator": "sum",
}  # fmt: skip
AUTHORS = {"gamma": 0.1, "lam": 0.5, "momentum": 0.8, "theta": 0.7, "rho": 1.0}
SYSTEMS = {"alpha": 0.02, "beta": 0.5, "rho": 0.5, "weight": 0.2}
AVERAGED = {"alpha": 0.02, "beta": 0.5, "gamma": 0.5, "theta": 0.2, "simultaneous": True}
TURNS = {"alpha": 0.02, "beta": 0.5, "rho": 0.5}
ALTERNATING = {"alpha": 0.1, "beta": 0.5, "theta": 0.7, "estimator": "sum"}
OUTSIDE = {"alpha": 0.1, "beta": 0.5, "weight": 0.2}
SERIES = {"alpha": 0.5, "beta": 0.1, "theta": 0.7}  # alpha is the step on y here

THEORIES: dict[str, Theory] = {
    "adambo": Theory(
        solvers.adambo(
            STEP, inner_steps=2, hypergradient=SUM, rate=0.2, outer_metric=Adam(floor=1.0)
        ),
        reference.double_loop, double, {**OUTSIDE, "solve": reference.series(0.7)},
    ),
    "aid_cg": Theory(
        solvers.aid_cg(STEP, inner_steps=2, hypergradient=ConjugateGradient(8, 1e-14)),
        reference.double_loop, double, {**OUTSIDE, "solve": reference.exact, "weight": 1.0},
    ),
    "aid_fp": Theory(
        solvers.aid_fp(STEP, inner_steps=2, hypergradient=FixedPoint(3, 0.7)),
        reference.stocbio, fixed_point, SERIES,
    ),
    "alset": Theory(
        solvers.alset(STEP, inner_steps=2, hypergradient=SUM), reference.stocbio, double, SERIES
    ),
    "amigo": Theory(
        solvers.amigo(SLOW, inner_steps=2, hypergradient=Amortized(2, 0.5)),
        reference.double_loop, double,
        {"alpha": 0.02, "beta": 0.5, "solve": reference.amortized(0.5)},
    ),
    "biadam": Theory(
        solvers.biadam(HALF, hypergradient=SUM, **PLAIN, **FLOOR),
        reference.biadam, neumann, {**PRINTED, "gamma": 0.05}, early=True,
    ),
    "biadam_authors": Theory(
        solvers.biadam_authors(HALF, hypergradient=SUM, **PLAIN, **INSIDE),
        reference.authors, neumann, {**AUTHORS, "gamma": 0.05, "variance_reduced": False},
        early=True,
    ),
    "biadam_tracked": Theory(
        solvers.biadam_tracked(SLOW, **TRACKED),
        reference.tracked, pair, {**SYSTEMS, "variance_reduced": False}, early=True,
    ),
    "bo_rep": Theory(
        solvers.bo_rep(
            SLOW, inner_steps=2, period=1, hypergradient=Amortized(2, 0.5), rate=0.2, **LENGTH
        ),
        reference.double_loop, double,
        {**OUTSIDE, "alpha": 0.02, "solve": reference.amortized(0.5)},
    ),
    "bome": Theory(  # with a smaller guard the noise bends the multiplier, and no theory is linear
        solvers.bome((0.05, 0.05), inner_steps=2, solution_step=0.5, guard=0.1),
        reference.bome, gap, {"a_x": 0.05, "a_y": 0.05, "a_inner": 0.5, "eta": 0.5, "eps": 0.1},
    ),
    "bsa": Theory(
        solvers.bsa(STEP, inner_steps=2, hypergradient=SUM), reference.stocbio, double, SERIES
    ),
    "f2ba": Theory(
        solvers.f2ba((0.1, 0.4), penalty=7.0, inner_steps=2),
        reference.f2ba, penalty(0), {"alpha": 0.1, "beta": 0.4, "lam": 7.0},
    ),
    "f2sa": Theory(
        solvers.f2sa((0.02, 0.4), penalty=10.0, inner_steps=2, ratio=0.5),
        reference.f2sa, penalty(3),
        {"alpha": 0.02, "gamma": 0.4, "ratio": 1.0, "lam": 10.0, "delta": 0.0},
    ),
    "fsla": Theory(
        solvers.fsla(SLOW, system_step=0.5, rate=0.2),
        reference.fsla, in_turn, {**TURNS, "eta": 0.2, "momentum": "storm"},
    ),
    "fsla_plain": Theory(
        solvers.fsla_plain(SLOW, system_step=0.5),
        reference.fsla, in_turn, {**TURNS, "eta": 1.0, "momentum": "none"},
    ),
    "ma_soba": Theory(
        solvers.ma_soba(SLOW, hypergradient=SYSTEM, mixing=1.0, rates=Constant(outer=0.2)),
        reference.ma_soba, pair, AVERAGED, early=True,
    ),
    "mrbo": Theory(
        solvers.mrbo(STEP, hypergradient=SUM, **PLAIN),
        reference.mrbo, neumann,
        {"gamma": 0.1, "lam": 0.5, "d": 1e3, "m": 1e9, "c1": 0.2, "c2": 0.2, "theta": 0.7},
        early=True,
    ),
    "mstsa": Theory(
        solvers.mstsa(STEP, rate=0.2, hypergradient=SUM),
        reference.mstsa, neumann, {**ALTERNATING, "c": 0.2},
    ),
    "pbgd_gradient": Theory(
        solvers.pbgd_gradient(STEP, penalty=7.0),
        reference.pbgd_gradient, slope, {"alpha": 0.1, "beta": 0.5, "lam": 7.0},
    ),
    "pbgd_value": Theory(
        solvers.pbgd_value(STEP, penalty=7.0, inner_steps=2, solution_step=0.4),
        reference.pbgd_value, gap, {"alpha": 0.1, "beta": 0.5, "lam": 7.0, "theta": 0.4},
    ),
    "reverse": Theory(
        solvers.reverse(STEP, inner_steps=3),
        reference.reverse, unrolled, {"alpha": 0.1, "beta": 0.5}, unused=(0,),
    ),
    "slip": Theory(
        solvers.slip(
            SLOW, warm_steps=0, hypergradient=SYSTEM, rates=Constant(outer=0.2), **LENGTH
        ),
        reference.ma_soba, pair, AVERAGED, early=True,
    ),
    "smb": Theory(
        solvers.smb(HALF, hypergradient=SUM, **PLAIN),
        reference.smb, neumann,
        {"eta": 0.05, "lam": 0.5, "beta": 0.2, "alpha": 0.2, "inner": "ema", "theta": 0.7,
         "estimator": "sum"},
        early=True,
    ),
    "soba": Theory(
        solvers.soba(SLOW, hypergradient=SYSTEM, mixing=1.0),
        reference.soba, pair, {"gamma": 0.02, "rho": 0.5}, early=True,
    ),
    "stable": Theory(
        solvers.stable(STEP, rate=0.2),
        reference.stable, matrices,
        {"alpha": 0.1, "beta": 0.5, "tau": 0.2, "C_gxy": 10.0, "mu": 0.01},
    ),
    "stocbio": Theory(
        solvers.stocbio(STEP, inner_steps=2, hypergradient=SUM), reference.stocbio, double, SERIES
    ),
    "sustain": Theory(
        solvers.sustain(STEP, hypergradient=SUM, **PLAIN),
        reference.sustain, neumann, {**ALTERNATING, "a_f": 0.2, "a_g": 0.2}, early=True,
    ),
    "svrb": Theory(
        solvers.svrb(STEP, rate=0.2),
        reference.svrb, pair, {"gamma": 0.1, "lam": 0.5, "a": 0.2, "mu": 0.01, "L_g": 10.0},
    ),
    "ttsa": Theory(
        solvers.ttsa(STEP, hypergradient=SUM), reference.ttsa, neumann, ALTERNATING
    ),
    "vr_biadam": Theory(
        solvers.vr_biadam(STEP, hypergradient=SUM, **PLAIN, **FLOOR),
        reference.vr_biadam, neumann, PRINTED, early=True,
    ),
    "vr_biadam_authors": Theory(
        solvers.vr_biadam_authors(STEP, hypergradient=SUM, **PLAIN, **INSIDE),
        reference.authors, neumann, {**AUTHORS, "variance_reduced": True}, early=True,
    ),
    "vr_biadam_tracked": Theory(
        solvers.vr_biadam_tracked(SLOW, **TRACKED),
        reference.tracked, pair, {**SYSTEMS, "variance_reduced": True}, early=True,
    ),
}  # fmt: skip


def test_every_method_has_a_theory_or_a_reason():
    assert sorted([*THEORIES, *LEFT_OUT]) == sorted(solvers.__all__)


def predicted(theory: Theory, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The mean square distances of x and y from rest, by the second implementation."""
    batches = theory.solver.batches
    rows = lambda data, at: jax.tree.map(lambda a: np.asarray(a)[at], data)
    mean = (xi_of(BED.outer_data), *[zeta_of(BED.inner_data)] * batches)

    def distances(place: int, example: int) -> np.ndarray:
        """Squared, of x and y, summed over the steps; one example alone in the minibatch there."""
        at = slice(example, example + 1)
        one = zeta_of(rows(BED.inner_data, at)) if place else xi_of(rows(BED.outer_data, at))
        struck = [one if i == place else other for i, other in enumerate(mean)]
        entry, calm = (theory.form(parts[0], list(parts[1:])) for parts in (struck, mean))
        entries = [calm] * QUIET + [entry] + [calm] * (STEPS - 1)
        path = theory.second(reference.Quadratic(), x, y, entries, **theory.numbers)[QUIET:]
        return np.array([sum(((at[z] - path[0][z]) ** 2).sum() for at in path) for z in (0, 1)])

    total = np.zeros(2)
    for place in range(1 + batches):
        felt = np.mean([distances(place, e) for e in range(8)], axis=0)
        assert (felt.sum() > 1e-14) == (place - 1 not in theory.unused), f"minibatch {place - 1}"
        total += felt / SIZE
    return total[0], total[1]


# jaxlib's pool of threads can wait for itself for ever in thousands of small solutions at once.
DENSE = (Stable, Svrb)


def measured(
    theory: Theory, bed: Quadratic = BED, noisy_solver: AbstractSolver | None = None
) -> tuple[Any, np.ndarray, np.ndarray]:
    """The point of rest, and the ends of so many seeds of the noisy solver that start there."""
    solver, key = tree.with_arrays(theory.solver), jax.random.key(0)
    noisy_solver = solver if noisy_solver is None else tree.with_arrays(noisy_solver)
    full, noisy = bed.full(), bed.minibatches(SIZE)

    @eqx.filter_jit
    def settle(solver, x, y, steps):
        state, _ = solver.init(bed.problem, x, y, full(key, 0, solver.batches))
        step = lambda _, s: solver.step(bed.problem, s, full(key, 1, solver.batches))[0]
        return jax.lax.fori_loop(0, steps, step, state)

    rest = settle(solver, bed.x0, bed.y0, 4000)
    later = settle(solver, bed.x0, bed.y0, 4100)
    assert np.abs(later.point.x - rest.point.x).max() < 1e-5  # or it is no rest
    start = settle(solver, rest.point.x, rest.point.y, QUIET)  # as the theory starts

    @eqx.filter_jit
    def go(solver, start, keys):
        def one(key):
            body = lambda t, s: solver.step(bed.problem, s, noisy(key, t, solver.batches))[0]
            return jax.lax.fori_loop(0, STEPS + theory.early, body, start).point[:2]

        if isinstance(solver, DENSE):
            return jax.lax.map(one, keys)
        return jax.vmap(one)(keys)

    x, y = go(noisy_solver, start, jax.random.split(jax.random.key(1), SEEDS))
    return rest.point, np.asarray(x), np.asarray(y)


@pytest.mark.parametrize("name", THEORIES)
def test_mean_square_distance_is_that_of_linear_theory(name):
    theory = THEORIES[name]
    rest, *ends = measured(theory)
    expected = predicted(theory, np.asarray(rest.x), np.asarray(rest.y))
    for end, at, wanted in zip(ends, rest[:2], expected, strict=True):
        distance = ((end - np.asarray(at)) ** 2).sum(1).mean()
        assert distance == pytest.approx(wanted, rel=0.1)


def near_its_target() -> Quadratic:
    """A bed with a small f_y at rest: the noise of a random length is in proportion to it."""
    bed = Quadratic((2, 3), condition=3.0, noise=0.005, examples=8, seed=12)
    move = bed.solution(bed.centre) + 0.05 - bed.target
    bed.target = bed.target + move
    bed.outer_data["target"] = bed.outer_data["target"] + move
    return bed


NEAR = near_its_target()
RANDOM = NeumannRandom(SUM.terms + 1, SUM.step_size)


def predicted_with_lengths(
    theory: Theory, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean square distances of (x, y) by all noise, and by that of the length alone.

    The length is drawn independently of all minibatches, and decides how those of its step act.
    """
    batches = theory.solver.batches
    mean = (xi_of(NEAR.outer_data), *[zeta_of(NEAR.inner_data)] * batches)
    numbers = {**theory.numbers, "estimator": "random", "K": RANDOM.length}

    def path(parts: Sequence[Any], k: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """From rest; the first step has these parts and this length, all others the means."""
        calm = {**theory.form(mean[0], mean[1:]), "k": None}
        entries = [calm] * QUIET + [{**theory.form(parts[0], parts[1:]), "k": k}]
        entries += [calm] * (STEPS - 1)
        return theory.second(reference.Quadratic(), x, y, entries, **numbers)[QUIET:]

    def apart(one: Sequence[Any], other: Sequence[Any]) -> np.ndarray:
        return np.array(
            [
                sum(((a[z] - b[z]) ** 2).sum() for a, b in zip(one, other, strict=True))
                for z in (0, 1)
            ]
        )

    alone, all_noise, rest = np.zeros(2), np.zeros(2), path(mean, None)
    for k in range(RANDOM.length):
        drawn = path(mean, k)
        alone += apart(drawn, rest) / RANDOM.length
        for place in range(1 + batches):
            data, read = (NEAR.inner_data, zeta_of) if place else (NEAR.outer_data, xi_of)
            for e in range(8):
                one = read(jax.tree.map(lambda a, e=e: np.asarray(a)[e : e + 1], data))
                struck = path([one if i == place else other for i, other in enumerate(mean)], k)
                all_noise += apart(struck, drawn) / (8 * SIZE * RANDOM.length)
    return all_noise + alone, alone


@pytest.mark.parametrize("name", ["biadam", "smb", "ttsa", "vr_biadam"])
def test_a_random_length_is_one_more_independent_noise(name):
    """Both noises of one order in x, so that neither hides the other."""
    theory = THEORIES[name]
    noisy = eqx.tree_at(lambda solver: solver.hypergradient, theory.solver, RANDOM)
    rest, *ends = measured(theory, NEAR, noisy)
    expected, alone = predicted_with_lengths(theory, np.asarray(rest.x), np.asarray(rest.y))
    assert 0.2 < alone[0] / expected[0] < 0.8
    for end, at, wanted in zip(ends, rest[:2], expected, strict=True):
        distance = ((end - np.asarray(at)) ** 2).sum(1).mean()
        assert distance == pytest.approx(wanted, rel=0.1)

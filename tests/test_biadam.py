"""BiAdam and VR-BiAdam as printed: the second implementation, the theory's schedules, their kin."""

import jax.numpy as jnp
import numpy as np
import pytest

import reference
from biadam import Problem, solvers
from biadam.hypergradients import NeumannRandom, NeumannSum
from biadam.metrics import Adam, Identity, Norm
from biadam.schedules import Constant, Coupled, PowerDecay
from biadam.sets import Box, Free
from shared_samples import BED, Shared, agree, pair, series

POWER = {"biadam": 1.0, "vr_biadam": 2.0}  # of eta in the rates
ROOT = {"biadam": 1 / 2, "vr_biadam": 1 / 3}  # of m + t in eta
each = pytest.mark.parametrize("name", POWER)


@each
@pytest.mark.parametrize(("offset", "edge"), [(30.0, None), (0.0, 0.1)])
def test_the_printed_form_is_the_second_implementation(name, offset, edge):
    """Free with eta and rates below 1, and in a box that is reached with both clamped at first."""
    home = Free() if edge is None else Box(-edge, edge)
    solver = getattr(solvers, name)(
        (0.1, 0.3),
        hypergradient=NeumannRandom(4, 0.7),
        outer_metric=Adam(0.9, 0.01),
        inner_metric=Norm(0.9, 0.01),
        mixing=PowerDecay(1.2, offset, ROOT[name]),
        rates=Coupled(outer=1.5, inner=2.5, power=POWER[name]),
    )
    problem = Problem(BED.outer, BED.inner, outer_set=home)
    agree(
        solver, getattr(reference, name), lambda s: series(s, 4), first=0,
        problem=problem,
        gamma=0.1, lam=0.3, tau=0.9, rho=0.01, k=1.2, m=offset, c1=2.5, c2=1.5, theta=0.7, K=4,
        box=None if edge is None else (-edge, edge),
    )  # fmt: skip
    x, _ = Shared(solver.batches, problem=problem).trajectory(solver)
    assert edge is None or np.isclose(np.abs(x), edge, rtol=1e-3).any()


@each
def test_the_whole_sum_is_the_second_implementation(name):
    solver = getattr(solvers, name)(
        (0.1, 0.3),
        hypergradient=NeumannSum(3, 0.7),
        outer_metric=Adam(0.9, 0.01),
        inner_metric=Norm(0.9, 0.01),
    )
    m = {"biadam": 100.0, "vr_biadam": 1000.0}[name]
    agree(
        solver, getattr(reference, name), series, first=0, estimator="sum",
        gamma=0.1, lam=0.3, tau=0.9, rho=0.01, k=1.0, m=m, c1=9.0, c2=9.0, theta=0.7,
    )  # fmt: skip


@each
@pytest.mark.parametrize("steps", [None, (0.1, 0.05)], ids=["default", "longer"])
def test_the_authors_variant_is_the_second_implementation(name, steps):
    """All of its own slots as they come: nothing is set but the step sizes, if they are."""
    factory = getattr(solvers, f"{name}_authors")
    solver = factory() if steps is None else factory(steps)
    gamma, lam = solver.step_size
    agree(
        solver, reference.authors, series, first=0, variance_reduced=name == "vr_biadam",
        gamma=gamma, lam=lam, momentum=0.9, theta=0.5,
    )  # fmt: skip
    assert solver.batches == 2 + 3  # Q = K = 3


@each
def test_the_tracked_form_is_the_second_implementation(name):
    """With all of its own slots; the numbers are written out."""
    agree(
        getattr(solvers, f"{name}_tracked")(), reference.tracked, pair, first=0,
        variance_reduced=name == "vr_biadam", alpha=0.01, beta=0.1, rho=0.1, weight=0.1,
        tau=0.99, floor=1e-3, eta=lambda t: 30 / (900 + t) ** 0.5,
    )  # fmt: skip


PLAIN = {"outer_metric": Identity(), "inner_metric": Identity()}
SLOTS = {"mixing": PowerDecay(1.0, 9.0, 1 / 3), "rates": Coupled(0.7, 0.9, 2.0)}


def test_without_matrices_biadam_is_smb_and_vr_biadam_is_mrbo_and_sustain():
    """Up to estimator and schedule, bit for bit; the series is that of the other method."""
    steps, fixed = (0.1, 0.3), {"mixing": 0.8, "rates": Constant(0.3, 0.4)}
    pairs = (
        (solvers.biadam(steps, **PLAIN, **fixed), solvers.smb(steps, **fixed)),
        (solvers.vr_biadam(steps, **PLAIN, **SLOTS), solvers.sustain(steps, **SLOTS)),
        (
            solvers.vr_biadam(steps, hypergradient=NeumannSum(), **PLAIN, **SLOTS),
            solvers.mrbo(steps, **SLOTS),
        ),
    )
    for one, other in pairs:
        for a, b in zip(*(Shared(s.batches).trajectory(s) for s in (one, other)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert np.abs(a).max() > 0.1


@each
def test_the_default_schedule_is_the_theorem_s(name):
    """Offsets of at least (c k)^(1/p), so that no rate is clamped, and a first eta of about 0.1."""
    solver = getattr(solvers, name)()
    eta, rates = solver.mixing, solver.rates
    assert (eta.power, rates.power) == (ROOT[name], POWER[name])
    first = float(eta(jnp.asarray(1)))
    assert first == pytest.approx(0.1, rel=0.01)
    for c in (rates.outer, rates.inner):
        assert eta.offset >= (c * eta.scale) ** (1 / eta.power)
        assert c >= 9 / 2 + (2 / 3 if name == "vr_biadam" else 0)
    for t in (1, 10, 10_000):
        now = eta(jnp.asarray(t))
        expected = eta.scale / (eta.offset + t) ** ROOT[name]
        np.testing.assert_allclose(float(now), expected)
        # The rates of t + 1, from the eta of t.
        np.testing.assert_allclose(float(rates(now).x), 9 * expected ** POWER[name])
        np.testing.assert_allclose(float(rates(now).y), 9 * expected ** POWER[name])

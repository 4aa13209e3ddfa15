"""The cost of a projected step over a free one.

    python benchmarks/projections.py [coordinates]

In the first two tables a step is ``a <- tau a + (1 - tau) w^2``, ``M = (sqrt(a) + rho) / gamma``,
``x <- prox(x - w / M, M)``, many of them in one compiled loop. The direction w is the gradient of a
separable quadratic (`bare`), or an average of such gradients with the new point mixed into the old
one, as in the methods of this library (`momentum`). The other tables have whole steps of methods
that weigh so many training examples by minibatches of 128, with the set around the weights. The
steps are measured in turn, in blocks too short for another process to slow down only one of them;
the best block of each counts. A ratio is only worth reading where the machine has little else to
do, so the load is printed too. The exit status is 1 if a ratio is above the one that is wanted.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from biadam import Problem, solvers, tree
from biadam.data import Minibatches
from biadam.proximal import L1, AbstractProximal, GroupL1
from biadam.sets import AbstractSet, Box, CappedSimplex, Free, L1Ball, L2Ball, Simplex

TAU, RHO, GAMMA, BETA, ETA = 0.9, 1e-3, 0.1, 0.3, 0.5
WARM, STEPS, BLOCKS = 100, 10, 40


class OneLook(L2Ball):
    """No projection: the least that one could do, a sum over all coordinates and a shrinkage by it.

    What it costs is a floor for the L2 ball, whose multiplier takes two such sums or more.
    """

    def project(self, point: Any, matrix: Any) -> Any:
        if jnp.ndim(matrix) == 0:
            return super().project(point, matrix)
        shrunk = lambda nu: point * (matrix / (matrix + nu))
        return shrunk(jnp.sum(shrunk(1.0) ** 2) / self.radius**2)


def homes(n: int) -> dict[str, tuple[AbstractProximal, float | None]]:
    """Sets and terms by name, with the ratio to stay under, if any. All but one are active."""
    return {
        "free": (Free(), None),
        "box": (Box(-0.5, 0.5), 1.2),
        "L2 ball, inside": (L2Ball(10.0 * n**0.5), 2.0),
        "L2 ball": (L2Ball(0.5 * n**0.5), 2.0),
        "L2 ball, small": (L2Ball(0.1 * n**0.5), 2.0),
        "one look, no projection": (OneLook(0.5 * n**0.5), None),
        "simplex": (Simplex(0.2 * n), 10.0),
        "simplex, sparse": (Simplex(1.0), 10.0),
        "capped simplex": (CappedSimplex(0.1 * n), 10.0),
        "L1 ball": (L1Ball(0.2 * n), 10.0),
        "L1 ball, sparse": (L1Ball(1.0), 10.0),
        "L1 term": (L1(0.1), None),
        "group L1 term, one group": (GroupL1(0.1, axes=0), None),
    }


def compiled(home: AbstractProximal, momentum: bool, n: int) -> Callable[[int], Any]:
    """Run a number of steps from a point where the first of them have settled."""
    target = jax.random.normal(jax.random.key(0), (n,))
    curvature = jnp.exp(jax.random.normal(jax.random.key(1), (n,)))

    def step(_: Any, state: Any) -> Any:
        x, w, a = state
        h = curvature * (x - target)
        w = BETA * h + (1 - BETA) * w if momentum else h
        a = TAU * a + (1 - TAU) * h * h
        matrix = (jnp.sqrt(a) + RHO) / GAMMA
        new = home.prox(x - w / matrix, matrix)
        return (ETA * new + (1 - ETA) * x if momentum else new), w, a

    run = jax.jit(lambda state, steps: jax.lax.fori_loop(0, steps, step, state))
    state = run((jnp.zeros(n), jnp.zeros(n), jnp.ones(n)), WARM)
    return lambda steps: jax.block_until_ready(run(state, steps))


FEATURES, BATCH, CLEAN = 32, 128, 1000


def whole(home: AbstractProximal, name: str, n: int) -> Callable[[int], Any]:
    """The same for steps of a method of the library."""
    feature = jr.normal(jr.key(0), (n, FEATURES))
    sign = jnp.sign(feature[:, 0])
    loss = lambda y, of: jax.nn.softplus(-of["sign"] * (of["feature"] @ y))

    def inner(x: Any, y: Any, of: Any) -> Any:
        return jnp.mean(x[of["index"]] * loss(y, of)) + 1e-2 * jnp.sum(y**2)

    problem = Problem(lambda x, y, of: jnp.mean(loss(y, of)), inner, outer_set=home)
    examples = {"feature": feature, "sign": sign, "index": jnp.arange(n)}
    clean = {"feature": feature[:CLEAN], "sign": sign[:CLEAN]}
    solver, data = getattr(solvers, name)(), Minibatches(clean, examples, BATCH)
    x = home.project(jnp.ones(n), 1.0) if isinstance(home, AbstractSet) else jnp.ones(n)
    parts = tree.with_arrays((problem, solver, data))
    draw = lambda data, step: data(jr.key(1), step, solver.batches)

    @eqx.filter_jit
    def run(parts: Any, state: Any, steps: Any) -> Any:
        problem, solver, data = parts
        step = lambda _, state: solver.step(problem, state, draw(data, state.step))[0]
        return jax.lax.fori_loop(0, steps, step, state)

    state, _ = eqx.filter_jit(solver.init)(problem, x, jnp.zeros(FEATURES), draw(data, 0))
    state = run(parts, state, jnp.asarray(WARM))
    if not jnp.isfinite(state.point.x).all():
        raise SystemExit(f"{name} diverged, and its time says nothing")
    return lambda steps: jax.block_until_ready(run(parts, state, jnp.asarray(steps)))


KINDS: dict[str, Callable[[AbstractProximal, int], Callable[[int], Any]]] = {
    "bare": lambda home, n: compiled(home, False, n),
    "momentum": lambda home, n: compiled(home, True, n),
    "biadam_tracked": lambda home, n: whole(home, "biadam_tracked", n),
    "vr_biadam_tracked": lambda home, n: whole(home, "vr_biadam_tracked", n),
}


def main(n: int) -> int:
    missed = 0
    print(f"{n} coordinates, float32, jax {jax.__version__}, load {os.getloadavg()}")
    for kind, make in KINDS.items():
        entries = homes(n)
        runs = {name: make(home, n) for name, (home, _) in entries.items()}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(BLOCKS):
            for name, run in runs.items():
                start = time.perf_counter()
                run(STEPS)
                best[name] = min(best[name], time.perf_counter() - start)
        print(f"\n{kind:26}{'ms a step':>12}{'over free':>12}{'wanted':>10}")
        for name, seconds in best.items():
            wanted = entries[name][1]
            limit = "" if wanted is None else f"<= {wanted:g}"
            ratio = seconds / best["free"]
            over = wanted is not None and ratio > wanted
            missed += over
            told = f"{1e3 * seconds / STEPS:12.3f}{ratio:12.2f}{limit:>10}"
            print(f"{name:26}{told}{'  missed' if over else ''}")
    print(f"\nload {os.getloadavg()}; {missed} of the wanted ratios missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))

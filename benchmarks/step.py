"""What one step costs, against one compiled SGD step on the inner loss with the same minibatch.

    python benchmarks/step.py [--data mnist] [--batch 32] [--all]

With --all every method of the library follows, with the task's settings for it.

Everything is measured in one process, in turns, inside compiled loops, the draw of the minibatches
included; the figure is the median over rounds of the ratio within a round.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import biadam
from biadam import solvers, tasks, tree
from biadam.hypergradients import NeumannRandom, NeumannSum

STEPS, ROUNDS = 1500, 9
SPAN = 1.0  # seconds of a measurement at the most


def looped(body: Callable[[Any, Any], Any], start: Any, *parts: Any) -> Callable[[], float]:
    """Microseconds a step, as a function to call again and again."""
    parts = tree.with_arrays(parts)

    @eqx.filter_jit
    def go(carry: Any, count: Any, parts: Any) -> Any:
        return lax.fori_loop(0, count, lambda t, carry: body(t, carry, *parts), carry)

    jax.block_until_ready(go(start, jnp.asarray(1), parts))

    def measure(count: int) -> float:
        begun = time.perf_counter()
        jax.block_until_ready(go(start, jnp.asarray(count), parts))
        return (time.perf_counter() - begun) / count * 1e6

    count = max(1, min(STEPS, int(SPAN * 1e6 / measure(1))))
    return lambda: measure(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--all", action="store_true")
    chosen = parser.parse_args()
    task = tasks.hyper_cleaning(chosen.data, batch=chosen.batch)
    key = jax.random.key(0)

    def descend(t: Any, y: Any, problem: Any, source: Any) -> Any:
        batch = source(key, t, 1).batch(0)
        return y - 0.1 * problem.inner_gradient(task.x0, y, batch)

    def method(solver: Any, source: Any = task.source, y0: Any = task.y0) -> Callable[[], float]:
        sample = source(key, 0, solver.batches)
        state, _ = eqx.filter_jit(solver.init)(task.problem, task.x0, y0, sample)
        step = lambda t, state, problem, source, solver: solver.step(
            problem, state, source(key, t + 1, solver.batches)
        )[0]
        return looped(step, state, task.problem, source, solver)

    contenders = {
        "SGD on the inner loss": looped(descend, task.y0, task.problem, task.source),
        "biadam, printed form, K = 3": method(solvers.biadam(hypergradient=NeumannRandom(3))),
        "biadam, whole sum, Q = 3": method(solvers.biadam(hypergradient=NeumannSum(3))),
        "vr_biadam, printed form, K = 3": method(solvers.vr_biadam(hypergradient=NeumannRandom(3))),
        "biadam_tracked": method(solvers.biadam_tracked()),
        "vr_biadam_tracked": method(solvers.vr_biadam_tracked()),
    }
    for name in solvers.__all__ if chosen.all else ():
        try:
            solver = task.build(name, getattr(solvers, name))
            contenders[f"{name}, as set"] = method(
                solver, task.source_for(name), task.start_for(name)
            )
        except biadam.Mistake as mistake:
            print(f"{name} does not take this task: {mistake}")
    rounds = [{name: run() for name, run in contenders.items()} for _ in range(ROUNDS)]
    first = next(iter(contenders))
    print(f"{chosen.data}, batch {chosen.batch}, load {os.getloadavg()[0]:.2f} of {os.cpu_count()}")
    for name in contenders:
        cost = statistics.median(r[name] for r in rounds)
        ratios = sorted(r[name] / r[first] for r in rounds)
        ratio = statistics.median(ratios)
        print(f"{name:32s} {cost:7.0f} us  {ratio:5.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()

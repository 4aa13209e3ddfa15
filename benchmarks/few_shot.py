"""What one iteration on fresh tasks costs, against a forward and backward pass of its images.

    python benchmarks/few_shot.py [--way 5] [--shot 1] [--channels 32]

The setting of the paper: 4 tasks, 15 queries, 16 inner steps, a series of K = 5. Everything is
measured in one process, in turns, each step dispatched on its own, the draw of the tasks included;
the figure is the median over rounds of the ratio within a round. The last lines show where the
rest goes.
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

from biadam import Levels, solvers, tasks, tree
from biadam.hypergradients import ConjugateGradient, NeumannSum, Newton, PerSample, Steps
from biadam.models import Convolutional

STEPS, ROUNDS = 10, 9


def timed(call: Callable[[], Any]) -> Callable[[], float]:
    """Milliseconds a call, as a function to call again and again."""
    jax.block_until_ready(call())

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            jax.block_until_ready(call())
        return (time.perf_counter() - begun) / STEPS * 1e3

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--way", type=int, default=5)
    parser.add_argument("--shot", type=int, default=1)
    parser.add_argument("--channels", type=int, default=32)
    chosen = parser.parse_args()
    encoder = Convolutional(chosen.channels)
    task = tasks.fresh_tasks(
        chosen.data, ways=chosen.way, shots=chosen.shot, encoder=encoder, episodes=1
    )
    key, problem, source = jax.random.key(0), task.problem, task.source
    sample = jax.jit(lambda: source(key, 0, 1))()
    size = sample.outer.image.shape[2:]
    image = jnp.concatenate([a.image.reshape(-1, *size) for a in (sample.batch(0), sample.outer)])
    width = jax.eval_shape(encoder.apply, task.x0, image[:1]).shape[1]
    cotangent = jax.random.normal(key, (len(image), width), image.dtype)
    passes = jax.jit(jax.grad(lambda z: jnp.sum(encoder.apply(z, image) * cotangent)))

    series = PerSample(NeumannSum(5, 0.4), Steps(16, 0.4))
    exact = PerSample(ConjugateGradient(50, 1e-3), Newton())

    def method(solver: Any) -> Callable[[], float]:
        parts = tree.with_arrays((solver, source, problem))

        @eqx.filter_jit
        def step(parts: Any, state: Any) -> Any:
            solver, source, problem = parts
            return solver.step(problem, state, source(key, state.step, 1))[0]

        state, _ = eqx.filter_jit(solver.init)(problem, task.x0, task.y0, sample)
        return timed(lambda: step(parts, state))

    view = jax.jit(lambda: problem.view(task.x0, sample)[1])()

    def heads(field: PerSample) -> Callable[[], float]:
        """All that happens in the space of the features."""

        @jax.jit
        def look(x: Any) -> Any:
            seen = problem.view(task.x0, sample)
            return field.field(seen.problem, Levels(x, task.y0), seen.sample).value

        return timed(lambda: look(view))

    contenders = {
        "forward and backward pass": timed(lambda: passes(task.x0)),
        "biadam, 16 steps, K = 5": method(solvers.biadam(hypergradient=series)),
        "vr_biadam, 16 steps, K = 5": method(solvers.vr_biadam(hypergradient=series)),
        "biadam, Newton heads, CG": method(solvers.biadam(hypergradient=exact)),
        "  the draw of the tasks": timed(jax.jit(lambda: source(key, 0, 1))),
        "  heads by 16 steps, K = 5": heads(series),
        "  heads by Newton, CG": heads(exact),
    }
    rounds = [{name: run() for name, run in contenders.items()} for _ in range(ROUNDS)]
    first = next(iter(contenders))
    print(
        f"{chosen.data}, {chosen.way}-way {chosen.shot}-shot, {len(image)} images, "
        f"{chosen.channels} channels, load {os.getloadavg()[0]:.2f} of {os.cpu_count()}"
    )
    for name in contenders:
        cost = statistics.median(r[name] for r in rounds)
        ratios = sorted(r[name] / r[first] for r in rounds)
        ratio = statistics.median(ratios)
        print(f"{name:28s} {cost:7.2f} ms  {ratio:5.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()

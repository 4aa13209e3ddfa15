"""How many clean examples cleaning needs: free weights and a function of each example, by size.

    python benchmarks/clean_sets.py [--data mnist] [--noise 0.6] [--seeds 3]

Free weights are run to the end, and also stopped early: a fifth of the clean examples is then held
out of the outer loss, and the iterate with the least loss on it is taken. Beside them stand the
references that need no bilevel problem. Nothing is tuned here: every method has the task's own
settings. A cell is the mean over the seeds and the standard deviation between them.
"""

import argparse
import statistics
from collections import defaultdict

import jax
import numpy as np

import biadam
from biadam import outputs, solvers, tasks
from biadam.data import Minibatches
from biadam.tasks.hyper_cleaning import plain_loss

SIZES = (50, 100, 200, 500, 1000)
SHOWN = ("uniform weights", "the clean set alone", "pruned out of fold", "the true clean subset")


def learned(task: tasks.Task, seed: int, stopped: bool = False) -> dict[str, float]:
    """What the task's method reaches on it."""
    source, metrics, output = task.source, {}, outputs.Last()
    if stopped:
        part = len(source.outer.label) // 5
        held = jax.tree.map(lambda a: a[:part], source.outer)
        rest = jax.tree.map(lambda a: a[part:], source.outer)
        source = Minibatches(outer=rest, inner=source.inner, size=source.size)
        loss = jax.jit(lambda x, y: plain_loss(x, y, held))
        metrics, output = {"held_out": loss}, outputs.Best("held_out")
    result = biadam.run(
        task.problem,
        task.build(task.solver, getattr(solvers, task.solver)),
        source,
        task.x0,
        task.y0,
        steps=task.steps,
        key=jax.random.key(seed),
        metrics=metrics,
        output=output,
    )
    return task.evaluate(result.x, result.y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--noise", type=float, default=0.6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    chosen = parser.parse_args()
    cells: dict[str, dict[str, dict[int, list[float]]]] = {
        metric: defaultdict(lambda: defaultdict(list)) for metric in ("test_accuracy", "auc")
    }

    def note(name: str, size: int, found: dict[str, float]) -> None:
        for metric, rows in cells.items():
            if metric in found:
                rows[name][size].append(found[metric])

    for size in chosen.sizes:
        for seed in range(chosen.seeds):
            shared = {"noise": chosen.noise, "validation": size, "batch": min(128, size)}
            task = tasks.hyper_cleaning(chosen.data, **shared, seed=seed)
            for reference in task.references():
                if reference.name in SHOWN:
                    note(reference.name, size, reference.metrics)
            note("free weights", size, learned(task, seed))
            note("free weights, stopped early", size, learned(task, seed, stopped=True))
            small = tasks.hyper_cleaning(
                chosen.data, **shared, weights=tasks.WeightFunction(), seed=seed
            )
            note("a function of each example", size, learned(small, seed))
    for metric, rows in cells.items():
        print(f"\n{metric.replace('_', ' ')}, {chosen.data}, {chosen.noise:g} of the labels wrong")
        print(f"{'clean examples':28s}" + "".join(f"{size:>16d}" for size in chosen.sizes))
        for name, row in rows.items():
            told = (row[size] for size in chosen.sizes)
            spread = lambda v: statistics.stdev(v) if len(v) > 1 else 0.0
            print(f"{name:28s}" + "".join(f"{np.mean(v):9.3f} ± {spread(v):.3f}" for v in told))


if __name__ == "__main__":
    main()

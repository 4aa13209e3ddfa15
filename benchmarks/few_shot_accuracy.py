"""Test accuracy of the recommended few-shot setting after so many minutes.

    python benchmarks/few_shot_accuracy.py [--task 5w1s ...] [--seed 0 ...] [--minutes 3 15 ...]

Trains on fresh tasks with the task's own settings for `biadam`, once for each task and seed, and
tests the encoder at every checkpoint of that one run. Minutes are those of stepping, and of the
driver's looks at the losses; compilation and tests do not count. The test accuracy is over 600
tasks of unseen characters, +- half of its 95 % interval: *fixed* with statistics of training
images, *seeing* with those of each task's own images. Nothing is chosen by these numbers.

A row is printed as soon as it is known, and appended to --out as a line of JSON. The peak of memory
is that of the process so far.
"""

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import biadam
from biadam import solvers, tasks
from biadam.models import Convolutional

NAMED = {"5w1s": (5, 1), "5w5s": (5, 5), "20w1s": (20, 1), "20w5s": (20, 5)}
EVERY = 20  # steps between two looks at the clock


class Checkpoints:
    """A metric that tests the encoder when the clock of the steps has passed a checkpoint."""

    def __init__(self, minutes: list[float], tell: Callable[[float, Any, float], None]):
        self.minutes, self.tell = sorted(minutes), tell
        self.clock, self.left = 0.0, time.perf_counter()

    def __call__(self, state: Any) -> float:
        first = int(state.step) == 1  # what came before is compilation
        self.clock += 0.0 if first else time.perf_counter() - self.left
        while self.minutes and self.clock >= 60 * self.minutes[0]:
            self.tell(self.minutes.pop(0), state, self.clock)
        self.left = time.perf_counter()
        return self.clock


def train(name: str, seed: int, chosen: argparse.Namespace) -> None:
    """One run, with a row at each checkpoint."""
    ways, shots = NAMED[name]
    task = tasks.fresh_tasks(
        chosen.data,
        ways=ways,
        shots=shots,
        encoder=Convolutional(chosen.channels),
        held_out=chosen.held_out,
        seed=seed,
    )

    def tell(minutes: float, state: Any, seconds: float) -> None:
        found = task.evaluate(state.point.x, state.point.y)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        row = {"task": name, "seed": seed, "minutes": minutes, "steps": int(state.step) - 1}
        row |= {"seconds": seconds, "peak_megabytes": peak, "load": os.getloadavg()[0]}
        row |= {"data": task.data, "options": dict(task.options), "metrics": found}
        if chosen.out is not None:
            with chosen.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        fixed, seeing = (
            f"{found[f'{kind}_accuracy']:.4f} +- {found[f'{kind}_interval']:.4f}"
            for kind in ("test", "seeing")
        )
        print(
            f"{name:6s} {seed:4d} {minutes:8.2f} {seconds:9.1f} {row['steps']:8d}  {fixed}  "
            f"{seeing}  {peak:7.0f} MB  {os.getloadavg()[0]:5.2f}",
            flush=True,
        )

    biadam.run(
        task.problem,
        task.build("biadam", solvers.biadam),
        task.source,
        task.x0,
        task.y0,
        seconds=60 * max(chosen.minutes),
        key=jax.random.key(seed),
        metrics={"clock": biadam.OfState(Checkpoints(chosen.minutes, tell))},
        every=EVERY,
        progress=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--task", nargs="+", choices=NAMED, default=list(NAMED))
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", nargs="+", type=float, default=[3.0])
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--held-out", type=int, help="Alphabets not trained on.")
    parser.add_argument("--out", type=Path, help="A file to append lines of JSON to.")
    chosen = parser.parse_args()
    print(
        f"{'task':6s} {'seed':>4s} {'minutes':>8s} {'seconds':>9s} {'steps':>8s}  "
        f"{'fixed':16s}  {'seeing':16s}  {'peak':>10s}  {'load':>5s}"
    )
    for name in chosen.task:
        for seed in chosen.seed:
            train(name, seed, chosen)


if __name__ == "__main__":
    main()

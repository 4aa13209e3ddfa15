"""The throughput of a sweep over settings on several cores, against one.

Each round runs the same settings of one method in one process and then in several, every run of the
same number of samples. Processes are started and programs compiled before the clock is; a ratio
compares two times of the same round.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from biadam import solvers, tasks
from biadam.comparison import Recipe, Samples, work
from biadam.comparison.cache import Cache
from biadam.comparison.plan import Plan
from biadam.comparison.search import labels
from biadam.solvers.about import SPACES
from biadam.solvers.space import settings

METHOD = "biadam_tracked"
WARM = 3 * 128.0  # samples: enough to compile


def sweep(count: int, samples: float, workers: int, programs: Path) -> float:
    """Seconds for so many settings, none of them kept from before."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        (cache.folder / "programs").symlink_to(programs)
        recipe = Recipe(tasks.hyper_cleaning, {"data": "digits"})
        plan = Plan(recipe, Samples(samples), range(1), range(10**6, 10**6 + 1), cache, workers)
        base = recipe.task(10**6).settings[METHOD]
        tried = settings(getattr(solvers, METHOD), SPACES[METHOD], base, count)
        trials = [
            plan.trial("tuning", METHOD, given, shown, 10**6, plan.budget)
            for given, shown in zip(tried, labels(tried), strict=True)
        ]
        begun = time.perf_counter()
        done = list(plan.made(work.tune, trials))
        spent = time.perf_counter() - begun
    if len(done) != count:
        raise RuntimeError(f"{len(done)} of {count} runs came back")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    several, samples = chosen.workers, chosen.steps * 256.0
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder)
        work.alone(programs)
        for workers in (1, several):
            sweep(4 * workers, WARM, workers, programs)
        ratios = []
        for _ in range(chosen.rounds):
            one, many = (sweep(chosen.settings, samples, n, programs) for n in (1, several))
            ratios.append(one / many)
            print(f"{one:.1f} s in 1 process, {many:.1f} s in {several}: {ratios[-1]:.2f} times")
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"median {statistics.median(ratios):.2f}; load {load:.1f} on {cores} cores")


if __name__ == "__main__":
    main()

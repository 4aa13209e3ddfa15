"""What the parts of the few-shot setting do: directions, penalty, norms, strides or pooling.

    python benchmarks/few_shot_variants.py [--steps 600] [--seed 0 1 2] [--only NAME ...]

Each variant differs in one part from the recommended setting, BiAdam with Newton heads and
conjugate gradients on fresh 5-way 1-shot tasks, and takes the same number of steps. Printed are the
accuracy on the held-out alphabets, which no test ever sees, its mean and standard deviation over
the seeds, and milliseconds a step. Of the directions also how they lie to the exact one, before
training and after: the cosine and the ratio of the lengths, means over minibatches.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import biadam
from biadam import Levels, solvers, tasks
from biadam.hypergradients import ConjugateGradient, Exact, NeumannSum, Newton, PerSample, Steps
from biadam.models import AbstractEncoder, BatchNorm, Convolutional, GroupNorm, Sphere

DIRECTIONS = {
    "conjugate gradients (recommended)": PerSample(ConjugateGradient(50, 1e-3), Newton()),
    "dense, exact": PerSample(Exact(blocks=True), Newton()),
    "series, K = 5": PerSample(NeumannSum(5, 0.4), Newton()),
    "series, K = 5, heads by 16 steps": PerSample(NeumannSum(5, 0.4), Steps(16, 0.4)),
}
LOOKS = 8  # minibatches that a direction is compared on


class Pooled(AbstractEncoder):
    """The recommended encoder with stride 1 and maxima of 2 x 2 in place of stride 2.

    It rounds sizes down where strides round them up: of 28 x 28 pixels 1 x 1 is left, not 2 x 2.
    """

    def init(self, key: Any, shape: tuple[int, int]) -> Any:
        return Convolutional().init(key, shape)

    def apply(self, z: Any, image: Any, statistics: Any = None) -> Any:
        return Sphere()(self._forward(z, image, statistics)[0])

    def statistics(self, z: Any, image: Any) -> Any:
        return self._forward(z, image, None)[1]

    def _forward(self, z: Any, image: Any, statistics: Any) -> Any:
        x, used = image[..., None], []
        for block, known in zip(z, statistics or (None,) * len(z), strict=True):
            x = jax.lax.conv_general_dilated(
                x, block.kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            last, moments = BatchNorm()(x.transpose(3, 1, 2, 0), known)
            x = jax.nn.relu(last.transpose(3, 1, 2, 0) * block.scale + block.shift)
            height, width = (n // 2 * 2 for n in x.shape[1:3])
            at = lambda i, j, x=x, h=height, w=width: x[:, i:h:2, j:w:2]
            x = jnp.maximum(jnp.maximum(at(0, 0), at(0, 1)), jnp.maximum(at(1, 0), at(1, 1)))
            used.append(moments)
        return x.reshape(len(image), -1), tuple(used)


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the task, of the method
    **{name: ({}, {"hypergradient": field}) for name, field in DIRECTIONS.items()},
    "the paper's penalty, C = 0.01": ({"ridge": 0.01}, {}),
    "group norm, 4 groups": ({"encoder": Convolutional(norm=GroupNorm(4))}, {}),
    "layer norm": ({"encoder": Convolutional(norm=GroupNorm(1))}, {}),
    "64 channels": ({"encoder": Convolutional(64)}, {}),
    "pooling in place of strides": ({"encoder": Pooled()}, {}),
}


def train(data: str, name: str, seed: int, steps: int) -> tuple[float, float, Any, Any]:
    """Held-out accuracy, milliseconds a step, the task, and what was learned."""
    of_task, of_method = VARIANTS[name]
    task = tasks.fresh_tasks(data, seed=seed, episodes=1, **of_task)
    result = biadam.run(
        task.problem,
        task.build("biadam", solvers.biadam, **of_method),
        task.source,
        task.x0,
        task.y0,
        steps=steps,
        key=jax.random.key(seed),
        compiled_loop=False,  # so that convolutions and matrix products can be told by their time
        progress=False,
    )
    accuracy = task.curves["validation_accuracy"](result.x, result.y)
    return accuracy, 1e3 * result.seconds / steps, task, result.x


def compare(task: Any, z: Any) -> dict[str, tuple[float, float]]:
    """The cosine of each direction to the exact one, and the ratio of their lengths."""

    def look(field: PerSample) -> Callable[[Any], Any]:
        def at(sample: Any) -> Any:
            seen = task.problem.view(z, sample)
            found = field.field(seen.problem, Levels(seen.x, task.y0), seen.sample)
            return seen.pull(found.value.x)

        return jax.jit(at)

    looks = {name: look(field) for name, field in DIRECTIONS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in looks}
    for i in range(LOOKS):
        sample = task.source(jax.random.key(1), i, 1)
        exact = looks["dense, exact"](sample)
        size = optax.tree.norm(exact)
        for name, of in looks.items():
            h = of(sample)
            norm = optax.tree.norm(h)
            cosine = optax.tree.vdot(h, exact) / (norm * size)
            found[name].append((float(cosine), float(norm / size)))
    return {name: tuple(map(statistics.fmean, zip(*of, strict=True))) for name, of in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    chosen = parser.parse_args()
    print(
        f"{chosen.data}, {chosen.steps} steps, seeds {chosen.seed}, load {os.getloadavg()[0]:.2f}"
    )
    for name in chosen.only:
        runs = [train(chosen.data, name, seed, chosen.steps) for seed in chosen.seed]
        accuracy = [run[0] for run in runs]
        spread = statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
        pace = statistics.fmean(run[1] for run in runs)
        print(
            f"{name:36s} {statistics.fmean(accuracy):.4f} +- {spread:.4f} {pace:7.1f} ms",
            flush=True,
        )
        if name == next(iter(DIRECTIONS)):
            for when, z in (("before", runs[0][2].x0), ("after", runs[0][3])):
                for of, (cosine, ratio) in compare(runs[0][2], z).items():
                    print(f"  {when:7s} {of:36s} cosine {cosine:6.3f}, length {ratio:6.3f}")


if __name__ == "__main__":
    main()

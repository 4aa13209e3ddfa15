"""What makes an encoder fast: layouts, convolutions against matrix products, strides, pooling.

    python benchmarks/encoder.py [--images 320] [--channels 32]

One forward and backward pass of four blocks over the images of a step, by the weights, in several
writings of the same network (and of one that pools in place of striding), each dispatched on its
own and inside a compiled loop. Everything is measured in one process, in turns; the figure is the
median over rounds, and the ratio that to the library's encoder within a round.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from biadam.models import Convolutional

ROUNDS, LOOP = 7, 3


def normal(x: Any, axes: tuple[int, ...]) -> Any:
    """Batch normalisation and a rectifier."""
    mean = jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(x**2, axes, keepdims=True) - mean**2
    return jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-5))


def strided(layout: str) -> Callable[[Any, Any], Any]:
    """The compiler's own convolutions, with stride 2."""
    axes = (0, 1, 2) if layout == "NHWC" else (0, 2, 3)

    def apply(kernels: Any, image: Any) -> Any:
        x = image[..., None] if layout == "NHWC" else image[:, None]
        for kernel in kernels:
            x = lax.conv_general_dilated(
                x, kernel, (2, 2), "SAME", dimension_numbers=(layout, "HWIO", layout)
            )
            x = normal(x, axes)
        return x.reshape(len(image), -1)

    return apply


def pooled(window: bool) -> Callable[[Any, Any], Any]:
    """Convolutions with stride 1 and maxima of 2 x 2, by a window or of strided slices."""

    def apply(kernels: Any, image: Any) -> Any:
        x = image[..., None]
        for kernel in kernels:
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
            x = normal(x, (0, 1, 2))
            if window:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            else:
                height, width = (n // 2 * 2 for n in x.shape[1:3])
                at = lambda i, j, x=x, h=height, w=width: x[:, i:h:2, j:w:2]
                x = jnp.maximum(jnp.maximum(at(0, 0), at(0, 1)), jnp.maximum(at(1, 0), at(1, 1)))
        return x.reshape(len(image), -1)

    return apply


def timed(apply: Callable[[Any, Any], Any], z: Any, image: Any, loop: bool) -> Callable[[], float]:
    """Milliseconds a pass, as a function to call again and again."""
    slope = jax.grad(lambda z, image: jnp.sum(jnp.sin(apply(z, image))))

    def turns(z: Any, image: Any) -> Any:
        step = lambda _, z: jax.tree.map(lambda a, b: a - 1e-6 * b, z, slope(z, image))
        return lax.fori_loop(0, LOOP, step, z)

    call = jax.jit(turns if loop else slope)
    jax.block_until_ready(call(z, image))
    count = 1 if loop else LOOP

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(call(z, image))
        return (time.perf_counter() - begun) / LOOP * 1e3

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--channels", type=int, default=32)
    chosen = parser.parse_args()
    own = Convolutional(chosen.channels)
    key = jax.random.key(0)
    z = own.init(key, (28, 28))
    kernels = [block.kernel for block in z]
    image = jax.random.uniform(key, (chosen.images, 28, 28))
    writings: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
        "matrix products (the library's)": (own.apply, z),
        "convolutions, NHWC": (strided("NHWC"), kernels),
        "convolutions, NCHW": (strided("NCHW"), kernels),
        "pooled by strided slices": (pooled(False), kernels),
        "pooled by a window": (pooled(True), kernels),
    }
    contenders = {
        (name, loop): timed(*of, image, loop) for name, of in writings.items() for loop in (0, 1)
    }
    rounds = [{name: run() for name, run in contenders.items()} for _ in range(ROUNDS)]
    print(
        f"{chosen.images} images, {chosen.channels} channels, "
        f"load {os.getloadavg()[0]:.2f} of {os.cpu_count()}"
    )
    first = next(iter(contenders))
    print(f"{'':34s}{'on its own':>22s}{'inside a loop':>22s}")
    for name in writings:
        cells = []
        for loop in (0, 1):
            cost = statistics.median(r[name, loop] for r in rounds)
            ratio = statistics.median(r[name, loop] / r[first] for r in rounds)
            cells.append(f"{cost:11.1f} ms {ratio:6.2f} ")
        print(f"{name:34s}{cells[0]:>22s}{cells[1]:>22s}")


if __name__ == "__main__":
    main()

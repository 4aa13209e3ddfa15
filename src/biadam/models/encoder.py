"""Encoders: functions of parameters and images, where the parameters are the outer variable z.

The convolutions are written as matrix products of their patches. The compiler's own convolutions
are about as fast for a CPU where a step is a program of its own, but many times slower inside a
compiled loop, where their gradients by the weights fall back to plain loops; matrix products are
fast in both. Images lie last, ``[channels, height, width, n]``, so that patches are cut in long
runs of memory and all three products of a layer (forward, and backward by weights and by inputs)
are of a shape that the CPU is good at. `benchmarks/encoder.py` measures it.
"""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key, PyTree

from .. import errors
from .norms import AbstractNorm, BatchNorm, Moments
from .scalings import AbstractScaling, Sphere

Statistics = tuple[Moments | None, ...]  # of each block, if its norm has them


class AbstractEncoder(eqx.Module):
    """Turns images into features for linear heads."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], shape: tuple[int, int]) -> PyTree[Array]:
        """Parameters to start from, for images of a height and width."""

    @abc.abstractmethod
    def apply(
        self, z: PyTree[Array], image: Float[Array, "n height width"], statistics: Any = None
    ) -> Float[Array, "n features"]:
        """The features of some images.

        Args:
            z: the parameters.
            image: the images.
            statistics: what `statistics` returned; with it the features of an image depend on no
                other image.
        """

    @abc.abstractmethod
    def statistics(self, z: PyTree[Array], image: Float[Array, "n height width"]) -> Any:
        """What `apply` shall know of many images in place of those that it is given."""


class Block(NamedTuple):
    """The parameters of one block."""

    kernel: Float[Array, "side side inputs channels"]
    scale: Float[Array, " channels"]
    shift: Float[Array, " channels"]


class Convolutional(AbstractEncoder):
    """Blocks of a 3 x 3 convolution with stride 2, a normalisation and a rectifier.

    Args:
        channels: of every block.
        blocks: how many; each halves height and width, rounding up.
        norm: the normalisation, see `biadam.models.norms`.
        scaling: what the heads see of the last block, see `biadam.models.scalings`.
    """

    channels: int = eqx.field(static=True)
    blocks: int = eqx.field(static=True)
    norm: AbstractNorm
    scaling: AbstractScaling

    def __init__(
        self,
        channels: int = 32,
        blocks: int = 4,
        norm: AbstractNorm = BatchNorm(),
        scaling: AbstractScaling = Sphere(),
    ):
        errors.count("channels", channels)
        errors.count("blocks", blocks)
        errors.part("norm", norm, AbstractNorm, "models")
        errors.part("scaling", scaling, AbstractScaling, "models")
        self.channels, self.blocks = channels, blocks
        self.norm, self.scaling = norm, scaling

    def init(self, key: Key[Array, ""], shape: tuple[int, int]) -> tuple[Block, ...]:
        """See `AbstractEncoder`; normal numbers of variance 2 / inputs (He)."""
        blocks, inputs = [], 1
        for one in jr.split(key, self.blocks):
            spread = math.sqrt(2 / (SIDE * SIDE * inputs))
            kernel = spread * jr.normal(one, (SIDE, SIDE, inputs, self.channels))
            blocks.append(Block(kernel, jnp.ones(self.channels), jnp.zeros(self.channels)))
            inputs = self.channels
        return tuple(blocks)

    def apply(
        self,
        z: tuple[Block, ...],
        image: Float[Array, "n height width"],
        statistics: Statistics | None = None,
    ) -> Float[Array, "n features"]:
        """See `AbstractEncoder`."""
        return self.scaling(self._forward(z, image, statistics)[0])

    def statistics(self, z: tuple[Block, ...], image: Float[Array, "n height width"]) -> Statistics:
        """See `AbstractEncoder`."""
        return self._forward(z, image, None)[1]

    def _forward(
        self, z: tuple[Block, ...], image: Array, statistics: Statistics | None
    ) -> tuple[Array, Statistics]:
        x = image.transpose(1, 2, 0)[None]
        used: list[Moments | None] = []
        for block, known in zip(z, statistics or (None,) * len(z), strict=True):
            x, moments = self.norm(convolve(x, block.kernel), known)
            wide = lambda a: a[:, None, None, None]
            x = jax.nn.relu(x * wide(block.scale) + wide(block.shift))
            used.append(moments)
        return x.reshape(-1, x.shape[-1]).T, tuple(used)


SIDE, STRIDE = 3, 2  # of a block's convolution


def convolve(
    x: Float[Array, "inputs height width n"],
    kernel: Float[Array, "side side inputs channels"],
) -> Float[Array, "channels newheight newwidth n"]:
    """A convolution with stride 2, padded by zeros as evenly as can be, as one matrix product."""
    side, _, inputs, channels = kernel.shape
    height, width = (-(-length // STRIDE) for length in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), *(_padding(n, side) for n in x.shape[1:3]), (0, 0)))
    shifted = [
        padded[:, i : i + STRIDE * height - 1 : STRIDE, j : j + STRIDE * width - 1 : STRIDE]
        for i in range(side)
        for j in range(side)
    ]
    patches = jnp.concatenate(shifted).reshape(side * side * inputs, -1)
    product = kernel.reshape(-1, channels).T @ patches
    return product.reshape(channels, height, width, -1)


def _padding(length: int, side: int) -> tuple[int, int]:
    total = max((-(-length // STRIDE) - 1) * STRIDE + side - length, 0)
    return total // 2, total - total // 2

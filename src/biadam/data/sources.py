"""Sources of samples: pure functions of a key and a step number.

A source holds no position. Resuming, repeating a step, or cutting a run into other pieces can't
change what is drawn.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from .. import errors
from ..problem import Sample


class AbstractSource(eqx.Module):
    """Draws samples."""

    @abc.abstractmethod
    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """Sample number ``step`` of the stream that ``key`` names, with so many inner batches."""


class Minibatches(AbstractSource):
    """Minibatches of arrays in memory, drawn inside the compiled step.

    Every minibatch of a sample is drawn independently of the others: the outer xi and the inner
    zeta, zeta^0, zeta^1 ...

    Args:
        outer: the data of the outer loss, a pytree of arrays with one leading axis.
        inner: the data of the inner loss, likewise.
        size: of a minibatch, one number or a pair (outer, inner).
        replacement: draw uniformly with replacement; if False, each of the independent streams
            goes through the data in an order of its own, reshuffled every epoch.
    """

    outer: PyTree[Array]
    inner: PyTree[Array]
    size: tuple[int, int] = eqx.field(static=True)
    replacement: bool = eqx.field(static=True)

    def __init__(
        self,
        outer: PyTree,
        inner: PyTree,
        size: int | tuple[int, int],
        replacement: bool = True,
    ):
        self.size = _pair_of_sizes(size)
        self.replacement = replacement
        self.outer = _checked("outer", outer)
        self.inner = _checked("inner", inner)
        for name, data, one in zip(("outer", "inner"), (outer, inner), self.size, strict=True):
            errors.count(f"size ({name})", one)
            if not replacement and one > _length(data):
                raise errors.Mistake(
                    f"`size` of {one} is more than the {_length(data)} examples of the {name} "
                    f"data; take smaller minibatches or draw with replacement."
                )

    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """See `AbstractSource`."""
        if self.replacement:
            outer_key, inner_key, rest = jr.split(jr.fold_in(key, step), 3)
            i = jr.randint(outer_key, self.size[:1], 0, _length(self.outer))
            j = jr.randint(inner_key, (batches, self.size[1]), 0, _length(self.inner))
        else:
            streams = jr.split(key, batches + 2)
            rest = jr.fold_in(streams[0], step)
            i = epoch_indices(streams[1], step, self.size[0], _length(self.outer))
            deal = lambda k: epoch_indices(k, step, self.size[1], _length(self.inner))
            j = jax.vmap(deal)(streams[2:])
        take = lambda data, at: jax.tree.map(lambda a: a[at], data)
        return Sample(take(self.outer, i), take(self.inner, j), rest, (self.outer, self.inner))


class FullBatch(AbstractSource):
    """All the data, at every step: the noise-free problem."""

    outer: PyTree[Array]
    inner: PyTree[Array]

    def __init__(self, outer: PyTree, inner: PyTree):
        self.outer = _checked("outer", outer)
        self.inner = _checked("inner", inner)

    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """See `AbstractSource`."""
        whole = (self.outer, self.inner)
        once = jax.tree.map(lambda a: a[None], self.inner)
        return Sample(self.outer, once, jr.fold_in(key, step), whole)


def epoch_indices(key: Key[Array, ""], step: Any, size: int, length: int) -> Int[Array, " size"]:
    """Examples number ``step * size ...`` of an endless reading, reshuffled each epoch.

    The order of an epoch is a keyed permutation that is computed point by point (a Feistel network
    on the next power of four, walked until it falls below ``length``), so that no order is stored
    and any step can be drawn without those before it.
    """
    place = jnp.asarray(step, jnp.uint32) * np.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
    epoch, rank = place // np.uint32(length), place % np.uint32(length)
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    mask = np.uint32((1 << half) - 1)
    # A minibatch lies in one epoch or across the border of two.
    salts = lambda e: jr.bits(jr.fold_in(key, e), (6, 1), jnp.uint32)
    salt = jnp.where(epoch[None] == epoch[0], salts(epoch[0]), salts(epoch[0] + 1))

    def scramble(v: Array, salt: Array) -> Array:
        v = (v ^ salt) * np.uint32(0x85EBCA6B)
        v = (v ^ (v >> 13)) * np.uint32(0xC2B2AE35)
        return v ^ (v >> 16)

    def permute(v: Array) -> Array:
        left, right = v >> half, v & mask
        for row in salt:
            left, right = right, left ^ (scramble(right, row) & mask)
        return (left << half) | right

    outside = lambda v: jnp.any(v >= length)
    walk = lambda v: jnp.where(v >= length, permute(v), v)
    return jax.lax.while_loop(outside, walk, permute(rank)).astype(jnp.int32)


def _pair_of_sizes(size: Any) -> tuple[int, int]:
    """One for each level; a single one serves both."""
    if not isinstance(size, tuple | list):
        return size, size
    if len(size) != 2:
        raise errors.Mistake(
            f"`size` must be one number or a pair (outer, inner), but it is {size!r}."
        )
    return size[0], size[1]


def _length(data: PyTree) -> int:
    return int(jax.tree.leaves(data)[0].shape[0])


def _checked(name: str, data: PyTree) -> PyTree:
    """The data as arrays on the device, or a `Mistake`."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise errors.Mistake(f"`{name}` must hold at least one array, but it is {data!r}.")
    lengths = {np.shape(a)[0] if np.ndim(a) else None for a in leaves}
    if len(lengths) > 1 or None in lengths:
        raise errors.Mistake(
            f"the arrays of `{name}` must share their leading axis, one entry an example, but "
            f"their shapes are {', '.join(str(np.shape(a)) for a in leaves)}."
        )
    if 0 in lengths:
        raise errors.Mistake(f"`{name}` must hold at least one example, but it is empty.")
    for a in leaves:
        a = np.asarray(a)
        if not (jnp.issubdtype(a.dtype, jnp.number) or a.dtype == np.bool_):
            raise errors.Mistake(
                f"`{name}` must hold arrays of numbers, but one is of type {a.dtype}; "
                f"name classes by whole numbers."
            )
        if jnp.issubdtype(a.dtype, jnp.floating) and not np.isfinite(a).all():
            bad = int(np.unique(np.argwhere(~np.isfinite(a))[:, 0]).size)
            raise errors.Mistake(
                f"`{name}` must be finite, but {bad} of its {len(a)} examples hold a NaN or an "
                f"infinity; drop or mend them."
            )
    return jax.tree.map(jnp.asarray, data)

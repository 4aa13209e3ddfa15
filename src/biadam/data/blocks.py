"""A finite sum cut into blocks once and for all, for the methods that remember each of them."""

from typing import Any

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Key, PyTree

from .. import errors
from ..problem import Sample
from .sources import AbstractSource, Minibatches, _length


class Blocks(AbstractSource):
    """Minibatches that are always the same blocks of consecutive examples.

    Each draw is uniform over the blocks and independent of the others, and the sample tells which
    one it is: ``sample.block`` is the number of the outer block, and the numbers of the inner ones.
    Block i of the data holds the examples ``i * size`` to ``(i + 1) * size``.

    Args:
        outer: the data of the outer loss, a pytree of arrays with one leading axis.
        inner: the data of the inner loss, likewise.
        size: of a block, one number or a pair (outer, inner); it must divide the examples, for
            blocks of unequal size would weigh their examples unequally.
    """

    outer: PyTree[Array]
    inner: PyTree[Array]
    size: tuple[int, int] = eqx.field(static=True)

    def __init__(self, outer: PyTree, inner: PyTree, size: int | tuple[int, int]):
        checked = Minibatches(outer, inner, size)
        self.outer, self.inner, self.size = checked.outer, checked.inner, checked.size
        for name, data, one in zip(
            ("outer", "inner"), (self.outer, self.inner), self.size, strict=True
        ):
            _check_division(name, _length(data), one)

    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """See `AbstractSource`."""
        outer_key, inner_key, rest = jr.split(jr.fold_in(key, step), 3)
        whole, size = (self.outer, self.inner), self.size
        outer, inner = (cut(data, one) for data, one in zip(whole, size, strict=True))
        j = jr.randint(outer_key, (), 0, _length(outer))
        i = jr.randint(inner_key, (batches,), 0, _length(inner))
        take = lambda data, at: jax.tree.map(lambda a: a[at], data)
        return Sample(take(outer, j), take(inner, i), rest, whole, (j, i))


def as_blocks(source: Minibatches) -> Blocks:
    """Blocks of the same data, of the sizes nearest to those of the minibatches."""
    pairs = zip((source.outer, source.inner), source.size, strict=True)
    outer, inner = (_nearest_division(_length(data), one) for data, one in pairs)
    return Blocks(source.outer, source.inner, (outer, inner))


def cut(data: PyTree[Array], size: int) -> PyTree[Array]:
    """The blocks of some data, stacked on a new leading axis."""
    return jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), data)


def _check_division(name: str, length: int, size: int) -> None:
    if length % size:
        raise errors.Mistake(
            f"`size` ({name}) must divide the {length} examples, but it is {size}; "
            f"the nearest that does is {_nearest_division(length, size)}."
        )


def _nearest_division(length: int, size: int) -> int:
    fit = [n for n in range(1, length + 1) if length % n == 0]
    return min(fit, key=lambda n: abs(n - size))

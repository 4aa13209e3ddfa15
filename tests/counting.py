"""A problem that notes every oracle call: what was asked, where, and on which examples."""

from collections import Counter
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from biadam import Problem


class Log:
    """The notes of one run; compared by identity, so that it can be a static field."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, tuple[float, ...], tuple[int, ...]]] = []

    def note(self, kinds: tuple[str, ...], x: PyTree, batch: PyTree) -> None:
        def keep(x: Any, index: Any) -> None:
            where = tuple(np.asarray(x).ravel().tolist())
            ids = tuple(np.asarray(index).ravel().tolist())
            self.notes.extend((kind, where, ids) for kind in kinds)

        jax.debug.callback(keep, x, batch["index"])

    def counts(self, size: int | None = None) -> Counter[str]:
        """Calls of each kind; a look at more than ``size`` examples counts its minibatches."""
        jax.effects_barrier()
        calls = Counter()
        for kind, _, ids in self.notes:
            calls[kind] += 1 if size is None else -(-len(ids) // size)
        return calls


class Counting(Problem):
    """Delegates every oracle to the plain problem, and notes it."""

    plain: Problem = None
    log: Log = eqx.field(static=True, default=None)

    def __init__(self, plain: Problem):
        self.outer, self.inner = plain.outer, plain.inner
        self.outer_set, self.inner_set = plain.outer_set, plain.inner_set
        self.plain, self.log = plain, Log()

    def outer_gradients(self, x, y, batch):
        self.log.note(("outer_gradient",), x, batch)
        return self.plain.outer_gradients(x, y, batch)

    def inner_gradient(self, x, y, batch):
        self.log.note(("inner_gradient",), x, batch)
        return self.plain.inner_gradient(x, y, batch)

    def inner_gradients(self, x, y, batch):
        self.log.note(("inner_gradient",), x, batch)
        return self.plain.inner_gradients(x, y, batch)

    def hessian_product(self, x, y, batch, u):
        self.log.note(("hessian_product",), x, batch)
        return self.plain.hessian_product(x, y, batch, u)

    def cross_product(self, x, y, batch, u):
        self.log.note(("cross_product",), x, batch)
        return self.plain.cross_product(x, y, batch, u)

    def products(self, x, y, batch, u):
        self.log.note(("hessian_product", "cross_product"), x, batch)
        return self.plain.products(x, y, batch, u)

    def gradient_and_products(self, x, y, batch, u):
        self.log.note(("inner_gradient", "hessian_product", "cross_product"), x, batch)
        return self.plain.gradient_and_products(x, y, batch, u)

"""How a task is made: what is sent to other processes in place of the task and its closures."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..errors import Mistake, unknown
from ..tasks import Task


class Recipe:
    """A function that makes a task for a seed, and its other arguments.

    Args:
        make: makes the task; its argument ``seed`` names the split, the corruption and the draws.
            It is sent to other processes by its name if it can be imported, otherwise as it is.
        arguments: the others that it gets.
    """

    def __init__(self, make: Callable[..., Task], arguments: Mapping[str, Any]):
        if not callable(make):
            raise Mistake(
                f"`task` must be a function that makes a task for a seed, such as "
                f"biadam.tasks.hyper_cleaning, but it is {type(make).__name__}."
            )
        known = inspect.signature(make).parameters
        if "seed" not in known:
            raise Mistake(
                f"`task` must take an argument `seed`, which names the split and the draws, but "
                f"{_name(make)} has none."
            )
        if "seed" in arguments:
            raise Mistake(
                "`options` must leave `seed` out: seeds to tune with and seeds to report are "
                "chosen apart, by the comparison."
            )
        for name in arguments:
            if name not in known:
                raise unknown(f"argument of {_name(make)}", name, known)
        self.make, self.arguments = make, dict(arguments)
        self.digest = digest(_name(make), _source(make), self.arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.make, self.digest) == (other.make, other.digest)

    def __hash__(self) -> int:
        return hash((self.make, self.digest))

    def task(self, seed: int) -> Task:
        """The task of a seed."""
        return _made(self, seed)


@lru_cache(maxsize=8)
def _made(recipe: Recipe, seed: int) -> Task:
    """Kept, so that the trials of one process share a task and the programs compiled for it."""
    return recipe.make(**recipe.arguments, seed=seed)


def digest(*parts: PyTree) -> str:
    """The sha256 of the arrays and the texts of all else in some pytrees."""
    hashed = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(parts, is_leaf=lambda leaf: leaf is None)
    for path, leaf in leaves:
        hashed.update(jax.tree_util.keystr(path).encode())
        if isinstance(leaf, jax.Array | np.ndarray):
            array = np.asarray(leaf)
            hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            hashed.update(repr(leaf).encode())
    return hashed.hexdigest()


def _name(make: Callable[..., Task]) -> str:
    return f"{make.__module__}.{make.__qualname__}"


def _source(make: Callable[..., Task]) -> str:
    try:
        return inspect.getsource(make)
    except (OSError, TypeError):
        return ""

"""How a task is made: what is sent to other processes in place of the task and its closures."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from ..errors import Mistake, unknown
from ..tasks import Task
from .fingerprint import digest

NUMERICS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)


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
        self.digest = digest(make, _source(make), sorted(self.arguments.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.make, self.digest) == (other.make, other.digest)

    def __hash__(self) -> int:
        return hash((self.make, self.digest))

    def task(self, seed: int) -> Task:
        """The task of a seed."""
        return _made(self, seed, tuple(numerics().values()))


@lru_cache(maxsize=8)
def _made(recipe: Recipe, seed: int, _: tuple[Any, ...]) -> Task:
    """Kept, so that the trials of one process share a task and the programs compiled for it."""
    return recipe.make(**recipe.arguments, seed=seed)


def numerics() -> dict[str, Any]:
    """What JAX computes in, as far as results depend on it; other processes have to be told."""
    return {name: getattr(jax.config, name) for name in NUMERICS}


def _name(make: Callable[..., Task]) -> str:
    named = inspect.isroutine(make) or inspect.isclass(make)
    return f"{make.__module__}.{make.__qualname__}" if named else repr(make)


def _source(make: Callable[..., Task]) -> str:
    """The file that it stands in, with the functions and the numbers beside it."""
    try:
        return Path(inspect.getsourcefile(make) or "").read_text()
    except (OSError, TypeError):
        return ""

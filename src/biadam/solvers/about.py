"""What is known of each method beside its code: where it comes from and what it takes."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..solver import AbstractSolver

Factory = TypeVar("Factory", bound=Callable[..., AbstractSolver])


class About(NamedTuple):
    """A method's entry in the table of methods."""

    paper: str  # authors, short title
    year: int
    arxiv: str
    loop: str  # single or double
    complexity: str  # samples for E |grad F| <= eps, or what the theory has instead
    sets: tuple[bool, bool]  # whether it takes constraints on (x, y)


METHODS: dict[str, About] = {}


def method(about: About) -> Callable[[Factory], Factory]:
    """Enter a factory into the table of methods."""

    def enter(factory: Factory) -> Factory:
        METHODS[factory.__name__] = about
        return factory

    return enter

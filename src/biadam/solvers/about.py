"""What is known of each method beside its code: where it comes from and what it takes."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax

from ..problem import Calls
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
FACTORIES: dict[str, Callable[..., AbstractSolver]] = {}


def method(about: About) -> Callable[[Factory], Factory]:
    """Enter a factory into the table of methods."""

    def enter(factory: Factory) -> Factory:
        METHODS[factory.__name__], FACTORIES[factory.__name__] = about, factory
        return factory

    return enter


def calls_per_step(solver: AbstractSolver, steps: int = 200) -> Calls:
    """The oracle calls of one step, counted over some steps on the test bed."""
    from ..driver import run
    from ..tasks import Quadratic

    bed = Quadratic((2, 3), condition=3.0)
    go = lambda n: (
        run(
            bed.problem, solver, bed.full(), bed.x0, bed.y0, steps=n, key=jax.random.key(0)
        ).oracle_calls
    )
    begun, ended = go(0), go(steps)
    return Calls(*((ended[kind] - begun[kind]) / steps for kind in Calls._fields))


def table() -> list[dict[str, Any]]:
    """The table of methods, a row each."""
    from . import __all__ as names

    rows = []
    for name in names:
        about = METHODS[name]
        calls = calls_per_step(FACTORIES[name]())
        needs = [what for what, n in (("HVP", calls[2]), ("JVP", calls[3])) if n]
        rows.append(
            {
                "name": name,
                "paper": about.paper,
                "year": about.year,
                "arxiv": about.arxiv,
                "loop": about.loop,
                "needs": " ".join(needs) or "first order",
                "complexity": about.complexity,
                "oracle_calls": calls._asdict(),
                "sets": {"x": about.sets[0], "y": about.sets[1]},
            }
        )
    return rows

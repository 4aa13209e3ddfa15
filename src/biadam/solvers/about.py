"""What is known of each method beside its code: where it comes from and what it takes."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .. import tree
from ..problem import Calls
from ..solver import AbstractSolver
from .space import Knob, common

Factory = TypeVar("Factory", bound=Callable[..., AbstractSolver])


class About(NamedTuple):
    """A method's entry in the table of methods."""

    paper: str  # authors, short title
    year: int
    arxiv: str
    loop: str  # single or double
    complexity: str  # samples for E |grad F| <= eps, or what the theory has instead
    sets: tuple[bool, bool]  # whether it takes constraints on (x, y)
    dense: bool = False  # whether it keeps the second derivatives as matrices
    penalised: bool = False  # whether its y minimises f plus a penalty, and is not y*(x)
    adaptive: bool = False  # whether its loops end at a tolerance, so that its calls vary


METHODS: dict[str, About] = {}
FACTORIES: dict[str, Callable[..., AbstractSolver]] = {}
SPACES: dict[str, tuple[Knob, ...]] = {}  # what a search varies


def method(about: About, also: tuple[Knob, ...] = ()) -> Callable[[Factory], Factory]:
    """Enter a factory into the table of methods.

    Args:
        about: the entry.
        also: what a search varies beside the step sizes of both levels and of the hypergradient.
    """

    def enter(factory: Factory) -> Factory:
        name = factory.__name__
        METHODS[name], FACTORIES[name] = about, factory
        SPACES[name] = (*common(factory), *also)
        return factory

    return enter


P = 30  # inner variables where calls are counted


def calls_per_step(solver: AbstractSolver, steps: int = 200) -> Calls:
    """The oracle calls of one step, counted over some steps on the test bed.

    Its p is above the length of any series, so that conjugate gradients use what they are given.
    """
    from ..tasks import Quadratic

    bed = Quadratic((2, P), condition=30.0)
    data, key = bed.full(), jax.random.key(0)

    @eqx.filter_jit
    def count(solver: AbstractSolver) -> Calls:
        look = lambda t: data(key, t, solver.batches)
        state, info = solver.init(bed.problem, bed.x0, bed.y0, look(0))

        def step(t: Array, carry: tuple[Any, Calls]) -> tuple[Any, Calls]:
            state, info = solver.step(bed.problem, carry[0], look(t))
            return state, carry[1].plus(info.calls)

        none = jax.tree.map(jnp.zeros_like, info.calls)
        return lax.fori_loop(1, steps + 1, step, (state, none))[1]

    return Calls(*(int(n) / steps for n in count(tree.with_arrays(solver))))


def table() -> list[dict[str, Any]]:
    """The table of methods, a row each."""
    from . import __all__ as names

    rows = []
    for name in names:
        about = METHODS[name]
        calls = calls_per_step(FACTORIES[name]())
        products = [what for what, n in (("HVP", calls[2]), ("JVP", calls[3])) if n]
        needs = f"dense, p = {P}" if about.dense else " ".join(products) or "first order"
        needs += " (adaptive)" if about.adaptive else ""
        rows.append(
            {
                "name": name,
                "paper": about.paper,
                "year": about.year,
                "arxiv": about.arxiv,
                "loop": about.loop,
                "needs": needs,
                "complexity": about.complexity,
                "oracle_calls": calls._asdict(),
                "sets": {"x": about.sets[0], "y": about.sets[1]},
            }
        )
    return rows

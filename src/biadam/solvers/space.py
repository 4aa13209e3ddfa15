"""Where a search looks: factors around a method's numbers as a task sets them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from .. import schedules


class Knob(NamedTuple):
    """A number of a method, and the range of factors that a search tries on it."""

    argument: str  # of the factory
    where: Callable[[Any], Any]  # the number in the argument
    low: float
    high: float


whole = lambda argument: argument

OUTER = Knob("step_size", lambda pair: pair[0], 0.1, 10.0)
INNER = Knob("step_size", lambda pair: pair[1], 0.1, 5.0)  # too long diverges, so more room below
FIELD = Knob("hypergradient", lambda field: field.step_size, 0.2, 5.0)


ETA = Knob("mixing", whole, 1.0, 10.0)  # along with it rise the rates of the fresh field
NAMED = (
    Knob("system_step", whole, 0.2, 5.0),
    Knob("solution_step", whole, 0.2, 2.0),
    Knob("penalty", whole, 0.1, 10.0),
)


def common(factory: Callable[..., Any]) -> tuple[Knob, ...]:
    """The knobs that a method has by its arguments."""
    arguments = inspect.signature(factory).parameters
    steps = (OUTER, INNER) if "step_size" in arguments else ()
    field = arguments.get("hypergradient")
    fields = dataclasses.fields(field.default) if field is not None else ()
    series = (FIELD,) if "step_size" in {f.name for f in fields} else ()
    return (*steps, *series, *(knob for knob in NAMED if knob.argument in arguments))


def settings(
    factory: Callable[..., Any], knobs: tuple[Knob, ...], base: Mapping[str, Any], count: int
) -> list[dict[str, Any]]:
    """So many settings of a method, as arguments of its factory: the base, then some around it.

    A method without knobs has the base alone.

    Args:
        factory: makes the method.
        knobs: what is varied.
        base: the arguments that a task gives; the others are the factory's defaults.
        count: how many. The first n of more settings are the same n.
    """
    defaults = inspect.signature(factory).parameters
    base = {**{knob.argument: defaults[knob.argument].default for knob in knobs}, **base}
    knobs = tuple(knob for knob in knobs if _applies(knob, base[knob.argument]))
    found = [base]
    for row in evenly(count - 1 if knobs else 0, len(knobs)):
        new = dict(base)
        for knob, u in zip(knobs, row, strict=True):
            factor = knob.low * (knob.high / knob.low) ** float(u)
            turn = lambda number, factor=factor: schedules.scaled(number, factor)
            new[knob.argument] = eqx.tree_at(knob.where, new[knob.argument], replace_fn=turn)
        found.append(new)
    return found


def _applies(knob: Knob, value: Any) -> bool:
    """Whether a task's own value, which may be a part of another kind, has the number."""
    try:
        knob.where(value)
    except AttributeError:
        return False
    return True


def evenly(count: int, dimensions: int) -> np.ndarray:
    r"""So many points that fill the unit cube evenly, however many they are.

    The additive sequence whose steps are powers of the root of :math:`z^{d+1} = z + 1`, which is
    the golden ratio in one dimension.
    """
    root = 2.0
    for _ in range(100):
        root = (1 + root) ** (1 / (dimensions + 1))
    step = root ** -np.arange(1.0, dimensions + 1)
    return (0.5 + np.arange(1, count + 1)[:, None] * step) % 1

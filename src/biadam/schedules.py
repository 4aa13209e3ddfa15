r"""How fast: the step number t gives eta_t, and eta_t the rates beta_{t+1} and alpha_{t+1}.

A step size, a factor of it (``mixing``) and a weight of a penalty may be a schedule in place of a
number: a function of the step number, such as `PowerDecay` here or any schedule of
`optax.schedules`. Rates are functions of eta, and other numbers stay what they are.

The numbers of `PowerDecay` and `Scaled` are seen by a compiled program as its arguments, so that
changing one recompiles nothing. Those of a schedule of optax are hidden in a function: another
number makes another function, and another compilation.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from . import errors
from .problem import Levels, first_line

Number = Any  # a float, a scalar array (in a sweep), or a schedule


def at(number: Number, step: Array) -> Array:
    """The value of a number or schedule at a step."""
    try:
        value = jnp.asarray(number(step) if callable(number) else number)
    except Exception as error:
        raise errors.Mistake(
            f"a schedule must be a function of the step number that returns one number, but "
            f"{getattr(number, '__name__', type(number).__name__)} fails: {first_line(error)}"
        ) from error
    if value.shape != ():
        raise errors.Mistake(
            f"a step size, rate or factor must be one number, or a schedule that returns one, but "
            f"its shape is {value.shape}; scale the coordinates of the variable instead."
        )
    return value


class PowerDecay(eqx.Module):
    r""":math:`\eta_t = k / (m + t)^p`.

    The paper has p = 1/2 for BiAdam and p = 1/3 for VR-BiAdam; its theorems ask for m of at least
    ``max(k, c1 k, c2 k) ** (1 / p)``, so that no rate exceeds 1.
    """

    scale: float = 1.0  # k
    offset: float = 0.0  # m
    power: float = 0.5  # p

    def __check_init__(self) -> None:
        errors.number("PowerDecay.scale", self.scale, above=0)
        errors.number("PowerDecay.offset", self.offset, least=0)
        errors.number("PowerDecay.power", self.power, least=0)

    def __call__(self, step: Array) -> Array:
        """The value at step t, counted from 1."""
        t = jnp.asarray(step, jnp.result_type(float))
        return self.scale / (self.offset + t) ** self.power


class Scaled(eqx.Module):
    """A schedule times a factor."""

    schedule: Callable[[Array], Any]
    factor: float

    def __check_init__(self) -> None:
        errors.number("Scaled.factor", self.factor, above=0)

    def __call__(self, step: Array) -> Array:
        """The value at step t, counted from 1."""
        value = jnp.asarray(self.schedule(step))
        return jnp.asarray(self.factor, value.dtype) * value


def scaled(number: Number, factor: float) -> Number:
    """A number or schedule times a factor, to three digits where it can be said."""
    short = lambda value: float(f"{value * factor:.3g}")
    if isinstance(number, PowerDecay):
        return PowerDecay(short(number.scale), number.offset, number.power)
    if callable(number):
        return Scaled(number, float(f"{factor:.3g}"))
    return short(number)


class AbstractRates(eqx.Module):
    """The weights (beta, alpha) of the fresh field in the directions w and v."""

    @abc.abstractmethod
    def __call__(self, eta: Array) -> Levels:
        """The rates of the levels x, y and s, each in (0, 1], given eta_t."""


class Coupled(AbstractRates):
    r""":math:`\beta_{t+1} = c_2 \eta_t^q`, :math:`\alpha_{t+1} = c_1 \eta_t^q`, at most 1.

    The paper has q = 1 for BiAdam and q = 2 for VR-BiAdam. The level s follows the fresh field.
    """

    outer: float = 9.0  # c2
    inner: float = 9.0  # c1
    power: float = 1.0  # q

    def __check_init__(self) -> None:
        errors.number("Coupled.outer", self.outer, above=0)
        errors.number("Coupled.inner", self.inner, above=0)
        errors.number("Coupled.power", self.power, least=0)

    def __call__(self, eta: Array) -> Levels:
        """See `AbstractRates`."""
        to = lambda number: jnp.asarray(number, eta.dtype)
        rate = lambda c: jnp.minimum(to(1.0), to(c) * eta ** to(self.power))
        return Levels(rate(self.outer), rate(self.inner), jnp.ones(()))


class Constant(AbstractRates):
    """Rates that do not change; the level s has its own, by default that of plain descent."""

    outer: float = 1.0
    inner: float = 1.0
    system: float = 1.0

    def __check_init__(self) -> None:
        for name, rate in (("outer", self.outer), ("inner", self.inner), ("system", self.system)):
            errors.number(f"Constant.{name}", rate, above=0, most=1)

    def __call__(self, eta: Array) -> Levels:
        """See `AbstractRates`."""
        return Levels(jnp.asarray(self.outer), jnp.asarray(self.inner), jnp.asarray(self.system))


def check_number(name: str, value: Number) -> None:
    """Refuse a step size or factor that is neither positive nor a schedule."""
    if isinstance(value, type):
        raise errors.Mistake(
            f"`{name}` must be a number or a schedule, but it is the class {value.__name__}; "
            f"build one of it, {value.__name__}(...)."
        )
    if not callable(value):
        errors.number(name, value, above=0)


def check_pair(name: str, pair: Any) -> tuple[Number, Number]:
    """Refuse anything but a pair (outer, inner) of positive numbers or schedules."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise errors.Mistake(f"`{name}` must be a pair (outer, inner), but it is {pair!r}.")
    for part, value in zip(("outer", "inner"), pair, strict=True):
        check_number(f"{name}[{part}]", value)
    return pair[0], pair[1]


Schedule = Callable[[Array], Array]

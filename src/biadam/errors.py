"""The one exception for mistakes of the user's, and the checks that raise it."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any


class Mistake(ValueError):
    """Something the caller can put right; the message is one sentence that says how."""


def unknown(kind: str, name: str, known: Iterable[str]) -> Mistake:
    """The mistake of naming what does not exist, with the nearest name that does."""
    names = sorted(known)
    meant = nearest(name, names)
    if meant is not None:
        hint = f"did you mean {meant!r}?"
    else:
        hint = f"choose one of {', '.join(names)}." if names else "there are none."
    return Mistake(f"there is no {kind} {name!r}: {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, if any is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return near[0] if near else None


def number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Refuse a number outside its range or infinite; arrays of a sweep and tracers pass unseen."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        import jax  # here, so that the command line's help does not wait for it
        import numpy as np

        if isinstance(value, jax.Array | np.ndarray):
            return
        if isinstance(value, np.floating | np.integer):
            return number(name, float(value), above=above, least=least, most=most)
        raise Mistake(f"`{name}` must be a number, but it is {value!r}.")
    if not (math.isfinite(value) and above < value and least <= value <= most):
        bounds = [
            f"above {above:g}" if above > -math.inf else "",
            f"at least {least:g}" if least > -math.inf else "",
            f"at most {most:g}" if most < math.inf else "",
            "finite" if math.isinf(value) else "",
        ]
        wanted = " and ".join(b for b in bounds if b) or "finite"
        raise Mistake(f"`{name}` must be {wanted}, but it is {value!r}.")


def count(name: str, value: Any, *, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise Mistake(f"`{name}` must be a whole number of at least {least}, but it is {value!r}.")


def part(name: str, value: Any, kind: type, home: str) -> None:
    """Refuse what is not a part of the right kind."""
    if not isinstance(value, kind):
        raise Mistake(f"`{name}` must be one of biadam.{home}, but it is {value!r}.")

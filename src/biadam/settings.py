"""Settings as text: Python literals, and the parts of a method by the names they have in Python."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from . import double_loop, estimators, hypergradients, metrics, penalty, schedules, sets
from .errors import Mistake, unknown


def parse(pairs: Sequence[str], factory: Callable[..., Any]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs into keyword arguments of a factory.

    A value is a literal, ``0.1`` or ``0.1, 0.01``, or builds a part of a method, such as
    ``NeumannSum(terms=10, step_size=0.5)`` or ``Adam(floor=1e-4, signal=momentum)``.
    """
    found = (_pair(pair, "--set", factory) for pair in pairs)
    return {key: read(text, f"--set {key}") for key, text in found}


def parse_grid(pairs: Sequence[str], factory: Callable[..., Any]) -> dict[str, list[Any]]:
    """Read ``KEY=VALUE;VALUE;...`` into the values that a search tries of each argument."""
    found = (_pair(pair, "--grid", factory) for pair in pairs)
    return {key: [read(v, f"--grid {key}") for v in text.split(";")] for key, text in found}


def read(text: str, where: str) -> Any:
    """The value that a text says; ``where`` names the option it came by."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise Mistake(f"`{where}` can't be read: {text!r} is not a value.") from error
    return _value(where, node)


def show(value: Any) -> str:
    """The text that `read` makes the same value of, for numbers, pairs and parts of methods."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (f"{f.name}={show(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, tuple | list):
        inside = ", ".join(show(item) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if inspect.isfunction(value):
        return value.__name__
    return repr(value)


def _pair(pair: str, option: str, factory: Callable[..., Any]) -> tuple[str, str]:
    known = inspect.signature(factory).parameters
    key, sign, text = pair.partition("=")
    key = key.strip()
    if not sign:
        raise Mistake(f"`{option}` takes KEY=VALUE, but it is {pair!r}.")
    if key not in known:
        raise unknown(f"setting of {factory.__name__}", key, known)
    return key, text


def _value(where: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _build(where, node)
    if isinstance(node, ast.Name):
        return _part(where, node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(where, item) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise Mistake(
            f"`{where}` must be a number, a pair of numbers or a part such as "
            f"LinearSystem(step_size=0.1), but it is {ast.unparse(node)!r}."
        ) from error


def _build(where: str, node: ast.Call) -> Any:
    name = ast.unparse(node.func)
    part = _part(where, name)
    positional = [_value(where, item) for item in node.args]
    named = {word.arg: _value(where, word.value) for word in node.keywords if word.arg}
    accepted = inspect.signature(part).parameters
    for word in named:
        if word not in accepted:
            raise unknown(f"setting of {name}", word, accepted)
    try:
        return part(*positional, **named)
    except TypeError as error:
        raise Mistake(f"`{where}` can't build {name}: {error}.") from error


def _part(where: str, name: str) -> Any:
    parts = {
        word: value
        for module in (double_loop, estimators, hypergradients, metrics, penalty, schedules, sets)
        for word, value in vars(module).items()
        if not word.startswith(("_", "Abstract"))
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(module.__name__)
    }
    if name not in parts:
        raise unknown(f"part for `{where}` named", name, parts)
    return parts[name]

"""Settings as text: Python literals, and the parts of a method by the names they have in Python."""

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from . import estimators, hypergradients, metrics, schedules, sets
from .errors import Mistake, unknown


def parse(pairs: Sequence[str], factory: Callable[..., Any]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs into keyword arguments of a factory.

    A value is a literal, ``0.1`` or ``0.1, 0.01``, or builds a part of a method, such as
    ``NeumannSum(terms=10, step_size=0.5)`` or ``Adam(floor=1e-4, signal=momentum)``.
    """
    known = inspect.signature(factory).parameters
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key = key.strip()
        if not sign:
            raise Mistake(f"`--set` takes KEY=VALUE, but it is {pair!r}.")
        if key not in known:
            raise unknown(f"setting of {factory.__name__}", key, known)
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise Mistake(f"`--set {key}` can't be read: {text!r} is not a value.") from error
        found[key] = _value(key, node)
    return found


def _value(key: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _build(key, node)
    if isinstance(node, ast.Name):
        return _part(key, node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(key, item) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise Mistake(
            f"`--set {key}` must be a number, a pair of numbers or a part such as "
            f"LinearSystem(step_size=0.1), but it is {ast.unparse(node)!r}."
        ) from error


def _build(key: str, node: ast.Call) -> Any:
    name = ast.unparse(node.func)
    part = _part(key, name)
    positional = [_value(key, item) for item in node.args]
    named = {word.arg: _value(key, word.value) for word in node.keywords if word.arg}
    accepted = inspect.signature(part).parameters
    for word in named:
        if word not in accepted:
            raise unknown(f"setting of {name}", word, accepted)
    try:
        return part(*positional, **named)
    except TypeError as error:
        raise Mistake(f"`--set {key}` can't build {name}: {error}.") from error


def _part(key: str, name: str) -> Any:
    parts = {
        word: value
        for module in (estimators, hypergradients, metrics, schedules, sets)
        for word, value in vars(module).items()
        if not word.startswith(("_", "Abstract")) and callable(value)
    }
    if name not in parts:
        raise unknown(f"part for `--set {key}` named", name, parts)
    return parts[name]

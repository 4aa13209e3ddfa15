"""A hash of what things hold, the same in every process: no address, no order of a set."""

import dis
import hashlib
import pickle
import sys
from functools import reduce
from types import (
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Mistake

# What a class or a function holds beside what was written: positions in a file, and caches.
BOOKKEEPING = {
    *("__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__"),
}
DESCRIPTORS = ClassMethodDescriptorType | GetSetDescriptorType | MemberDescriptorType


def digest(*parts: Any) -> str:
    """The sha256 of all that some things hold, down to what functions close over.

    What can be imported is told by its name, and what stands in the script that runs by what it
    says, so that the same script has the same hash tomorrow.
    """
    try:
        return _Reader().told(parts).hex()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise Mistake(
            f"`task`, its `options` and its source must be things that can be pickled, since "
            f"finished runs are found again by all that decides them, but: {error}."
        ) from error


class _Reader:
    """Goes once through everything that is held, also where it holds itself."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.kept: list[Any] = []  # a number names a thing only as long as it lives

    def told(self, value: Any) -> bytes:
        """The hash of a thing."""
        if type(value) in (type(None), bool, int, float, complex, str, bytes):
            return _hash(type(value).__name__.encode(), repr(value).encode())
        if id(value) not in self.known:
            self.known[id(value)] = _hash(b"within itself", str(len(self.known)).encode())
            self.kept.append(value)
            kind, parts = self._parts(value)
            self.known[id(value)] = _hash(kind.encode(), *parts)
        return self.known[id(value)]

    def _all(self, *values: Any) -> list[bytes]:
        return [self.told(value) for value in values]

    def _parts(self, value: Any) -> tuple[str, list[bytes]]:
        kind = type(value)
        if kind in (tuple, list):
            return kind.__name__, self._all(*value)
        if kind in (set, frozenset):
            return "set", sorted(self._all(*value))
        if kind is dict:
            return "dict", [of for pair in value.items() for of in self._all(*pair)]
        if isinstance(value, jax.Array):
            keys = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            numbers = np.asarray(jax.random.key_data(value) if keys else value)
            return "array", [*self._all(str(value.dtype), numbers.shape), numbers.tobytes()]
        if kind is np.ndarray and not value.dtype.hasobject:
            return "array", [*self._all(value.dtype.descr, value.shape), value.tobytes()]
        if isinstance(value, type | FunctionType) and _importable(value):
            return "name", self._all(value.__module__, value.__qualname__)
        if isinstance(value, DESCRIPTORS):
            return "descriptor", self._all(value.__name__, value.__objclass__)
        if isinstance(value, type):
            held = {k: v for k, v in vars(value).items() if k not in BOOKKEEPING}
            return "class", self._all(value.__qualname__, value.__bases__, sorted(held.items()))
        if kind is FunctionType:
            return "function", self._function(value)
        if kind is MethodType:
            return "method", self._all(value.__func__, value.__self__)
        if kind is CodeType:
            return "code", self._code(value)
        return "object", self._reduced(value)

    def _function(self, of: FunctionType) -> list[bytes]:
        names = sorted(_globals_of(of.__code__) & set(of.__globals__))
        return self._all(
            of.__code__,
            of.__defaults__,
            of.__kwdefaults__,
            [(name, of.__globals__[name]) for name in names],
            [_content(cell) for cell in of.__closure__ or ()],
            sorted((k, v) for k, v in vars(of).items() if k not in BOOKKEEPING),
        )

    def _code(self, of: CodeType) -> list[bytes]:
        names = (of.co_names, of.co_varnames, of.co_freevars, of.co_cellvars)
        counts = (of.co_argcount, of.co_posonlyargcount, of.co_kwonlyargcount, of.co_flags)
        return self._all(of.co_code, of.co_exceptiontable, names, counts, of.co_consts)

    def _reduced(self, value: Any) -> list[bytes]:
        """What a pickle of it would hold."""
        import cloudpickle

        table = cloudpickle.CloudPickler.dispatch_table
        made = table[type(value)](value) if type(value) in table else value.__reduce_ex__(4)
        if isinstance(made, str):  # a global of its module
            return self._all(type(value), made)
        parts = [list(part) if i in (3, 4) and part else part for i, part in enumerate(made[:5])]
        return self._all(*parts)


def _hash(*parts: bytes) -> bytes:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def _importable(value: Any) -> bool:
    if value.__module__ in ("builtins", "__main__"):
        return value.__module__ == "builtins"
    module = sys.modules.get(value.__module__)
    try:
        return reduce(getattr, value.__qualname__.split("."), module) is value
    except AttributeError:  # it stands within a function, or in no module that is known
        return False


def _globals_of(code: CodeType) -> set[str]:
    found = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return found.union(*(_globals_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None

"""A digest of a Python value with the code that it reaches, equal in another process as long as nobody edited it.

A pickle will not do: line numbers, file names, the order of sets, and ids that cloudpickle draws for classes differ
from process to process. So the value is walked: functions and classes of the user by their bytecode, defaults, closures
and the globals that they name; what is installed by its name; all other objects by what they give to be pickled.

A digest holds for one version of Python, as bytecode does.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import sys
from collections.abc import Iterable
from enum import Enum
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from blake3 import blake3

from hopyard.code.modules import users_modules

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_NAMED = {"LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
"""Instructions that look a name up beyond a function."""
_OF_THE_PROCESS = {
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__",
    "__slotnames__", "__abstractmethods__", "_abc_impl",
}  # fmt: skip
"""Attributes of a class that say where it stands, or that Python adds while it is used."""


def likeness(value: Any) -> str:
    """The digest; "" when there is none: the value holds something that cannot be pickled, or too much of it."""
    try:
        return _Walk().of(value).hex()[:32]
    except Exception:  # noqa: BLE001 - whatever the user's own __reduce__ raises
        return ""


class _Walk:
    """One walk. Owner of what it has seen, which stays alive so that no id is used twice."""

    def __init__(self) -> None:
        self._users = {module.__name__ for module in users_modules()} | {"__main__", "__mp_main__"}
        self._seen: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}
        """Id of what is being walked → how deep it stands."""

    def of(self, value: Any) -> bytes:
        """Its digest."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value))
        key = id(value)
        if key in self._seen:
            return self._seen[key][1]
        if key in self._open:
            return _hash("again", self._open[key])
        self._open[key] = len(self._open)
        try:
            found = self._walk(value)
        finally:
            del self._open[key]
        self._seen[key] = value, found
        return found

    def _walk(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (tuple, list):
            return _hash(kind.__name__, *map(self.of, value))
        if kind in (dict, MappingProxyType):
            return self._pairs(value.items())
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self.of, value)))
        if kind is CodeType:
            return self._code(value)
        if kind is FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if kind is MethodType:
            return _hash("method", self.of(value.__self__), self.of(value.__func__))
        if kind is ModuleType:
            return _hash("module", value.__name__)
        if kind is CellType:
            return self._cell(value, set())
        if kind in (staticmethod, classmethod):
            return _hash(kind.__name__, self.of(value.__func__))
        if kind is property:
            return _hash("property", *map(self.of, (value.fget, value.fset, value.fdel)))
        if kind is functools.cached_property:
            return _hash("cached", self.of(value.func))
        if kind in (GetSetDescriptorType, MemberDescriptorType):
            return _hash("slot", value.__name__)
        return self._object(value)

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> bytes:
        """Of a dict: its order says nothing."""
        found = sorted(((self.of(key), value) for key, value in items), key=lambda pair: pair[0])
        return _hash("dict", *(part for key, value in found for part in (key, self.of(value))))

    def _by_name(self, value: Any) -> bool:
        """Whether it is found under its name in what is installed."""
        name = getattr(value, "__module__", None)
        if name is None or name in self._users:
            return False
        found: Any = sys.modules.get(name)
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        return found is value

    def _function(self, value: FunctionType) -> bytes:
        if self._by_name(value):
            return _hash("function", value.__module__, value.__qualname__)
        names, attributes = _names(value.__code__)
        known = value.__globals__
        parts = [self.of(value.__code__), self.of(value.__defaults__), self.of(value.__kwdefaults__)]
        parts += [_hash(name, self._used(known[name], attributes)) for name in sorted(names & known.keys())]
        parts += [self._cell(cell, attributes) for cell in value.__closure__ or ()]
        return _hash("function", *parts, self.of(value.__dict__))

    def _cell(self, cell: CellType, attributes: set[str]) -> bytes:
        try:
            return _hash("cell", self._used(cell.cell_contents, attributes))
        except ValueError:
            return _hash("empty cell")

    def _used(self, value: Any, attributes: set[str]) -> bytes:
        """Of what a function looks up: of a module of the user only what may be asked of it."""
        if type(value) is not ModuleType or not self._of_user(value):
            return self.of(value)
        key = id(value)
        if key in self._open:
            return _hash("again", self._open[key])
        self._open[key] = len(self._open)
        try:
            inside = vars(value)
            used = sorted(attributes & inside.keys())
            return _hash("module", *(_hash(name, self._used(inside[name], attributes)) for name in used))
        finally:
            del self._open[key]

    def _of_user(self, module: ModuleType) -> bool:
        return module.__name__ in self._users or sys.modules.get(module.__name__) is not module

    def _code(self, code: CodeType) -> bytes:
        """All but where it stands."""
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return _hash("code", repr(counts), repr(names), code.co_code, code.co_exceptiontable, self.of(code.co_consts))

    def _class(self, value: type) -> bytes:
        if self._by_name(value):
            return _hash("class", value.__module__, value.__qualname__)
        parts = [_hash(value.__qualname__), self.of(type(value)), *map(self.of, value.__bases__)]
        items = {name: one for name, one in vars(value).items() if name not in _OF_THE_PROCESS}
        if issubclass(value, Enum):  # what the metaclass adds, a copy by pickle has otherwise
            items = {name: one for name, one in items.items() if type(one) is FunctionType and not _dunder(name)}
            items |= {f"={name}": member.value for name, member in value.__members__.items()}
        return _hash("class", *parts, self._pairs(items.items()))

    def _object(self, value: Any) -> bytes:
        """By what it gives to be pickled."""
        reduce = copyreg.dispatch_table.get(type(value))
        made: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(made, str):
            wrapped = getattr(value, "__wrapped__", None)  # functools.lru_cache
            if wrapped is not None and not self._by_name(value):
                return _hash("wrapped", type(value).__qualname__, self.of(wrapped))
            return _hash("global", str(getattr(value, "__module__", "")), made)
        call, arguments, state, items, pairs = (*made, None, None, None)[:5]
        parts = [self.of(call), self.of(arguments), self.of(state)]
        return _hash("object", *parts, *map(self.of, items or ()), self._pairs(pairs or ()))


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """(names that it and the code inside it look up beyond themselves, all names, those of attributes too)."""
    found = {line.argval for line in dis.get_instructions(code) if line.opname in _NAMED}
    attributes = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, others = _names(inner)
            found |= more
            attributes |= others
    return found, attributes


def _dunder(name: str) -> bool:
    return name.startswith("_") and name.endswith("_")


def _hash(*parts: str | bytes | int) -> bytes:
    """Of parts whose borders count."""
    hasher = blake3()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.digest()

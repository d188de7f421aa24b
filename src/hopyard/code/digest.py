"""The digest of code: of a function and all it reaches, by value, or of any object that holds some.

Two processes that run the same script give one digest, whatever `PYTHONHASHSEED`, and so do a script in which other
lines moved, a notebook's cell that is run again, and what a pickle of it gives back; any edit of what is reached gives
another. What counts:

    a function      its byte code and constants, defaults, closure, attributes, and the globals that it names; of the
                    user's modules the functions that it names, as far as code goes on, or the whole module where it is
                    handed on as a value; modules that its body imports (they are imported here)
    a class         bases, metaclass, all that is in its body
    an object       what its pickle would hold
    a library       name and version

Names of functions, line numbers and names of files do not count. What cannot be seen raises `Unseen`: compiled code of
the user's, ufuncs that the user made, `exec` and its like (`sys.modules`, Arrow's functions by name), and objects that
cannot be pickled, such as locks and open files. Nobody sees what code reads when it runs: files, the environment, the
clock, a database; nor what the user sets on a module of a library, or registers with an abstract class; nor `__name__`
and `__doc__` where code reads them; nor a field that an object's `__getstate__` leaves out.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

import cloudpickle
from blake3 import blake3

from hopyard.code.modules import is_extension, is_users, top

_PLAIN = {type(None), bool, int, float, complex, type(...), type(NotImplemented)}
_BLIND = {
    "builtins": ("eval", "exec", "globals", "__import__"),
    "importlib": ("import_module",),
    "sys": ("modules",),
    "pyarrow.compute": ("call_function", "get_function", "function_registry"),
}
"""Who names these may reach anything. Modules that are not imported are not reached."""
_UNTOLD = {
    "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__annotations_cache__", "__slotnames__", "_abc_impl", "_value2member_map_",
}  # fmt: skip
"""Entries of a class that do not say what it does, or that Python makes anew, or adds while it is used."""
_STATIC = 1 << 9
"""Of a type's flags; not set: made in C, not at run time."""
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_VARIABLE = _GLOBAL | {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_NAMED = (type, FunctionType, BuiltinFunctionType, functools._lru_cache_wrapper)
_NAME_ONLY = (GetSetDescriptorType, MemberDescriptorType, TypeVar, ParamSpec, TypeVarTuple)
_ABSENT = b"absent"


class Unseen(Exception):
    """Something that code reaches, and whose code or content cannot be told; the message names it."""


def digest(value: Any, imports: bool = True) -> str:
    """64 hexadecimal digits: equal ones, equal code and equal values that it holds.

    Args:
        value: a function, or anything else; tensors and arrays count with their content, which is read.
        imports: whether the user's modules that bodies of functions import count, and so are imported here.

    Raises:
        Unseen: it reaches something that cannot be seen.
    """
    try:
        return _Walk(imports).of(value).hex()
    except Unseen:
        raise
    except Exception as error:  # an object may do anything when it is asked for its parts
        raise Unseen(f"a {type(value).__name__}, {type(error).__name__}: {error}") from error


class _Walk:
    """One walk over what is reached. Objects that are met again count as equal to what they were the first time."""

    def __init__(self, imports: bool) -> None:
        self._imports = imports
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        """How deep what is being walked stands."""
        self._met: list[Any] = []
        """Kept alive, or an id might come again."""
        self._path: list[str] = []

    def of(self, obj: Any) -> bytes:
        kind = type(obj)
        if kind in _PLAIN:
            return _hash(kind.__name__, repr(obj).encode())
        if kind is str:
            return _hash("str", obj.encode("utf-8", "surrogatepass"))
        if kind is bytes:
            return _hash("bytes", obj)
        key = id(obj)
        if key in self._done:
            return self._done[key]
        if key in self._open:  # it is part of itself
            return _hash("again", str(self._open[key]).encode())
        self._open[key] = len(self._open)
        self._met.append(obj)
        try:
            self._done[key] = made = self._new(obj, kind)
        finally:
            del self._open[key]
        return made

    def _new(self, obj: Any, kind: type) -> bytes:
        if blind := _blind(obj):
            raise self._unseen(f"{blind} may reach anything")
        if kind in (tuple, list):
            return _hash(kind.__name__, *map(self.of, obj))
        if kind is dict:
            return _hash("dict", *(self.of(part) for item in obj.items() for part in item))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self.of, obj)))
        if kind is CodeType:
            return self._code(obj)
        if kind in _NAME_ONLY:
            return _hash("named", obj.__name__.encode())
        if isinstance(obj, ModuleType):
            return self._module(obj)
        if isinstance(obj, _NAMED) and (known := self._named(obj)) is not None:
            return known
        if isinstance(obj, type):
            return self._class(obj)
        if kind is FunctionType:
            return self._function(obj)
        if kind is functools._lru_cache_wrapper:
            return _hash("cached", self.of(obj.__wrapped__), self.of(obj.cache_parameters()))
        if kind is functools.cached_property:
            return _hash("cached", self.of(obj.func))
        return self._object(obj)

    def _named(self, obj: Any) -> bytes | None:
        """Of what a library has under its name; None for all else."""
        module, name = str(getattr(obj, "__module__", None)), str(getattr(obj, "__qualname__", ""))
        if is_users(module) and module in sys.modules:
            if isinstance(obj, BuiltinFunctionType) or is_extension(module):
                raise self._unseen(f"{module}.{name} is compiled")
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is obj or (isinstance(obj, type) and not obj.__flags__ & _STATIC):
            return _hash("name", module.encode(), name.encode(), _version(module))
        return None

    def _code(self, code: CodeType) -> bytes:
        facts = (
            code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        )  # fmt: skip
        return _hash("code", self.of(facts), *map(self.of, code.co_consts))

    def _function(self, function: FunctionType) -> bytes:
        code = function.__code__
        parts = [self.of(code), self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        parts += [self.of(dict(function.__dict__)), self._annotations(function)]
        scope = {name: function.__globals__[name] for name in _globals(code) if name in function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty still
                scope[name] = cell.cell_contents
        for name in sorted(_globals(code) - scope.keys()):
            if (builtin := getattr(builtins, name, None)) is not None:
                parts.append(self._part(name, builtin))
        for name, value in sorted(scope.items()):
            parts += [name.encode(), *self._variable(code, name, value)]
        for name, wanted in _imported(code, str(function.__globals__.get("__package__") or "")):
            parts += [name.encode(), *self._import(name, wanted)]
        return _hash("function", *parts)

    def _annotations(self, function: FunctionType) -> bytes:
        try:
            return self.of(function.__annotations__)
        except (Unseen, NameError):  # they decide nothing, unless somebody keeps them
            return _ABSENT

    def _variable(self, code: CodeType, name: str, value: Any) -> Iterator[bytes]:
        """What code takes of a variable that it names: of the user's modules only the attributes that it names."""
        chains = _attributes(code, name) if isinstance(value, ModuleType) else None
        for chain in sorted(chains or ()):
            found, at = value, 0
            while at < len(chain) and isinstance(found, ModuleType):
                found, at = self._attribute(found, chain[at]), at + 1
            if is_users(value.__name__) or _blind(found):
                yield _hash("attribute", ".".join(chain).encode(), self._part(f"{name}.{'.'.join(chain[:at])}", found))
        if chains is None or not is_users(value.__name__):
            yield self._part(name, value)

    def _attribute(self, module: ModuleType, name: str) -> Any:
        """An attribute of a module; of a library's only what is there: asking for more may import a framework."""
        if is_users(module.__name__):
            return getattr(module, name, _ABSENT)
        return vars(module).get(name, _ABSENT)

    def _import(self, name: str, wanted: list[str]) -> Iterator[bytes]:
        """What a body imports of the user's: the names, or the whole module where there are none."""
        if not self._imports or not is_users(top(name)):
            return
        try:
            module = importlib.import_module(name)
            __import__(name, fromlist=wanted)  # submodules among the names
            values = [getattr(module, one) for one in wanted]
        except Exception as error:
            raise self._unseen(f"import {name} fails, {type(error).__name__}: {error}") from error
        for one, value in zip(wanted, values, strict=True):
            yield self._part(f"{name}.{one}", value)
        if not wanted:
            yield self._part(name, module)
            yield self._part(top(name), sys.modules[top(name)])

    def _module(self, module: ModuleType) -> bytes:
        name = module.__name__
        if not is_users(name):
            return _hash("module", name.encode(), _version(name))
        if is_extension(name):
            raise self._unseen(f"{name} is compiled")
        held = vars(module).items()
        told = sorted((key, value) for key, value in held if not _dunder(key) or isinstance(value, FunctionType))
        return _hash("module", *(part for key, value in told for part in (key.encode(), self._part(key, value))))

    def _class(self, kind: type) -> bytes:
        parts = [self.of(type(kind)), *map(self.of, kind.__bases__)]
        for name, value in sorted(vars(kind).items()):
            if name in _UNTOLD or type(value) is MemberDescriptorType:  # of a slot, which __slots__ names
                continue
            if name == "__annotations__" and not value:  # Python makes them when somebody looks
                continue
            try:
                parts += [name.encode(), self._part(f"{kind.__name__}.{name}", value)]
            except Unseen:
                if not _dunder(name) or callable(value) or isinstance(value, (property, classmethod)):
                    raise  # all else of such a name a metaclass made, of what is seen
        return _hash("class", *parts)

    def _object(self, obj: Any) -> bytes:
        """What its pickle would hold; of a tensor its values, as its pickle has addresses in it."""
        torch = sys.modules.get("torch")
        try:
            if torch is not None and isinstance(obj, torch.Tensor) and obj.layout == torch.strided:
                values = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                return _hash("tensor", str(obj.dtype).encode(), str(tuple(obj.shape)).encode(), values.tobytes())
            reduce = cloudpickle.CloudPickler.dispatch_table.get(type(obj))
            reduced = obj.__reduce_ex__(4) if reduce is None else reduce(obj)
        except Exception as error:
            raise self._unseen(f"a {type(obj).__name__}, {type(error).__name__}: {error}") from error
        if isinstance(reduced, str):
            module = getattr(obj, "__module__", None) or type(obj).__module__
            if isinstance(obj, getattr(sys.modules.get("numpy"), "ufunc", ())):
                module = _home(obj)
                if not module:
                    raise self._unseen(f"a ufunc {reduced} that no library has")
            if is_users(module):
                raise self._unseen(f"a {type(obj).__name__} with the name {module}.{reduced}")
            return _hash("name", module.encode(), reduced.encode(), _version(module))
        # (callable, arguments, state, an iterator of items, one of pairs, who sets the state): not all need be there
        parts = [list(part) if number in (3, 4) and part is not None else part for number, part in enumerate(reduced)]
        return _hash("object", *map(self.of, parts))

    def _part(self, name: str, value: Any) -> bytes:
        with self._at(name):
            return self.of(value)

    @contextmanager
    def _at(self, name: str) -> Iterator[None]:
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def _unseen(self, what: str) -> Unseen:
        return Unseen(f"{', '.join(self._path)}: {what}" if self._path else what)


def _hash(kind: str, *parts: bytes) -> bytes:
    """Of parts of any length."""
    hasher = blake3(kind.encode())
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _blind(obj: Any) -> str:
    """The name of what may reach anything; "" for all else."""
    for module, names in _BLIND.items():
        for name in names if module in sys.modules else ():
            if obj is vars(sys.modules[module]).get(name, _ABSENT):
                prefix = "" if module in ("builtins", "importlib") else f"{module}."
                return f"{prefix}{name}{'()' if callable(obj) else ''}"
    return ""


def _home(ufunc: Any) -> str:
    """The compiled module of a library that has a ufunc, which itself tells only its name; "": no library has it."""
    held = (
        name
        for name, module in sys.modules.copy().items()
        if getattr(module, "__dict__", {}).get(ufunc.__name__) is ufunc and is_extension(name) and not is_users(name)
    )
    return min(held, default="")


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _version(module: str) -> bytes:
    """Of the library that a module is of; the standard library's is Python's."""
    known = getattr(sys.modules.get(top(module)), "__version__", None)
    return (known if isinstance(known, str) else f"{sys.version_info.major}.{sys.version_info.minor}").encode()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code, and those of the functions and classes in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _lines(code: CodeType) -> list[dis.Instruction]:
    return [line for line in dis.get_instructions(code) if line.opname != "EXTENDED_ARG"]


def _globals(code: CodeType) -> set[str]:
    """The globals that code names, without that which says whether a script is run or imported."""
    named = {str(line.argval) for one in _codes(code) for line in _lines(one) if line.opname in _GLOBAL}
    return named - {"__name__"}


def _attributes(code: CodeType, name: str) -> set[tuple[str, ...]] | None:
    """The attributes, and attributes of these, that code names of a variable; None where it hands the variable on."""
    found = set()
    for one in _codes(code):
        lines = _lines(one)
        for at, line in enumerate(lines):
            if line.opname in _VARIABLE and line.argval == name:
                chain = tuple(str(next.argval) for next in takewhile(_is_attribute, lines[at + 1 :]))
                if not chain:
                    return None
                found.add(chain)
    return found


def _is_attribute(line: dis.Instruction) -> bool:
    return line.opname in ("LOAD_ATTR", "LOAD_METHOD")


def _imported(code: CodeType, package: str) -> Iterator[tuple[str, list[str]]]:
    """(full name of a module, names taken from it) of each import in a body."""
    for one in _codes(code):
        lines = _lines(one)
        for at, line in enumerate(lines):
            if line.opname == "IMPORT_NAME":
                level, wanted = lines[at - 2].argval, lines[at - 1].argval
                yield importlib.util.resolve_name("." * level + str(line.argval), package), list(wanted or ())

"""The digest of code: of a function and all it reaches, by value, or of any object that holds some.

Two processes that run the same script compute the same digest, whatever `PYTHONHASHSEED`. It also stays the same when
other lines of the script move, when a notebook's cell is run again, and when the code is pickled and loaded; any edit
of what is reached changes it. What counts:

    a function      its byte code and constants, defaults, closure, attributes, and the globals that it names; of the
                    user's modules the functions that it names, as far as code goes on, or the whole module where it is
                    handed on as a value; modules that its body imports (they are imported here)
    a class         bases, metaclass, all that is in its body
    an object       what its pickle would hold
    a library       name and version

Names of functions, line numbers and names of files do not count. What cannot be seen raises `Unseen`: compiled code of
the user's, ufuncs that the user made, `exec` and its like (`sys.modules`, Arrow's functions by name), and objects that
cannot be pickled, such as locks and open files. The digest does not cover what code reads when it runs: files, the
environment, the clock, a database; nor what the user sets on a module of a library, or registers with an abstract
class; nor `__name__` and `__doc__` where code reads them; nor a field that an object's `__getstate__` leaves out.
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
_DYNAMIC = {
    "builtins": ("eval", "exec", "globals", "__import__"),
    "importlib": ("import_module",),
    "sys": ("modules",),
    "pyarrow.compute": ("call_function", "get_function", "function_registry"),
}
"""Code that names these may reach anything. Modules that are not imported are not reached."""
_IGNORED = {
    "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__annotations_cache__", "__slotnames__", "_abc_impl", "_value2member_map_",
}  # fmt: skip
"""Entries of a class that do not affect what it does, or that Python makes anew, or adds while the class is used."""
_HEAP_TYPE = 1 << 9
"""CPython's flag of types that are made at run time (`Py_TPFLAGS_HEAPTYPE`); static types of C lack it."""
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_VARIABLE = _GLOBAL | {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_NAMED = (type, FunctionType, BuiltinFunctionType, functools._lru_cache_wrapper)
_NAME_ONLY = (GetSetDescriptorType, MemberDescriptorType, TypeVar, ParamSpec, TypeVarTuple)
_ABSENT = b"absent"


class Unseen(Exception):
    """Raised for something that code reaches and whose code or content cannot be determined; the message names it."""


def digest(value: Any, imports: bool = True) -> str:
    """Return 64 hexadecimal digits: equal digits mean equal code and equal values that it holds.

    Args:
        value: a function, or anything else; tensors and arrays count with their content, which is read.
        imports: whether the user's modules that bodies of functions import count, and so are imported here.

    Raises:
        Unseen: the value reaches something that cannot be seen.
    """
    try:
        return _Walk(imports).of(value).hex()
    except Unseen:
        raise
    except Exception as error:  # an object may do anything when it is asked for its parts
        raise Unseen(f"a {type(value).__name__}, {type(error).__name__}: {error}") from error


class _Walk:
    """One walk over what is reached. An object that is reached again counts as it was the first time."""

    def __init__(self, imports: bool) -> None:
        self._imports = imports
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        """Id of each object that is being walked → its depth."""
        self._references: list[Any] = []
        """Keeps the objects alive, as an id might be used again."""
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
        self._references.append(obj)
        try:
            self._done[key] = result = self._new(obj, kind)
        finally:
            del self._open[key]
        return result

    def _new(self, obj: Any, kind: type) -> bytes:
        if name := _dynamic(obj):
            raise self._unseen(f"{name} may reach anything")
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
        if isinstance(obj, _NAMED) and (name_hash := self._named(obj)) is not None:
            return name_hash
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
        """Return the hash of an object that a library has under its name; None for all else."""
        module, name = str(getattr(obj, "__module__", None)), str(getattr(obj, "__qualname__", ""))
        if is_users(module) and module in sys.modules:
            if isinstance(obj, BuiltinFunctionType) or is_extension(module):
                raise self._unseen(f"{module}.{name} is compiled")
            return None
        target: Any = sys.modules.get(module)
        for part in name.split("."):
            target = getattr(target, part, None)
        if target is obj or (isinstance(obj, type) and not obj.__flags__ & _HEAP_TYPE):
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
        scope = {name: function.__globals__[name] for name in global_names(code) if name in function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # the cell is still empty
                scope[name] = cell.cell_contents
        for name in sorted(global_names(code) - scope.keys()):
            if (builtin := getattr(builtins, name, None)) is not None:
                parts.append(self._part(name, builtin))
        for name, value in sorted(scope.items()):
            parts += [name.encode(), *self._variable(code, name, value)]
        for name, names in _imported(code, str(function.__globals__.get("__package__") or "")):
            parts += [name.encode(), *self._import(name, names)]
        return _hash("function", *parts)

    def _annotations(self, function: FunctionType) -> bytes:
        try:
            return self.of(function.__annotations__)
        except (Unseen, NameError):  # they decide nothing, unless somebody keeps them
            return _ABSENT

    def _variable(self, code: CodeType, name: str, value: Any) -> Iterator[bytes]:
        """Yield what code uses of a variable that it names: of the user's modules only the attributes that it names."""
        chains = _attributes(code, name) if isinstance(value, ModuleType) else None
        for chain in sorted(chains or ()):
            obj, depth = value, 0
            while depth < len(chain) and isinstance(obj, ModuleType):
                obj, depth = self._attribute(obj, chain[depth]), depth + 1
            if is_users(value.__name__) or _dynamic(obj):
                yield _hash("attribute", ".".join(chain).encode(), self._part(f"{name}.{'.'.join(chain[:depth])}", obj))
        if chains is None or not is_users(value.__name__):
            yield self._part(name, value)

    def _attribute(self, module: ModuleType, name: str) -> Any:
        """Return an attribute of a module; of a library's, only one that it has by now: more may import a framework."""
        if is_users(module.__name__):
            return getattr(module, name, _ABSENT)
        return vars(module).get(name, _ABSENT)

    def _import(self, name: str, names: list[str]) -> Iterator[bytes]:
        """Yield what a body imports of the user's: the names, or the whole module where there are none."""
        if not self._imports or not is_users(top(name)):
            return
        try:
            module = importlib.import_module(name)
            __import__(name, fromlist=names)  # submodules among the names
            values = [getattr(module, attribute) for attribute in names]
        except Exception as error:
            raise self._unseen(f"import {name} fails, {type(error).__name__}: {error}") from error
        for attribute, value in zip(names, values, strict=True):
            yield self._part(f"{name}.{attribute}", value)
        if not names:
            yield self._part(name, module)
            yield self._part(top(name), sys.modules[top(name)])

    def _module(self, module: ModuleType) -> bytes:
        name = module.__name__
        if not is_users(name):
            return _hash("module", name.encode(), _version(name))
        if is_extension(name):
            raise self._unseen(f"{name} is compiled")
        entries = vars(module).items()
        counted = sorted((key, value) for key, value in entries if not _dunder(key) or isinstance(value, FunctionType))
        return _hash("module", *(part for key, value in counted for part in (key.encode(), self._part(key, value))))

    def _class(self, kind: type) -> bytes:
        parts = [self.of(type(kind)), *map(self.of, kind.__bases__)]
        for name, value in sorted(vars(kind).items()):
            if name in _IGNORED or type(value) is MemberDescriptorType:  # a slot's, which __slots__ names
                continue
            if name == "__annotations__" and not value:  # Python makes them when somebody looks
                continue
            try:
                parts += [name.encode(), self._part(f"{kind.__name__}.{name}", value)]
            except Unseen:
                if not _dunder(name) or callable(value) or isinstance(value, (property, classmethod)):
                    raise  # a metaclass made all else of such a name, from what is seen
        return _hash("class", *parts)

    def _object(self, obj: Any) -> bytes:
        """Return the hash of what a pickle would hold; of a tensor, of its values, as its pickle contains addresses."""
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
                module = _ufunc_module(obj)
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

    def _unseen(self, message: str) -> Unseen:
        return Unseen(f"{', '.join(self._path)}: {message}" if self._path else message)


def _hash(kind: str, *parts: bytes) -> bytes:
    """Return the hash of parts of any length."""
    hasher = blake3(kind.encode())
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _dynamic(obj: Any) -> str:
    """Return the name of what may reach anything; "" for all else."""
    for module, names in _DYNAMIC.items():
        for name in names if module in sys.modules else ():
            if obj is vars(sys.modules[module]).get(name, _ABSENT):
                prefix = "" if module in ("builtins", "importlib") else f"{module}."
                return f"{prefix}{name}{'()' if callable(obj) else ''}"
    return ""


def _ufunc_module(ufunc: Any) -> str:
    """Return the compiled module of a library that has a ufunc, which knows only its name; "" if no library has it."""
    names = (
        name
        for name, module in sys.modules.copy().items()
        if getattr(module, "__dict__", {}).get(ufunc.__name__) is ufunc and is_extension(name) and not is_users(name)
    )
    return min(names, default="")


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _version(module: str) -> bytes:
    """Return the version of the library that a module belongs to; the standard library's is Python's."""
    version = getattr(sys.modules.get(top(module)), "__version__", None)
    return (version if isinstance(version, str) else f"{sys.version_info.major}.{sys.version_info.minor}").encode()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of the functions and classes in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [instruction for instruction in dis.get_instructions(code) if instruction.opname != "EXTENDED_ARG"]


def global_names(code: CodeType) -> set[str]:
    """Return the globals that code names, without `__name__`, which tells whether a script is run or imported."""
    named = {str(i.argval) for nested in _codes(code) for i in _instructions(nested) if i.opname in _GLOBAL}
    return named - {"__name__"}


def _attributes(code: CodeType, name: str) -> set[tuple[str, ...]] | None:
    """Return the attributes, and their attributes, that code names of a variable; None if it passes it on."""
    chains = set()
    for nested in _codes(code):
        instructions = _instructions(nested)
        for index, instruction in enumerate(instructions):
            if instruction.opname in _VARIABLE and instruction.argval == name:
                chain = tuple(str(load.argval) for load in takewhile(_is_attribute, instructions[index + 1 :]))
                if not chain:
                    return None
                chains.add(chain)
    return chains


def _is_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")


def _imported(code: CodeType, package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (full name of a module, names imported from it) for each import in a body."""
    for nested in _codes(code):
        instructions = _instructions(nested)
        for index, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                level, names = instructions[index - 2].argval, instructions[index - 1].argval
                yield importlib.util.resolve_name("." * level + str(instruction.argval), package), list(names or ())

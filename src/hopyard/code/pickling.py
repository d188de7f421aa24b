"""Pickles in which the user's modules go by value and libraries by name.

So workers need no copy of the user's files, and a resumed run trains what was started, even if the files have changed.
"""

from __future__ import annotations

import dis
import importlib
import io
import logging
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from hopyard.code.digest import global_names
from hopyard.code.modules import is_users, top, users_modules
from hopyard.text import shown

log = logging.getLogger(__name__)

_OWN_STATE = ("__getstate__", "__reduce__", "__reduce_ex__")
"""A class that has one of these decides what of its attributes goes into a pickle."""
_REGISTRY = threading.RLock()
"""Held while our modules are in cloudpickle's registry, one for the whole process: several threads may start runs."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, without two of its faults.

    cloudpickle takes every attribute name of a function for a submodule that may be needed. `torch.classes` is one, of
    a type of its own that it cannot pickle: a recipe that uses `torch` and `ctx.classes` would fail.

    And it carries the globals that functions use, but not those that only the body of a class in a function uses:
    defaults, decorators, annotations.

    Attributes:
        reached: the packages of the functions and classes that it reached, in order.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.reached: dict[str, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and obj.__name__ in sys.modules:
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, (FunctionType, type)):
            self.reached[top(str(obj.__module__))] = None
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        reduction = super()._dynamic_function_reduce(func)
        scope = reduction[2][1]["__globals__"]
        for name in _named_in_classes(func.__code__):
            if name in func.__globals__:
                scope.setdefault(name, func.__globals__[name])
        return reduction


class _Unpickler(pickle.Unpickler):
    """Makes classes anew. cloudpickle gives the process that pickled a class by value this very class, and sets its
    attributes back to what they were: the user's class would be undone."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return partial(_anew, found) if name in ("_make_skeleton_class", "_make_skeleton_enum") else found


def _anew(make: Any, *arguments: Any) -> Any:
    *others, _, extra = arguments  # between them the number under which cloudpickle knows the class
    return make(*others, None, extra)


def loads(data: bytes) -> Any:
    """Return what `dumps` pickled. Nothing of it is what this process has, but modules and what goes by name.

    Raises:
        Exception: whatever unpickling raises.
    """
    return _Unpickler(io.BytesIO(data)).load()


def dumps(value: Any, *, quiet: bool = False, modules: Sequence[ModuleType] | None = None) -> bytes:
    """Return the pickle of `value`, with the code of `modules` by value; None: that of all modules of the user.

    A package of the user's folders that cannot go by value (a lock among its globals, a compiled part) goes by name,
    and a warning says so, unless `quiet`: workers then import it from files of their own.

    Raises:
        Exception: whatever pickling raised, where that does not help.
    """
    with _REGISTRY:
        modules = users_modules() if modules is None else modules
        reached: list[str] = []
        try:
            return _dumps(value, modules, reached)
        except Exception as error:
            suspects = [name for name in reversed(reached) if any(top(module.__name__) == name for module in modules)]
            for by_name in [[name] for name in suspects] + ([suspects] if len(suspects) > 1 else []):
                try:
                    data = _dumps(value, [module for module in modules if top(module.__name__) not in by_name], [])
                except Exception as other:  # noqa: BLE001 - the first one is raised below
                    log.debug("not with %s by name either: %s", by_name, other)
                    continue
                log.log(
                    logging.DEBUG if quiet else logging.WARNING,
                    "%s cannot be pickled by value (%s: %s), so it goes by name: workers import it from files that "
                    "they must have, and a resumed run from what these say by then",
                    " and ".join(by_name), type(error).__name__, error,
                )  # fmt: skip
                return data
            raise


def _dumps(value: Any, modules: Sequence[ModuleType], reached: list[str]) -> bytes:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        with _by_value(modules):
            pickler.dump(value)
    finally:
        reached.extend(pickler.reached)
    return buffer.getvalue()


def imports(value: Any) -> set[str]:
    """Return packages that loading the pickle of a value of the user's imports: all that its functions name as globals
    or hold in variables. Base classes and attributes of objects that pickle themselves are not looked at."""
    packages: set[str] = set()
    pending, visited = [value], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        module = part.__name__ if isinstance(part, ModuleType) else str(getattr(part, "__module__", None) or "")
        by_name = isinstance(part, (ModuleType, FunctionType, type)) and not is_users(module)
        if by_name:
            packages.add(top(module))
        else:
            pending += [each for _, each in _parts(part)]
    return packages


def culprit(value: Any, size: int = 0) -> str:
    """Return by which variables a value holds what cannot be pickled, or what is large in its pickle: " (through the
    global `helper`, the global `LOCK`)"; "" where no single variable is found. Pickles each by itself.

    Args:
        value: what was pickled: a function for example.
        size: bytes of its pickle, of which more than half are looked for; 0: it cannot be pickled.
    """
    path = _path(value, size, {id(value)})[isinstance(value, tuple) :]  # (main, args): which of them, the message says
    return f" (through {', '.join(path)})" if path else ""


def _path(value: Any, size: int, visited: set[int]) -> list[str]:
    for name, part in _parts(value):
        if id(part) in visited:
            continue
        visited.add(id(part))
        try:
            guilty = 2 * len(dumps(part, quiet=True)) > size > 0
        except Exception:  # noqa: BLE001 - whatever the user's own __reduce__ raises
            guilty = not size
        if guilty:
            return [name, *_path(part, size, visited)]
    return []


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the pickle of a value of the user's holds, with what it is called; of a library's objects nothing."""
    if isinstance(value, FunctionType):
        for name in sorted(global_names(value.__code__) & value.__globals__.keys()):
            yield f"the global `{name}`", value.__globals__[name]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # the cell is still empty
                yield f"the variable `{name}`", cell.cell_contents
        defaults, code = value.__defaults__ or (), value.__code__
        last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, default in {**dict(zip(last, defaults, strict=True)), **(value.__kwdefaults__ or {})}.items():
            yield f"the default of `{name}`", default
    elif isinstance(value, partial):
        yield "the function of a partial", value.func
        yield from ((f"argument {at} of a partial", argument) for at, argument in enumerate(value.args))
        yield from ((f"the argument `{name}` of a partial", argument) for name, argument in value.keywords.items())
    elif isinstance(value, MethodType):
        yield "the object of a method", value.__self__
    elif isinstance(value, (list, tuple)):
        yield from ((f"item {at}", item) for at, item in enumerate(value[:100]))
    elif isinstance(value, dict):
        yield from ((f"the key {shown(key)}", item) for key, item in islice(value.items(), 100))
    elif is_users(type(value).__module__) or (isinstance(value, type) and is_users(value.__module__)):
        kind = value if isinstance(value, type) else type(value)
        if value is not kind and not any(name in vars(base) for base in kind.__mro__[:-1] for name in _OWN_STATE):
            yield from ((f"the attribute `{name}`", item) for name, item in getattr(value, "__dict__", {}).items())
        for name, item in vars(kind).items():
            if isinstance(item, FunctionType) or not (hasattr(item, "__get__") or name.startswith("__")):
                yield f"`{kind.__name__}.{name}`", item


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    theirs = cloudpickle.list_registry_pickle_by_value()
    registered = []
    for module in modules:
        if module.__name__ in theirs:
            continue
        try:
            cloudpickle.register_pickle_by_value(module)
        except ValueError:
            continue
        registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _named_in_classes(code: CodeType) -> set[str]:
    """Return the names that the bodies of classes in a function look up."""
    names = {line.argval for line in dis.get_instructions(code) if line.opname in ("LOAD_NAME", "LOAD_CLASSDEREF")}
    inner = [_named_in_classes(const) for const in code.co_consts if isinstance(const, CodeType)]
    return names.union(*inner)

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
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from hopyard.code.modules import top, users_modules

log = logging.getLogger(__name__)

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


def dumps(value: Any) -> bytes:
    """Return the pickle of `value`.

    A package of the user's folders that cannot go by value (a lock among its globals, a compiled part) goes by name,
    and a warning says so: workers then import it from files of their own.

    Raises:
        Exception: whatever pickling raised, where that does not help.
    """
    with _REGISTRY:
        modules = users_modules()
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
                log.warning(
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

"""The one pickle of a run directory: recipe, data set, space, search and engine, as the user gave them.

Modules of the user (outside of site-packages and the standard library) are pickled by value, so that agents need no
copy of the user's files, and a resumed run trains what was started, not what the files say by then.
"""

from __future__ import annotations

import dis
import importlib
import io
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from hopyard.errors import RunDirectoryError, SpecError

_REGISTRY = threading.RLock()
"""Held while cloudpickle's registry, one for the whole process, is ours: runs may be started from several threads."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Cargo:
    """What the user gave."""

    recipe: Any
    data: Any
    space: Any
    search: Any
    engine: Any


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle takes every attribute name of a function for a submodule that may be needed. `torch.classes` is one,
    of a type of its own that it cannot pickle: a recipe that says `torch` and `ctx.classes` would fail.

    And it carries the globals that functions use, but not those that only the body of a class in a function uses:
    defaults, decorators, annotations."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and obj.__name__ in sys.modules:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        made = super()._dynamic_function_reduce(func)
        scope = made[2][1]["__globals__"]
        for name in _named_in_classes(func.__code__):
            if name in func.__globals__:
                scope.setdefault(name, func.__globals__[name])
        return made


def _named_in_classes(code: CodeType) -> set[str]:
    """The names that the bodies of classes in a function look up."""
    found = {line.argval for line in dis.get_instructions(code) if line.opname in ("LOAD_NAME", "LOAD_CLASSDEREF")}
    inner = [_named_in_classes(const) for const in code.co_consts if isinstance(const, CodeType)]
    return found.union(*inner)


def dump(value: Any, what: str, where: str = "the recipe") -> bytes:
    """Its pickle.

    Raises:
        SpecError: it cannot be pickled; names the reason.
    """
    try:
        with _by_value():
            buffer = io.BytesIO()
            _Pickler(buffer).dump(value)
            return buffer.getvalue()
    except Exception as error:
        raise SpecError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}. It must not hold open files, locks, "
            f"connections, sessions or generators: make them inside {where}"
        ) from error


def load(path: Path, python: str) -> Any:
    """What `dump` gave, from a file of a run that Python `python` wrote.

    Raises:
        RunDirectoryError: another Python, no file, or a module that it needs is not there.
    """
    if python != PYTHON:
        raise RunDirectoryError(
            f"{path} was written by Python {python}, this is {PYTHON}: pickled functions do not survive that; use "
            f"Python {python}, or give recipe= to hy.load_model"
        )
    try:
        return cloudpickle.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunDirectoryError(f"{path}: not there; the run directory is not whole") from None
    except Exception as error:
        raise RunDirectoryError(f"{path}: the recipe does not load: {type(error).__name__}: {error}") from error


def users_modules() -> list[ModuleType]:
    """Imported modules that are neither installed nor of the standard library nor ours."""
    paths = sysconfig.get_paths()
    installed = tuple({str(Path(paths[key])) for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    found = []
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        if name.split(".")[0] in ("__main__", "hopyard", "__mp_main__") or not isinstance(file, str):
            continue
        if not file.startswith(installed) and "site-packages" not in file and "dist-packages" not in file:
            found.append(module)
    return found


@contextmanager
def _by_value() -> Iterator[None]:
    with _REGISTRY:
        theirs = cloudpickle.list_registry_pickle_by_value()
        registered = []
        for module in users_modules():
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

"""Calls functions once a module is imported, in a process that may never import it.

A task's process has settings and corrections for frameworks, but does not know which framework will be imported:
`when_imported` waits for the import. The real module is loaded by its own loader, and then passed to the function.

`find_spark_files` is one of them: it makes `SparkFiles.get` work where agents run recipes and programs, as in any other
task of Spark. pyspark tells its own Python workers alone where the files of `--files` and `SparkContext.addFile` lie.
The supervisor, which is one of them, passes that on to its agent in a variable, and so to all that the agent starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hopyard.sparkapi import SPARK_FILES


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` once, right after the module of this full name is loaded, or now if it is loaded already.

    Functions for one module are called in the order in which they were registered. The import raises what they raise.
    """
    if name in sys.modules:
        callback(sys.modules[name])
        return
    finder = next((entry for entry in sys.meta_path if isinstance(entry, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(callback)


def find_spark_files() -> None:
    """Tell pyspark, once it is imported, where the files lie. Nothing where no task of Spark started this process."""
    folder = os.environ.get(SPARK_FILES)
    if not folder:
        return

    def tell(module: ModuleType) -> None:
        files: Any = module
        files.SparkFiles._root_directory = folder
        files.SparkFiles._is_running_on_worker = True

    when_imported("pyspark.core.files", tell)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self.waiting)
        return spec


class _CallbackLoader(Loader):
    """Loads the module as its own loader does, then calls the functions that wait for it."""

    def __init__(self, real: Loader, waiting: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._real, self._waiting = real, waiting

    def __getattr__(self, name: str) -> Any:
        """Get the real loader's attributes, for code that only reads the module's source or resources."""
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module and call the functions. The module has its own loader afterwards, for code that looks for its
        source. The import system returns what is in `sys.modules` then: a function may put something else there."""
        name = module.__name__
        if module.__spec__ is not None:
            module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        for callback in self._waiting.pop(name, ()):
            callback(module)

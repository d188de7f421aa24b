"""What shall be done once a module is imported, in a process that may never import it.

A task's process knows things that frameworks want to know, or do badly, and does not know which framework it will see:
`when_imported` waits for the import. The real module is loaded by its own loader, and then handed to the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def when_imported(name: str, do: Callable[[ModuleType], None]) -> None:
    """Call `do(module)` right after the module of this full name has been loaded, once; now, where it is there already.

    Functions for one module are called in the order in which they were given. What they raise, the import raises.
    """
    if name in sys.modules:
        do(sys.modules[name])
        return
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(do)


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
            spec.loader = _Then(spec.loader, self.waiting)
        return spec


class _Then(Loader):
    """Loads the module as its own loader does, then calls those that wait for it."""

    def __init__(self, real: Loader, waiting: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._real, self._waiting = real, waiting

    def __getattr__(self, name: str) -> Any:
        """Its source and resources, for who only looks for the module."""
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Its own loader stands in the module afterwards, for those that look for its source. The import system returns
        what stands in `sys.modules` then: a function may put something else there."""
        name = module.__name__
        if module.__spec__ is not None:
            module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        for do in self._waiting.pop(name, ()):
            do(module)

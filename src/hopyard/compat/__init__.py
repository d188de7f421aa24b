"""Libraries that Hopyard can stand for: their public names, thin, on top of its own.

    import hopyard.compat
    hopyard.compat.install()                       # from here on, in this process and in those of its programs:
    from tensorflowonspark import TFCluster        # is hopyard.compat.tensorflowonspark.TFCluster

Without `install`, `from hopyard.compat.tensorflowonspark import TFCluster` is the same module.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from hopyard.errors import SpecError

KNOWN = ("tensorflowonspark",)
"""Names that can be answered to."""
VARIABLE = "HOPYARD_COMPAT"
"""Environment variable: what a process of a program answers to, comma separated; it calls `install` on it first."""


def install(names: str = "tensorflowonspark") -> None:
    """Answers to the names of other libraries in this process, also where they are installed.

    Programs that are started from here by those names' own functions answer to them too. May be called again.

    Args:
        names: one of `KNOWN`, or several, comma separated.

    Raises:
        SpecError: another name; or the other library itself has been imported in this process before.
    """
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in KNOWN:
            raise SpecError(f"hopyard.compat stands for {', '.join(KNOWN)}, not for {name!r}")
        if name in installed():
            continue
        other = sys.modules.get(name)
        if other is not None:
            raise SpecError(
                f"{name} was imported from {getattr(other, '__file__', '?')} before hopyard.compat.install(): call "
                "install() first, before whatever imports it"
            )
        sys.meta_path.insert(0, _Finder(name))
        importlib.invalidate_caches()


def installed() -> list[str]:
    """The names that this process answers to."""
    return [finder.name for finder in sys.meta_path if isinstance(finder, _Finder)]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `name.x` as `hopyard.compat.name.x`: one module under two names, not two modules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of this name and what is in it; None for the rest."""
        if fullname != self.name and not fullname.startswith(f"{self.name}."):
            return None
        try:
            found = importlib.util.find_spec(f"{__name__}.{fullname}")
        except ModuleNotFoundError:
            found = None
        if found is None:
            return None  # Python's own error names the module that was asked for
        package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module under its own name; its spec is kept, as the import that is going on writes over it."""
        module = importlib.import_module(f"{__name__}.{spec.name}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been run: only its own spec is put back."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)

"""Stand-ins for other libraries: their public names, as a thin layer on top of Hopyard's own.

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

LIBRARIES = ("tensorflowonspark", "clusterone")
"""Names of libraries that `install` can replace."""
VARIABLE = "HOPYARD_COMPAT"
"""Environment variable: names for which a process of a program first calls `install`, comma separated."""


def install(names: str = "tensorflowonspark") -> None:
    """Makes imports of other libraries in this process find Hopyard's stand-ins, also where they are installed.

    Programs that the stand-ins start from here find them too. May be called again.

    Args:
        names: one of "tensorflowonspark" and "clusterone", or both, comma separated.

    Raises:
        SpecError: another name; or the other library itself has been imported in this process before.
    """
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in LIBRARIES:
            raise SpecError(f"hopyard.compat stands for {', '.join(LIBRARIES)}, not for {name!r}")
        if name in installed():
            continue
        original = sys.modules.get(name)
        if original is not None:
            raise SpecError(
                f"{name} was imported from {getattr(original, '__file__', '?')} before hopyard.compat.install(): call "
                "install() first, before whatever imports it"
            )
        sys.meta_path.insert(0, _Finder(name))
        importlib.invalidate_caches()


def installed() -> list[str]:
    """Return the names of the libraries that are replaced in this process."""
    return [finder.name for finder in sys.meta_path if isinstance(finder, _Finder)]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `name.x` as `hopyard.compat.name.x`: one module under two names, not two modules."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of this name and of what is in it; None for others."""
        if fullname != self.name and not fullname.startswith(f"{self.name}."):
            return None
        try:
            spec = importlib.util.find_spec(f"{__name__}.{fullname}")
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            return None  # Python's own error names the module that was asked for
        package = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return Hopyard's module, whole, as other threads that import the same name may get it from now on. Keep its
        spec, which the import in progress overwrites."""
        module = importlib.import_module(f"{__name__}.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back the module's own spec; the module has been run already."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

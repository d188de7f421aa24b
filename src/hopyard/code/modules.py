"""Which modules are the user's own, and which a library's.

A library is known by its name: wherever the code runs, it is installed. The user's modules go by value, as other
hosts lack them or have an older state of them. A module is a library's when it is in the standard library or in a
folder of site packages, or when a distribution's metadata beside it says that it was installed into another folder:
`pip install --target`, a folder on PYTHONPATH, an archive of `--py-files`.

An editable install is the user's, whatever its metadata say: it points to a folder that is being edited, workers
elsewhere have another state of it or none, and a resumed run must train what was started. The same holds for the
`.egg-info` that a build leaves beside the sources, so only `.dist-info` counts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

MAIN = ("__main__", "__mp_main__")
"""Modules that nobody else can import."""

_SITES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_EVERYWHERE = ("hopyard", "pyspark", "py4j")
"""Installed wherever workers run, also where they have no metadata: Spark's own folder is a plain one."""


def users_modules() -> list[ModuleType]:
    """Return the user's imported modules that have a file, and `child_main`, but not `__main__`."""
    return child_main() + [  # a file decides most cases, which is quicker
        module
        for name, module in sys.modules.copy().items()
        if name not in MAIN and (file := _file(module)) is not None and not _in_library(file) and is_users(name)
    ]


def child_main() -> list[ModuleType]:
    """Return the main module of a process that multiprocessing spawned; empty elsewhere.

    Its name there is `__mp_main__`, which cloudpickle, unlike `__main__`, takes for a module that others can import.
    """
    module = sys.modules.get("__mp_main__")
    return [module] if module is not None and module.__name__ == "__mp_main__" else []


def is_users(name: str) -> bool:
    """Return whether a module is the user's own: one that is imported, or made by hand, or a package that is not
    imported yet (which is then looked for, but not imported)."""
    package = top(name)
    if name in MAIN:
        return True
    if package in _EVERYWHERE:
        return False
    locations = _locations(name) or _locations(package)
    if not locations:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return name not in sys.builtin_module_names and getattr(spec, "origin", None) not in ("built-in", "frozen")
    if any(map(_in_library, locations)):
        return False
    folders = {_folder(location, package) for location in _locations(package)}
    return not any(package in _installed(folder) for folder in folders if locations[0].startswith(folder))


def is_extension(name: str) -> bool:
    """Return whether a module is compiled, so that nobody sees what its functions do."""
    file = _file(sys.modules.get(name))
    return file is not None and file.endswith(tuple(EXTENSION_SUFFIXES))


def top(name: str) -> str:
    """Return the top-level package, or the module without one, that `name` is in."""
    return name.partition(".")[0]


def _file(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


@lru_cache(1)
def _roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")})


def _in_library(location: str) -> bool:
    """Return whether a location is in the standard library or in a folder of site packages."""
    return location.startswith(_roots()) or any(part in location for part in _SITES)


def _locations(name: str) -> list[str]:
    """Return where a module is: its file, or the folders of a package without one. Imports nothing."""
    module = sys.modules.get(name)
    if (file := _file(module)) is not None:
        return [file]
    if module is not None:
        return list(getattr(module, "__path__", ()))
    try:
        spec = importlib.util.find_spec(name) if name == top(name) else None
    except (ImportError, ValueError):
        return []
    if spec is not None and spec.has_location and spec.origin is not None:
        return [spec.origin]
    return list((spec and spec.submodule_search_locations) or ())


def _folder(location: str, package: str) -> str:
    """Return the folder or archive on the path that has the package, or the module without one, at `location`."""
    folder, name = os.path.split(location)  # works for an archive, too
    return folder if top(name) == package else os.path.dirname(folder)  # noqa: PTH120


@lru_cache(1024)
def _installed(folder: str) -> frozenset[str]:
    """Return the packages and modules that an installer put into a folder, or an archive."""
    names: set[str] = set()
    for distribution in importlib.metadata.distributions(path=[folder]):
        if distribution.read_text("METADATA") is None:  # an .egg-info has PKG-INFO
            continue
        files = distribution.files or []
        names.update((distribution.read_text("top_level.txt") or "").split())
        names.update(top(file.parts[0]) for file in files if not file.parts[0].endswith(".dist-info"))
    return frozenset(names - {""})

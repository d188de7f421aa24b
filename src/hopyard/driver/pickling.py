"""The one pickle of a run directory: recipe, data set, space, search, engine and the function of stop=, as the user
passed them.

The user's modules go by value and libraries by name, see `code.pickling`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.code.pickling import culprit, dumps, loads
from hopyard.driver.directory import not_whole
from hopyard.errors import RunDirectoryError, SpecError
from hopyard.store.urls.working import origin
from hopyard.system.owners import other_writers

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The parts of a run that the user passed."""

    recipe: Any
    data: Any
    space: Any
    search: Any
    engine: Any
    stop: Any = None
    """The user's function of `stop=`; None: there is none, or a rule, which the RunSpec has."""


def dump(value: Any, name: str, function: str = "the recipe") -> bytes:
    """Pickle a value. An error calls it `name`, and says that open files and the like can be made inside `function`.

    Raises:
        SpecError: it cannot be pickled; names the reason.
    """
    try:
        return dumps(value)
    except Exception as error:
        raise SpecError(
            f"{name} cannot be pickled: {type(error).__name__}: {error}{culprit(value)}. It must not hold open files, "
            f"locks, connections, sessions or generators: make them inside {function}"
        ) from error


def opened(data: bytes, name: str) -> Any:
    """Return what `dump` pickled.

    Raises:
        SpecError: it cannot be unpickled; names the reason.
    """
    try:
        return loads(data)
    except Exception as error:
        raise SpecError(
            f"{name} can be pickled, and its pickle cannot be opened: {type(error).__name__}: {error}. Look at the "
            "`__reduce__` or `__setstate__` of what it holds"
        ) from error


def read_trusted(path: Path, trust: bool) -> bytes:
    """Read a pickle. Opening it runs code.

    Raises:
        RunDirectoryError: others than this user and root may write it, and are not trusted; this user may not read it.
        OSError: it is not there, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            writers = "" if trust else _url_writers(path) or other_writers(path, file.fileno())
            data = file.read()
    except PermissionError as error:
        raise RunDirectoryError(
            f"{path}: this user may not read it: pickles of recipes are private, as they may hold secrets. Its "
            "owner can share it (chmod a+r); then give trust=True, or give recipe= to hy.load_model"
        ) from error
    if writers:
        raise RunDirectoryError(
            f"{path}: {writers}, and opening a pickle runs its code. Copy the folder to one of your own that nobody "
            "else may write; or, if you trust them, give trust=True, `--trust` on the command line"
        )
    return data


def _url_writers(path: Path) -> str:
    """Return that nobody can see who may write to a URL; "": the file came from none."""
    url = origin(path.parent)
    return f"it is from {url}, and who may write there cannot be seen" if url else ""


def unpickle(data: bytes, path: Path | str, python: str, name: str = "the recipe") -> Any:
    """Return what `dump` pickled in a Python `python`, such as "3.12". Errors call it `name`, and say that it was in
    the file `path`.

    Raises:
        RunDirectoryError: another Python, or a module that it needs is not there.
    """
    if python != PYTHON:
        raise RunDirectoryError(
            f"{path} was written by Python {python}, this is {PYTHON}: pickled functions do not survive that; use "
            f"Python {python}, or give recipe= to hy.load_model"
        )
    try:
        return loads(data)
    except Exception as error:
        raise RunDirectoryError(f"{path}: {name} does not load: {type(error).__name__}: {error}") from error


def load(path: Path, python: str, trust: bool = False) -> Any:
    """Read the pickle of a run that Python `python` wrote, whoever may have written it with `trust`.

    Raises:
        RunDirectoryError: another Python, no file, or a module that it needs is not there; others may write it.
    """
    try:
        data = read_trusted(path, trust)
    except OSError as error:
        raise not_whole(path, error) from error
    return unpickle(data, path, python)

"""The directory of a run or a program: locked before anything in it is looked at, left alone by whoever is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from hopyard.errors import ResourceError, RunDirectoryError
from hopyard.store.layout import Layout, fresh
from hopyard.store.lock import Lock
from hopyard.system.files import FULL


@contextlib.contextmanager
def claimed(directory: str | Path | None) -> Iterator[tuple[Layout, Lock]]:
    """The directory, made if need be, and its lock, which stays held. Whoever raises inside leaves no trace of having
    been there: what was made is removed, and the lock given back.

    Args:
        directory: None: one under `runs/` that nobody has.

    Raises:
        RunDirectoryError: another driver holds the lock; no directory can be made there.
        ResourceError: there is no room.
    """
    layout, lock, made = _claim(directory)
    try:
        yield layout, lock
    except BaseException:
        with contextlib.suppress(OSError):
            lock.withdraw()
            if made:
                layout.root.rmdir()  # unless something was written there
        raise


def _claim(directory: str | Path | None) -> tuple[Layout, Lock, bool]:
    while True:
        layout = Layout(Path(directory) if directory is not None else fresh())
        with room(layout.root):
            try:
                layout.root.mkdir(parents=True)
                made = True
            except FileExistsError:
                if directory is None:  # another process has drawn the same name
                    continue
                made = False
            if not layout.root.is_dir():
                raise refused(layout)
            try:
                return layout, Lock(layout.lock), made
            except FileNotFoundError:  # removed by whoever was refused there
                continue


def refused(layout: Layout) -> RunDirectoryError:
    """There is something else in the directory."""
    return RunDirectoryError(
        f"directory = {str(layout.root)!r} exists: give another, or resume=True to go on with the run in it"
    )


def not_whole(path: Path, error: Exception) -> RunDirectoryError:
    """A file of a run directory is missing, or damaged."""
    why = error.strerror if isinstance(error, OSError) else error
    return RunDirectoryError(
        f"{path}: {why}; the run directory is not whole: copy it again from where it is, or start the run in another"
    )


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """A full disk is no defect: exit 4, not a traceback; nor is a place that this user may not write to."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise RunDirectoryError(
                f"{root}: no files can be written here: {error.strerror}; give another directory, or, to go on with a "
                "run that is in it, a copy of it (cp -r)"
            ) from error
        raise ResourceError(
            f"{root}: no room for the run directory ({error.strerror}). Nothing is lost: make room, then start again "
            "with resume=True"
        ) from error


@contextlib.contextmanager
def freed_on_error(lock: Lock) -> Iterator[None]:
    """Whoever fails before the loop has the lock gives it back."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            lock.free()
        raise

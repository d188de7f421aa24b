"""The directory of a run or a program: locked before it is read, and, at a URL, claimed before it is changed. A driver
that is refused leaves it as it is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopyard.checks import path
from hopyard.core.facts import Codec
from hopyard.errors import RunDirectoryError
from hopyard.store.journal import Journal, room, whole_bytes
from hopyard.store.layout import Layout, fresh
from hopyard.store.lock import Lock
from hopyard.store.urls import working
from hopyard.store.urls.mirror import Overtaken, claim

log = logging.getLogger(__name__)

SEIZURES = 20
"""Tries to create the next segment before the driver that has the run does."""


@contextlib.contextmanager
def claimed(directory: str | Path | None) -> Iterator[tuple[Layout, Lock]]:
    """Make the directory if need be, and lock it; the lock stays held. If the body raises, no trace is left: the lock
    is freed, and the directories that were made here are removed.

    Args:
        directory: its path or URL; None: one under `runs/` that nobody has.

    Raises:
        SpecError: it is no path, and no URL of a folder.
        RunDirectoryError: another driver holds the lock; no directory can be made there; the URL cannot be read.
        ResourceError: there is no room.
    """
    if directory is not None:
        directory = path("directory", directory)
        if "://" in directory:
            directory = working.made(directory)
    layout, lock, made = _claim(directory)
    try:
        if layout.url:
            working.fetch(layout.root, driving=True)
        yield layout, lock
    except BaseException:
        with contextlib.suppress(OSError):
            lock.withdraw()
            for folder in made:
                folder.rmdir()  # unless something was written there
        raise


def claim_url(layout: Layout, lock: Lock, journal: Path, take_over: bool = False) -> None:
    """Claim a run or a program at a URL, whose journal was fetched under this lock, before anything there is changed.

    Raises:
        RunDirectoryError: another driver lives, or was faster; the URL cannot be written to.
    """
    if layout.url and lock.mirror is None:
        lock.mirror = claim(layout.root, journal.name, take_over)


def seize_url(layout: Layout, lock: Lock, journal: Path) -> None:
    """Claim a run at a URL from a driver that may live, and create segments meanwhile. Raises as `claim_url`."""
    for last in (*[False] * (SEIZURES - 1), True):
        working.fetch(layout.root, driving=True)
        try:
            return claim_url(layout, lock, journal, take_over=True)
        except Overtaken:
            if last:
                raise


def copy_end(layout: Layout, lock: Lock, path: Path, codec: Codec[Any]) -> None:
    """Copy the end of the journal of a run that has ended to its URL, where its driver could not. Raises as
    `claim_url`."""
    copied = working.copied(layout.root, path.name) if layout.url else None
    if copied is None or copied.end >= whole_bytes(path):
        return
    claim_url(layout, lock, path)
    journal = Journal(path, codec, resume=True, mirror=lock.mirror)
    try:
        while not journal.shared(journal.size, 1.0):
            pass
    finally:
        journal.close()
    log.warning("%s: the end of the run, which only this host had, was copied there", layout.url)


def _claim(directory: str | Path | None) -> tuple[Layout, Lock, list[Path]]:
    while True:
        layout = Layout(Path(directory) if directory is not None else fresh())
        with room(layout.root):
            missing = [folder for folder in (layout.root, *layout.root.parents) if not folder.exists()]
            try:
                layout.root.mkdir(mode=0o700, parents=True)  # recipes, configurations and logs may hold secrets
                made = missing
            except FileExistsError:
                if directory is None and layout.root.exists():  # another process has drawn the same name
                    continue
                made = []
            if not layout.root.is_dir():
                raise refused(layout)
            try:
                return layout, Lock(layout.lock), made
            except FileNotFoundError:  # a driver that was refused has removed it
                continue


def refused(layout: Layout) -> RunDirectoryError:
    """Return the error for a directory that holds a run, or something else."""
    content = ", or resume=True to go on with the run in it" if layout.exists else "; it holds no run, but other files"
    return RunDirectoryError(f"directory = {layout.shown!r} exists: give another{content}")


def not_whole(path: Path, error: Exception) -> RunDirectoryError:
    """Return the error for a file of a run directory that is missing or damaged."""
    why = error.strerror if isinstance(error, OSError) else error
    return RunDirectoryError(
        f"{path}: {why}; the run directory is not whole: copy it again from where it is, or start the run in another"
    )


@contextlib.contextmanager
def freed_on_error(lock: Lock) -> Iterator[None]:
    """Free the lock when the body raises, before the loop has taken it over."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            lock.free()
        raise

"""The status of a run or a program: what its journal says, and whether a driver lives that could still change it.

Only this module decides it: `Run.status`, `hopyard ls`, `hopyard show` and the report all call it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hopyard.core.runs.events import Finished, Interrupted, Line, decode
from hopyard.errors import JournalError
from hopyard.store.layout import Layout
from hopyard.system.files import open_regular

ENDED = ("completed", "partial", "failed", "stopped")
"""Statuses in the journal of a run or program that is over; every other status means that a driver is at work on it."""
_TAIL = 1 << 16


def standing(layout: Layout, journal_status: str) -> str:
    """Return "completed", "partial", "failed" or "stopped" when it is over, "running" while a driver lives,
    "interrupted" when the driver ended before the run did.

    Args:
        layout: of its directory.
        journal_status: the status that its journal folds to.
    """
    live = held(layout.lock)
    return status_of(journal_status, live, None if live else _last(layout.journal))


def status_of(journal_status: str, live: bool, last: Line | None) -> str:
    """Return the same from what is known already.

    Args:
        journal_status: the status that the journal folds to.
        live: whether a driver held the lock before the journal was read.
        last: the journal's last line.
    """
    if journal_status in ENDED:
        return journal_status
    if live:
        return "running"
    match last:
        case Finished(status=status):  # it finished after the status was folded
            return status
        case Interrupted(stopped=True):
            return "stopped"
        case _:
            return "interrupted"


def held(lock: Path) -> bool:
    """Whether a driver, of this process or another, holds the lock. The lock is only tested: nothing is written."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _last(journal: Path) -> Line | None:
    """Return the last whole line of a run's journal; None where there is none, or one too long for the end of a run."""
    try:
        with open_regular(journal) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")
        return decode(lines[-2]) if len(lines) > 1 else None
    except (OSError, JournalError):
        return None

"""How a run or a program stands: what its journal tells, and whether a driver lives that could still change it.

The one place that decides: `Run.status`, `hopyard ls`, `hopyard show` and the report all ask it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hopyard.core.runs.events import Finished, Interrupted, Line, decode
from hopyard.errors import JournalError
from hopyard.store.layout import Layout

ENDED = ("completed", "partial", "failed", "done", "stopped")
"""What a journal may say of a run or a program that is over; all else it says of one that a driver is at work on."""
_TAIL = 1 << 16


def standing(layout: Layout, told: str) -> str:
    """ "completed", "partial", "failed", "done" or "stopped" when it is over, "running" while a driver lives,
    "interrupted" when the driver ended before the run did.

    Args:
        layout: of its directory.
        told: the status that its journal folds to.
    """
    if told in ENDED:
        return told
    if held(layout.lock):
        return "running"
    match _last(layout.journal):
        case Finished(status=status):  # since the journal was read
            return status
        case Interrupted(stopped=True):
            return "stopped"
    return "interrupted"


def held(lock: Path) -> bool:
    """Whether a driver, of this process or another, holds the lock. It is asked, not taken: nothing is written."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _last(journal: Path) -> Line | None:
    """The last whole line of a run's journal; None where there is none, or one too long to be the end of a run."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")
        return decode(lines[-2]) if len(lines) > 1 else None
    except (OSError, JournalError):
        return None

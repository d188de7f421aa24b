"""The status of a run or a program: what its journal says, and whether a driver lives that could still change it; and
the summary of a run that has ended.

Only this module decides the status: `Run.status`, `hopyard ls`, `hopyard show` and the report all call it.

The summary is what `hopyard ls` shows of a run. It lies beside the journal, which may take many seconds to read, and is
valid only while the journal has the length and the end that it had. Else, or where it is missing, the journal is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from hopyard.core.runs.codec import decode
from hopyard.core.runs.events import Finished, Interrupted, Line
from hopyard.errors import JournalError
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout
from hopyard.store.lock import locked
from hopyard.store.urls.working import alive, url_of
from hopyard.system.files import open_regular

ENDED = ("completed", "partial", "failed", "stopped")
"""Statuses in the journal of a run or program that is over; every other status means that a driver is at work on it."""
_TAIL = 1 << 16
"""Bytes at the end of a journal, in which its last line is looked for."""
_SEALED = 4096
"""Bytes at the end of a journal, whose digest a summary has."""


def standing(layout: Layout, journal_status: str, live: bool | None = None) -> str:
    """Return "completed", "partial", "failed" or "stopped" when it is over, "running" while a driver lives,
    "interrupted" when the driver ended before the run did.

    Args:
        layout: of its directory.
        journal_status: the status that its journal folds to.
        live: whether a driver lives; None: see for yourself.
    """
    live = held(layout.lock) if live is None else live
    return status_of(journal_status, live, None if live else _last(layout.journal), bool(layout.url))


def status_of(journal_status: str, live: bool, last: Line | None, shared: bool = False) -> str:
    """Return the same from what is known already.

    Args:
        journal_status: the status that the journal folds to.
        live: whether a driver held the lock before the journal was read.
        last: the journal's last line.
        shared: whether the run is at a URL: it has ended once its driver has, which copies its end there.
    """
    if journal_status in ENDED and not (live and shared):
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
    """Whether a driver, of this process or another, holds the lock. The lock is only tested: nothing is written. Of a
    run at a URL that nobody drives on this host, fetch what is new, and look whether a driver on another one lives."""
    return locked(lock) or (bool(url_of(lock.parent)) and alive(lock.parent))


def _last(journal: Path) -> Line | None:
    """Return the last whole line of a run's journal; None where there is none, or one too long for the end of a run."""
    try:
        with open_regular(journal) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().split(b"\n")
        return decode(lines[-2]) if len(lines) > 1 else None
    except (OSError, JournalError):
        return None


def write_summary(layout: Layout, facts: dict[str, Any]) -> None:
    """Write these facts about the journal as it is now. The caller holds the lock.

    Raises:
        ResourceError: there is no room.
    """
    values = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}
    write_whole(layout.summary, json.dumps({"journal": _seal(layout.journal), "facts": values}).encode() + b"\n")


def read_summary(layout: Layout) -> dict[str, Any] | None:
    """Return the facts; None when there are none about the journal as it is now. Never raises."""
    try:
        with open_regular(layout.summary) as file:
            content = json.load(file)
        facts = content["facts"] if content["journal"] == _seal(layout.journal) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if isinstance(facts, dict) else None


def _seal(journal: Path) -> list[Any]:
    """Return the length of a file that is only ever appended to, and the digest of its end."""
    with open_regular(journal) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _SEALED))
        return [size, hashlib.sha256(file.read()).hexdigest()]

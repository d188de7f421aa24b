"""What `hopyard ls` shows of a run that has ended, beside its journal, which may take many seconds to read.

It counts only while the journal is the one that it was made of: of that length, with that end. Else, and where it is
missing, whoever asks reads the journal.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout

_TAIL = 4096


def write(layout: Layout, facts: dict[str, Any]) -> None:
    """Note these facts of the journal as it is now. The caller holds the lock.

    Raises:
        ResourceError: there is no room.
    """
    told = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}
    write_whole(layout.summary, json.dumps({"journal": _seal(layout.journal), "facts": told}).encode() + b"\n")


def read(layout: Layout) -> dict[str, Any] | None:
    """The facts; None when there are none of the journal as it is now. Never raises."""
    try:
        noted = json.loads(layout.summary.read_bytes())
        facts = noted["facts"] if noted["journal"] == _seal(layout.journal) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if isinstance(facts, dict) else None


def _seal(journal: Path) -> list[Any]:
    """Length and digest of the end of a file that is only ever appended to."""
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        return [size, hashlib.sha256(file.read()).hexdigest()]

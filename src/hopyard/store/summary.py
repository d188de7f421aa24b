"""What `hopyard ls` shows of a run that has ended, beside its journal, which may take many seconds to read.

It is valid only while the journal is the one that it was made of: of that length, with that end. Else, and where it is
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
from hopyard.system.files import open_regular

_TAIL = 4096


def write(layout: Layout, facts: dict[str, Any]) -> None:
    """Write these facts about the journal as it is now. The caller holds the lock.

    Raises:
        ResourceError: there is no room.
    """
    values = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}
    write_whole(layout.summary, json.dumps({"journal": _seal(layout.journal), "facts": values}).encode() + b"\n")


def read(layout: Layout) -> dict[str, Any] | None:
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
        file.seek(max(0, size - _TAIL))
        return [size, hashlib.sha256(file.read()).hexdigest()]

"""Locks on files (flock), which the kernel gives back when a process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path


def still_there(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at `path`. A lock on a file that was removed since protects nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

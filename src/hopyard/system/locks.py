"""Locks on files (flock), which the kernel gives back when a process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path


def still_there(file: int, path: Path) -> bool:
    """Whether an open file is the one at `path`. A lock on one that somebody has removed since protects nothing."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False

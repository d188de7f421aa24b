"""A process that ends when the one that started it does, and one that adopts what loses its parent.

An agent has a companion for that (`companion.py`); this is for the processes that it starts itself.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def ended_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends, where it can."""
    if not signal_with(parent, signal.SIGKILL):
        os._exit(1)


def signal_with(parent: int, number: int) -> bool:
    """Let the kernel send this signal to this process when its parent ends, where it can. False: it has ended."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of processes that descend from this one and lose theirs, where the kernel can do that."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes  # a companion is forked before

    ctypes.CDLL(None, use_errno=True).prctl(option, value)

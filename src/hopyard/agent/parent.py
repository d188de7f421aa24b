"""Lets a process end when its parent ends, or adopt processes that lose their parent.

An agent has a companion for that (`companion.py`); this module is for the processes that the agent starts.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends, where it can."""
    if not signal_with(parent, signal.SIGKILL):
        os._exit(1)


def signal_with(parent: int, number: int) -> bool:
    """Let the kernel send a signal to this process when its parent ends, where it can. False: the parent has ended."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of descendants of this process that lose their parent, where the kernel can do that."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes  # a companion is forked before

    ctypes.CDLL(None, use_errno=True).prctl(option, value)

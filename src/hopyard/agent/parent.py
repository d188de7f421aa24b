"""A process that ends when the one that started it does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def ended_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel end this process when its parent ends, where it can; 0: it need not."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of processes that descend from this one and lose theirs, where the kernel can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """End when the parent ends: by signal where the kernel offers it, and by the end of standard input everywhere."""
    ended_with(parent)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        if os.getpgrp() == os.getpid():  # with all that it started
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="hopyard-watch", daemon=True).start()

"""How many files this process may have open: systems begin with a low limit, which each process may raise itself."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def allow_all_files() -> None:
    """Raise the limit as far as this process may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allow_files(count: int) -> int:
    """Raise the limit, if need be and as far as this process may, so that `count` more files may be open than are.
    Return how many more may be. The limit stays: others in this process may rely on it by the time that it is not
    needed here any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(os.listdir(_FILES))  # noqa: PTH208 - numbers
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited:
        return count
    wanted = open_files + count
    if soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - open_files

"""The processor of this host, and the limits on a process there. That on open files begins low, and each process may
raise its own."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from pathlib import Path

_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def processor() -> str:
    """Return the model of the processor, by which TensorFlow and XLA choose their kernels; "" where it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


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


def remedy(error: OSError) -> str:
    """Return the next step after an error that is the host's fault, not that of the file's content; else ""."""
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"this process may have {soft} files open at once: call `ulimit -n {4 * soft}` before it is started"
    return _REMEDIES.get(error.errno or 0, "")


_REMEDIES = {
    errno.ENFILE: "all processes of this host together have too many files open: end some, or raise fs.file-max",
    errno.ENOMEM: "memory, or the number of mappings that a process may have, is used up: free memory, or raise "
    "vm.max_map_count",
    errno.EIO: "the disk or the network behind it reports a fault: see the kernel's log, or use another disk",
    errno.EACCES: "let this user read it",
    errno.EPERM: "let this user read it",
}

"""Whether the system killed a process because memory ran out: by the kernel's own count of such kills.

A worker that is killed so ends by SIGKILL, as one that somebody killed does. Its cgroup tells them apart: `oom_kill` in
`memory.events` (version 2) or `memory.oom_control` (version 1); where there is neither, `/proc/vmstat` has the count of
the whole machine.
"""

from __future__ import annotations

import threading
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")
RAN_OUT = ": the memory of its host, or of its container, ran out"
"""Behind how a process ended."""


class Kills:
    """Counts of kills, by the file that has them; each kill is told once. Several threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, int] = {}

    def watch(self, pid: int | str) -> Path | None:
        """Begin to count for a process that lives; gives what `killed` wants, None where nothing counts."""
        file = counter(pid)
        if file is not None:
            with self._lock:
                self._known.setdefault(file, kills(file))
        return file

    def killed(self, file: Path | None) -> bool:
        """Whether one more process of this cgroup was killed for want of memory, that was not told before."""
        if file is None:
            return False
        with self._lock:
            found = kills(file) > self._known.get(file, 0)
            if found:
                self._known[file] += 1
        return found


def counter(pid: int | str) -> Path | None:
    """The file that counts the kills in the cgroup of a process, as this process sees it."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2; in a hybrid it is mounted beside the others
            found += [root / path.lstrip("/") / "memory.events" for root in (CGROUPS, CGROUPS / "unified")]
        elif "memory" in controllers.split(","):  # a container sees its own part as the root
            found += [CGROUPS / "memory" / part / "memory.oom_control" for part in (path.lstrip("/"), "")]
    return next((file for file in [*found, VMSTAT] if _count(file) is not None), None)


def kills(file: Path) -> int:
    """How many processes were killed for want of memory; 0 where that cannot be read any more."""
    return _count(file) or 0


def _count(file: Path) -> int | None:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if len(word) == 2 and word[0] == "oom_kill"), None)

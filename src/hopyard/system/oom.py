"""Whether the system killed a process because memory ran out, by the kernel's own count of such kills.

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
"""Follows the text of how a process ended."""


class Kills:
    """Counts of kills, by the file that has them; each kill is reported once. Several threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[Path, int] = {}
        """File → its count when it was first watched, and the kills reported since."""

    def watch(self, pid: int | str) -> tuple[Path, int] | None:
        """Begin to count for a process that has just begun. Returns what `killed` takes: the file that counts, and
        its count so far, of which none is a kill of this process. None where nothing counts."""
        file = counter(pid)
        if file is None:
            return None
        with self._lock:
            count = kills(file)
            self._reported.setdefault(file, count)
            return file, count

    def killed(self, watched: tuple[Path, int] | None) -> bool:
        """Whether a process of this cgroup was killed for want of memory since this one began, and that was not
        reported of another."""
        if watched is None:
            return False
        file, before = watched
        with self._lock:
            killed = kills(file) > max(before, self._reported[file])
            if killed:
                self._reported[file] = max(before, self._reported[file]) + 1
        return killed


def counter(pid: int | str) -> Path | None:
    """Return the file that counts the kills in the cgroup of a process, as this process sees it; None if none does."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    candidates = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2; in a hybrid it is mounted beside the others
            candidates += [root / path.lstrip("/") / "memory.events" for root in (CGROUPS, CGROUPS / "unified")]
        elif "memory" in controllers.split(","):  # a container sees its own part as the root
            candidates += [CGROUPS / "memory" / part / "memory.oom_control" for part in (path.lstrip("/"), "")]
    return next((file for file in [*candidates, VMSTAT] if _count(file) is not None), None)


def kills(file: Path) -> int:
    """Return how many processes were killed for want of memory; 0 where that cannot be read any more."""
    return _count(file) or 0


def _count(file: Path) -> int | None:
    try:
        fields = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    return next((int(field[1]) for field in fields if len(field) == 2 and field[0] == "oom_kill"), None)

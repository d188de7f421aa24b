"""Memory limits of pods by cgroups, of version 1 or 2, and how a pod sees its own.

With version 1 a container has its own cgroup at /sys/fs/cgroup/memory, and /proc/self/cgroup gives the path on the
node. With version 2 it has its own at /sys/fs/cgroup, and a cgroup namespace: the path is `/`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "hopyard-kube-"


@dataclass(frozen=True)
class Version:
    """The files of a version of cgroups."""

    number: int
    root: Path
    limit: str
    swap: str
    kills: str
    group: str

    def swap_limit(self, limit: int) -> int:
        """Return the value by which no swap is used: version 1 counts memory and swap together."""
        return limit if self.number == 1 else 0


ONE = Version(
    1,
    CGROUPS / "memory",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.oom_control",
    "memory.oom_control",
)
TWO = Version(2, CGROUPS, "memory.max", "memory.swap.max", "memory.events", "memory.oom.group")


@functools.cache
def version() -> tuple[Version | None, str]:
    """Return the version whose memory limits can be set here, or None and the reason."""
    one = (ONE.root / "cgroup.procs").exists()
    which = ONE if one else TWO
    probe = which.root / f"{PREFIX}probe-{os.getpid()}"
    try:
        if not one:
            (TWO.root / "cgroup.subtree_control").write_text("+memory")
        probe.mkdir()
        limited = (probe / which.limit).exists()
        probe.rmdir()
    except OSError as error:
        return None, f"no memory cgroup can be made in {which.root}: {error.strerror}"
    return (which, "") if limited else (None, f"{which.root} has no memory limits")


class Cgroup:
    """The memory cgroup of a pod.

    Args:
        which: its version.
        bridge: names the test process.
        pod: its name.
        limit: in bytes; None: none.
        group: whether the pod ends as a whole when memory runs out; else the kernel kills one process. Version 1 has
            no such kill: processes that need memory sleep until the pod is killed by whoever asks `ran_out`.
    """

    def __init__(self, which: Version, bridge: str, pod: str, limit: int | None, group: bool) -> None:
        self.version, self._ran_out = which, False
        self._count = "under_oom" if group and which.number == 1 else "oom_kill"
        base = which.root / f"{PREFIX}{bridge}"
        base.mkdir(exist_ok=True)
        if which.number == 2:
            (base / "cgroup.subtree_control").write_text("+memory")
        self.path = base / pod
        self.path.mkdir()
        if limit is not None:
            (self.path / which.limit).write_text(str(limit))
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                (self.path / which.swap).write_text(str(which.swap_limit(limit)))
        if group:
            (self.path / which.group).write_text("1")

    def ran_out(self) -> bool:
        """Return whether memory has run out."""
        if not self._ran_out:
            lines = (self.path / self.version.kills).read_text().splitlines()
            self._ran_out = any(int(value) for name, value in map(str.split, lines) if name == self._count)
        return self._ran_out

    def close(self) -> None:
        """Remove it, once its processes are gone."""
        _remove(self.path)


def close(bridge: str) -> None:
    """Remove the cgroup that holds those of all pods of a test process. No pod may be left."""
    which, _ = version()
    if which is not None:
        _remove(which.root / f"{PREFIX}{bridge}")


def sweep(kept: Collection[str]) -> None:
    """Remove the cgroups of test processes whose bridge is not among these."""
    which, _ = version()
    for base in [] if which is None else which.root.glob(f"{PREFIX}hk*"):
        if base.name.removeprefix(PREFIX) not in kept:
            with contextlib.suppress(OSError):  # its process is removing it, or about to end
                for pod in [path for path in base.iterdir() if path.is_dir()]:
                    for process in (pod / "cgroup.procs").read_text().split():  # none, unless a parent was killed late
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(process), signal.SIGKILL)
                    _remove(pod)
                _remove(base)


def _remove(path: Path) -> None:
    """Remove a cgroup; the kernel takes a moment to notice that its last process is gone."""
    end = time.monotonic() + 10
    while True:
        try:
            return path.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)

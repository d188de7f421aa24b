"""Memory limits of pods by cgroups, of version 1 or 2, and how a pod sees its own.

With version 1 a container has its own cgroup at /sys/fs/cgroup/memory, and /proc/self/cgroup gives the path on the
node. With version 2 it has its own at /sys/fs/cgroup, and a cgroup namespace: the path is `/`.
"""

from __future__ import annotations

import contextlib
import functools
import os
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

    def swap_limit(self, limit: int) -> int:
        """Return the value by which no swap is used: version 1 counts memory and swap together."""
        return limit if self.number == 1 else 0


ONE = Version(1, CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
TWO = Version(2, CGROUPS, "memory.max", "memory.swap.max", "memory.events")


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
    """The memory cgroup of a pod. `limit`: bytes; None: none. `bridge` names the test process."""

    def __init__(self, which: Version, bridge: str, pod: str, limit: int | None) -> None:
        self.version = which
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

    def kills(self) -> int:
        """Return how many processes the kernel has killed because the limit was reached."""
        for line in (self.path / self.version.kills).read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def close(self) -> None:
        """Remove it, once its processes are gone."""
        _remove(self.path)


def close(bridge: str) -> None:
    """Remove the cgroup that holds those of all pods of a test process, once no pod is left."""
    which, _ = version()
    if which is not None:
        with contextlib.suppress(OSError):  # pods of another kubelet are in it, or it is gone
            (which.root / f"{PREFIX}{bridge}").rmdir()


def sweep(kept: Collection[str]) -> None:
    """Remove the cgroups of test processes whose bridge is not among these."""
    which, _ = version()
    for base in [] if which is None else which.root.glob(f"{PREFIX}hk*"):
        if base.name.removeprefix(PREFIX) not in kept:
            for pod in [path for path in base.iterdir() if path.is_dir()]:
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

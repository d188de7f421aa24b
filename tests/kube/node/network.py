"""A bridge for the pods of one test process, with a subnet of its own. The process has the first address.

The number of a bridge tells its subnet: `hk137` is 10.137.0.0/16. Whoever makes one first removes what processes left
that were killed: pods end with them, bridges and cgroups do not.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kube.node import cgroups

PREFIX = "hk"
NUMBERS = range(100, 200)


class Network:
    """A bridge, made at once. Several kubelets may share one: all their pods reach each other and this process."""

    def __init__(self) -> None:
        with _alone_on_this_machine():
            sweep()
            self.number = _free_number()
            self.bridge = f"{PREFIX}{self.number}"
            self.gateway = f"10.{self.number}.0.1"
            ip("link", "add", self.bridge, "type", "bridge")
            ip("link", "set", self.bridge, "up", "alias", _owner(os.getpid()))
        ip("addr", "add", f"{self.gateway}/16", "dev", self.bridge)
        self._nodes = itertools.count(1)

    def node(self) -> int:
        """Return the number of another node: its pods have the addresses 10.x.<number>.y."""
        return next(self._nodes)

    def close(self) -> None:
        """Remove the bridge, and the cgroup of all pods. Kubelets must have stopped before."""
        cgroups.close(self.bridge)
        ip("link", "del", self.bridge)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, timeout=60, stdin=subprocess.DEVNULL)


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Return what `ip -json` prints."""
    done = subprocess.run(["ip", "-json", *words], check=True, timeout=60, capture_output=True)
    return list(json.loads(done.stdout or b"[]"))


def sweep() -> None:
    """Remove the bridges and cgroups of processes that are gone. Their pods were killed by the kernel."""
    kept = set()
    for link in ip_json("link", "show", "type", "bridge"):
        name, owner = link.get("ifname", ""), link.get("ifalias", "")
        if _number(name) is None:
            continue
        if owner.partition(" ")[0].isdigit() and owner == _owner(int(owner.partition(" ")[0])):
            kept.add(name)
        else:
            ip("link", "del", name)
    cgroups.sweep(kept)


def _free_number() -> int:
    """Return a number that no bridge has, whose subnet nothing on this machine uses."""
    names = {link.get("ifname") for link in ip_json("link")}
    used = {str(route.get("dst", "")) for route in ip_json("-4", "route", "show", "table", "all")}
    start = os.getpid() % len(NUMBERS)  # processes beside each other do not take what one has just given back
    for number in [*NUMBERS[start:], *NUMBERS[:start]]:
        if f"{PREFIX}{number}" not in names and not any(route.startswith(f"10.{number}.") for route in used):
            return number
    raise RuntimeError("all subnets from 10.100.0.0/16 to 10.199.0.0/16 are in use on this machine")


def _number(name: str) -> int | None:
    """Return the number in the name of a bridge; None of other links."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdigit() and int(digits) in NUMBERS else None


def _owner(pid: int) -> str:
    """Return what tells a process from all others that have had its number; "" if it is gone."""
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{pid} {began}"


@contextlib.contextmanager
def _alone_on_this_machine() -> Iterator[None]:
    """Hold a lock against other test processes, on a folder that is there anyway."""
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)

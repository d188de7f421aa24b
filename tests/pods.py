"""What tests of runs on pods share: trials that wait, and what runs where."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import hopyard as hy
from hopyard.core.runs.events import Joined
from jobs import CONFIGS, free_port, journal, until
from kube.lab import MANAGED, Lab

MANY: list[dict[str, Any]] = [*CONFIGS, *({"lr": 0.002 * n} for n in range(1, 5))]
HASTY = "import hopyard.engines.supervisors.pod as pod\npod.TICKET_SECONDS = 6.0"
"""Code of an image whose pods do not wait long for a ticket."""


class Gate:
    """Trials of which the first ones wait, in the middle of their epochs, until it is open."""

    def __init__(self, lab: Lab, trials: int = 2) -> None:
        self._address = lab.network.gateway, free_port()
        self.configs = [dict(config) for config in MANY]
        for config in self.configs[:trials]:
            config |= {"at": 8, "do": f"dial {self._address[0]}:{self._address[1]}"}

    def open(self) -> closing[socket.socket]:
        return closing(socket.create_server(self._address, backlog=100))


def joined(directory: Path, count: int) -> dict[str, Joined]:
    """Host → its worker, once so many are there."""
    return until(lambda: found if len(found := joined_now(directory)) >= count else None, 60)


def joined_now(directory: Path) -> dict[str, Joined]:
    try:
        return {line.host: line for line in journal(directory) if isinstance(line, Joined)}
    except (FileNotFoundError, hy.HopyardError):
        return {}


def pod_of(lab: Lab, host: str) -> str:
    """Return the name of the pod with this host name."""
    return next(pod["metadata"]["name"] for pod in lab.objects("pods") if pod["spec"]["hostname"] == host)


def process(lab: Lab, pod: str, part: str) -> int:
    """Return a process of a pod: "agent", "supervisor" or "process 1"."""
    kubelet = lab.kubelet_of(pod)
    first = kubelet.pid(pod)
    if part == "process 1":
        return first
    found = kubelet.processes(pod)
    marks = {"agent": "hopyard.agent", "supervisor": "hopyard.engines.supervisors"}
    return next(pid for pid, command in found.items() if marks[part] in command and pid != first)


def left(lab: Lab) -> list[str]:
    """Return what of Hopyard's is still there: objects, pods that run, and network devices of pods."""
    words = ["ip", "-o", "link", "show", "master", lab.network.bridge]
    devices = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return [*lab.left(), *lab.pods(), *devices.splitlines()]


def requested(lab: Lab, pattern: str) -> list[str]:
    """Return the requests of drivers that match, oldest first."""
    lines = [f"{method} {path}" for method, path in list(lab.cluster.requests)]
    return [line for line in lines if MANAGED not in line and re.search(pattern, line)]


def image(folder: Path, code: str) -> Path:
    """Return an image in which process 1 of a pod, and the supervisors that it forks, run some code first."""
    made = Path(tempfile.mkdtemp(dir=folder))
    os.chmod(made, 0o755)
    body = f'import sys\nif "hopyard.engines.supervisors" in sys.orig_argv:\n{textwrap.indent(code, "    ")}\n'
    (made / "sitecustomize.py").write_text(body)
    return made


def kill(lab: Lab, host: str) -> None:
    """Kill process 1 of a pod, and so all of it."""
    os.kill(process(lab, pod_of(lab, host), "process 1"), signal.SIGKILL)


@contextmanager
def once(lab: Lab) -> Iterator[str]:
    """Give the address of a listener that is gone once somebody has dialled."""
    with socket.create_server((lab.network.gateway, 0), backlog=0) as server:

        def accept() -> None:
            with suppress(OSError):
                server.accept()[0].close()
            server.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield ":".join(map(str, server.getsockname()[:2]))
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()

"""An engine of one's own: its supervisors are subprocesses of this process. For another cluster, change `Subprocesses`.

docs/add-an-engine.md explains it.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, cast

from hopyard.engines.supervised import Placement, SupervisedAgents, Warm
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket, line_of
from hopyard.engines.warm import Startable
from hopyard.ports.engines import Agents, LaunchInfo

SUPERVISOR = (sys.executable, "-P", "-m", "hopyard.engines.supervisors", "1", "none")
"""The command of one supervisor without GPUs. It reads a ticket from standard input, whose end ends it."""


class Subprocesses(Placement):
    """Supervisors as subprocesses."""

    def __init__(self, supervisors: Supervisors, ticket: Ticket) -> None:
        self.supervisors, self._ticket = supervisors, ticket
        self._processes: list[subprocess.Popen[bytes]] = []

    def place(self) -> None:
        """Start as many as are due."""
        self._processes = [process for process in self._processes if process.poll() is None]
        for _ in range(self.supervisors.due - len(self._processes)):
            process = subprocess.Popen(SUPERVISOR, stdin=subprocess.PIPE)
            self._processes.append(process)
            stdin = cast(IO[bytes], process.stdin)
            stdin.write(line_of(self._ticket))
            stdin.flush()

    def absence(self, when: str) -> str:
        """Return the sentence for users who wait in vain."""
        return f"no supervisor has dialled port {self._ticket.port} {when}: see what the subprocesses have printed"

    def close(self) -> None:
        """End all."""
        self.supervisors.close()
        for process in self._processes:
            process.communicate()


@dataclass(frozen=True)
class SubprocessEngine(Startable):
    """Workers below supervisors that are subprocesses of this process; `workers`: how many."""

    workers: int
    threads: int = 1
    start_timeout: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict, init=False)
    _standby: Warm = field(default_factory=Warm, init=False, repr=False, compare=False)

    name = "subprocesses"
    apart = False  # workers are on the host of the driver
    in_process = False
    driver_workers = 0
    shared_places = False
    endpoint = ("127.0.0.1", 0)

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """All workers, on this host."""
        return (self.workers,)

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents of a run."""
        return SupervisedAgents(self, launch, Subprocesses, standby=self._standby)

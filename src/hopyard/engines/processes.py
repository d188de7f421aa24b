"""A process that an engine has started as an agent: what is asked of it, and one that was started by itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from hopyard.system.processes import story, watched

COMPANION_SECONDS = 1.0
"""How long an agent's companion may take to end after it."""


class Process(Protocol):
    """An agent's process. Owner: the agents of one run."""

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group; 0: there is no process yet."""
        ...

    @property
    def stdin(self) -> IO[bytes]:
        """The other end of its standard input."""
        ...

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when there is something for `poll`; -1 where the system has none."""
        ...

    @property
    def counted(self) -> int:
        """Number of a process in the cgroup that it is in."""
        ...

    @property
    def refused(self) -> bool:
        """Whether there will be no process."""
        ...

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None: it has not ended."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait for its end, though not longer. Returns whether it has ended."""
        ...

    def kill(self) -> None:
        """Kill it and all that is in its group."""
        ...

    def close(self) -> None:
        """Forget it, once it has ended and its companion has, or does not in time."""
        ...

    def story(self, code: int, where: str = "") -> str:
        """Return how it ended, with this exit code. `where` follows its number, for example " on alpha"."""
        ...


class Spawned:
    """A process of its own.

    Args:
        command: starts it.
        variables: its environment.
        log: takes what it prints.
        session: whether it leads a session of its own, not only a group.

    Raises:
        OSError: it cannot be started.
    """

    refused = False

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], log: IO[bytes], session: bool = False
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=session,
            process_group=None if session else 0,  # what it starts ends with it
        )
        self.pid = self.counted = self._process.pid
        self.descriptor = watched(self.pid)
        assert self._process.stdin is not None
        self.stdin: IO[bytes] = self._process.stdin

    def poll(self) -> int | None:
        """Return its exit code; None: it has not ended."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill its group."""
        kill_group(self.pid)

    def close(self) -> None:
        """Forget it."""
        close_input(self.stdin)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def story(self, code: int, where: str = "") -> str:
        """Return how it ended."""
        return f"process {self.pid}{where} {story(code)}"


def kill_group(pid: int) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def close_input(stdin: IO[bytes]) -> None:
    """Close the standard input of an agent that has ended, once its companion, which alone can read from it, has ended
    by itself."""
    if stdin.closed:
        return
    poll = select.poll()
    poll.register(stdin, 0)
    poll.poll(COMPANION_SECONDS * 1000)
    with contextlib.suppress(BrokenPipeError):
        stdin.close()

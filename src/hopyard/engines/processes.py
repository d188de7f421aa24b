"""An agent as a process of its own. `templates.Fork` has the same attributes and methods."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from hopyard.system.processes import Tree, story, watched

COMPANION_SECONDS = 1.0
"""How long an agent's companion may take to end after it."""


class Spawned:
    """A process of its own.

    Args:
        command: starts it.
        variables: its environment.
        log: takes what it prints.
        session: whether it leads a session of its own, not only a group.

    Attributes:
        pid: its number, which is that of its process group.
        stdin: the other end of its standard input.
        descriptor: readable when there is something for `poll`; -1 where the system has none.
        counted: number of a process in its cgroup.
        refused: whether there will be no process.

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
        """Return its exit code, negative for a signal; None: it has not ended."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for its end. Returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kill it and all that it started."""
        if self.poll() is None:
            kill_tree(self.pid)
        kill_group(self.pid)

    def close(self) -> None:
        """Forget it, once it has ended and its companion has, or does not in time."""
        close_input(self.stdin)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def story(self, code: int, where: str = "") -> str:
        """Return how it ended, with this exit code. `where` follows its number, for example " on alpha"."""
        return f"process {self.pid}{where} {story(code)}"


def kill_tree(pid: int) -> None:
    """End an agent that runs and all that it started, in sessions of their own too. Its companion is spared, as it
    cleans up and ends by itself. Elsewhere than on Linux, where it cannot be recognized, nothing is done."""
    if sys.platform == "linux":
        Tree(pid).end()


def kill_group(pid: int) -> None:
    """End a process and all that is in its group."""
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

"""An agent's companion: a small process that tells the driver that the agent lives, and cleans up when it does not.

It is a process of its own because a thread is not enough. A call into C that holds the interpreter's lock keeps every
other thread of the agent from running, for minutes where a library is careless; and a process that is stopped or
killed can do nothing about the processes that it has started.

- It sends a heartbeat every few seconds, with the counters that the agent leaves in a page of shared memory
  (`progress.py`). For an agent that is stopped (SIGSTOP) it sends none, so that the driver notices the silence.
- It holds the agent's standard input, whose end means that the driver is gone. It also watches the process that started
  the agent, as other children of that process may hold the other end of the pipe. Then it ends the agent and all that
  the agent has started: stopped processes too, and those that have made a session or a group of their own.
- If the agent makes no progress and will be ended for it, the companion has the stacks of its threads written to the
  agent's log.
- When the agent has ended, in whatever way, it ends the rest of the agent's process group, and removes the run's folder
  in shared memory if no process of the run is left on this host.

It is forked while the agent is small: before a framework is imported, before there are threads, and before there is a
socket. It has a process group of its own, so that it outlives the agent's group, which engines end as a whole. If it
ends itself, or is stopped, the driver receives no heartbeat any more, and replaces the agent; the agent's end then lets
a companion that was stopped go on.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

import zmq

from hopyard.agent.connection import dial
from hopyard.agent.parent import signal_with
from hopyard.agent.progress import Progress
from hopyard.core.liveness import COMPUTING, PHASES, Sample, Watch
from hopyard.core.messages import Beat, Card, pack
from hopyard.system.processes import COMPANION, Tree, ended, state_of, watched

STOPPED = frozenset("Tt")
"""States of a process that is stopped, or held by a debugger."""
LOOK_SECONDS = 0.2
"""Seconds between two checks of processes, where the system has no descriptors for them."""
STACKS_SHARE = 0.75
"""Part of `stall_timeout` after which the agent's stacks are written. Not sooner, as the signal for that may interrupt
what the agent waits for."""
END_SECONDS = 5.0
"""Time for killed processes, and for those that share the memory, to end."""
KILLED_SECONDS = 2.0
"""Time for a killed agent to end, until its memory is looked at."""
STACKS = signal.SIGUSR1
"""Signal that makes an agent write its threads' stacks, also while C code keeps the interpreter's lock."""


def accompany(card: Card, progress: Progress) -> None:
    """Fork a companion for this process, which gives its standard input to it. No thread may run yet.

    Args:
        card: of the agent.
        progress: the page that the agent writes.
    """
    agent, driver = os.getpid(), os.getppid()
    companion = os.fork()
    if not companion:
        _live(card, progress, agent, driver)
    progress.companion = companion  # only here: both processes have the page
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=_end_with, args=(driver,), name="hopyard-watch", daemon=True).start()


def _end_with(driver: int) -> None:
    """End this agent some seconds after its driver, with its process group. That is its companion's work, which may be
    stopped or gone; a stopped one goes on when its agent ends."""
    file = watched(driver)
    while not (_readable(file) if file >= 0 else ended(driver)):
        if file >= 0:
            select.select([file], [], [])
        else:
            time.sleep(LOOK_SECONDS)
    time.sleep(2 * END_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _live(card: Card, progress: Progress, agent: int, driver: int) -> NoReturn:
    """Run the companion in the forked process."""
    code = 1
    try:
        gc.freeze()  # leave the pages of memory that are shared with the agent alone
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)  # they end the agent, and the companion notices that
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(COMPANION)
        signal_with(agent, signal.SIGCONT)
        _Companion(card, progress, agent, driver).run()
        code = 0
    except BaseException:  # noqa: BLE001 - the agent's log is the only place left to say it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


class _Companion:
    """Sends one agent's heartbeats, and cleans up after its end."""

    def __init__(self, card: Card, progress: Progress, agent: int, driver: int) -> None:
        self._card, self._progress = card, progress
        self._agent, self._driver = agent, driver
        self._tree = Tree(agent)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._descriptors = {process: watched(process) for process in (agent, driver)}
        for file in self._descriptors.values():
            if file >= 0:
                self._poll.register(file, select.POLLIN)
        self._socket = self._dial()
        self._watch = Watch(time.monotonic())
        self._stacks_written = False

    def _dial(self) -> zmq.Socket[bytes]:
        return dial(zmq.Context(), self._card, "b", {zmq.LINGER: 0, zmq.SNDHWM: 2})  # old heartbeats are of no use

    def run(self) -> None:
        """Run until the agent or the driver has ended."""
        due = time.monotonic()
        while True:
            wait = max(0.0, due - time.monotonic())
            if -1 in self._descriptors.values():
                wait = min(wait, LOOK_SECONDS)
            self._poll.poll(math.ceil(wait * 1000))
            if self._has_ended(self._agent):
                break
            if self._is_orphaned():
                self._tree.end()
                deadline = time.monotonic() + KILLED_SECONDS
                while not self._has_ended(self._agent) and time.monotonic() < deadline:
                    time.sleep(0.002)
                break
            if time.monotonic() >= due:
                due = time.monotonic() + self._card.beat
                self._beat()
        self._clear_up()

    def _has_ended(self, process: int) -> bool:
        file = self._descriptors[process]
        return _readable(file) if file >= 0 else ended(process)

    def _is_orphaned(self) -> bool:
        """Whether the driver is gone."""
        if self._has_ended(self._driver):
            return True
        try:
            return _readable(0) and not os.read(0, 4096)
        except OSError:
            return True

    def _beat(self) -> None:
        if state_of(self._agent) in STOPPED:
            self._watch.excuse(time.monotonic())
            return
        progress = self._progress
        phase = progress.phase
        cpu = self._tree.cpu_seconds() if PHASES[phase] in COMPUTING else 0.0
        with contextlib.suppress(zmq.Again):
            self._socket.send(pack(Beat(self._card.slot, progress.advanced, phase, cpu, progress.taken)), zmq.NOBLOCK)
        self._watch.see(Sample(time.monotonic(), progress.advanced, PHASES[phase], cpu))
        self._write_stacks()

    def _write_stacks(self) -> None:
        """Have the agent's stacks written, once for each stall."""
        seconds = self._watch.stall.seconds
        late = 0 < STACKS_SHARE * self._card.stall <= seconds
        if late and not self._stacks_written:
            phase = self._watch.stall.phase
            sys.stderr.write(f"no progress for {seconds:.0f} seconds in phase {phase!r}; where it is:\n")
            sys.stderr.flush()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._agent, STACKS)
        self._stacks_written = late

    def _clear_up(self) -> None:
        """Clean up after the agent. If the driver has ended too, other agents of the run are ending as well, and the
        last one removes the memory."""
        self._tree.end_group()
        if (folder := self._progress.folder) is None:
            return
        from hopyard.system.scratch import remove_if_alone

        deadline = time.monotonic() + (END_SECONDS if self._is_orphaned() else 0.0)
        while not remove_if_alone(folder) and time.monotonic() < deadline:
            time.sleep(0.01)


def _readable(file: int) -> bool:
    return bool(select.select([file], [], [], 0)[0])

"""An agent that hosts a program: it reserves ports, runs the user's `main` in its own process, and reports its end.

The process is a child, so that a crash, a hang or an exit of the user's code can be told apart, and so that the ports
of the task outlive it: a task that is started again keeps its address. The agent itself computes nothing.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from hopyard.agent.parent import adopt_orphans
from hopyard.agent.programs.channel import Pipe
from hopyard.agent.programs.ports import Ports
from hopyard.agent.programs.tensorboard import TensorBoard
from hopyard.core.messages import Card, End, unpack_up
from hopyard.core.programs.events import Begin, Ended, Halt, Reported, Reserved, Running
from hopyard.core.programs.messages import (
    FeedAllowed,
    FeedMessage,
    FeedOrder,
    FeedQuery,
    HostTasks,
    StopRequested,
    TensorBoardStarted,
)
from hopyard.core.programs.placement import Place
from hopyard.system.network import address_towards
from hopyard.system.processes import state_of, story, watched
from hopyard.system.scratch import scratch

if TYPE_CHECKING:
    from hopyard.agent.connection import DriverConnection

GENERATIONS = 20
"""Generations of processes left behind by a task that are searched; each is ended before the next."""
STORES = 3
"""How often torch's store may end by itself: where torch is not installed, it always does."""
LOOK_SECONDS = 1.0
"""Seconds between two checks whether the process was stopped."""
TERM_SECONDS = 1.0
"""Seconds from SIGTERM to SIGKILL."""


class TaskSupervisor:
    """Owner of one child at a time.

    Args:
        card: of this agent.
        connection: to the driver.
        setup: the program to host.
        companion: process id of the agent's other child, which must not be ended.
    """

    def __init__(self, card: Card, connection: DriverConnection, setup: HostTasks, companion: int) -> None:
        self._companion = companion
        self._slot = card.slot
        self._connection = connection
        self._setup = setup
        self._address = address_towards(setup.home)
        self._ports = Ports(self._address)
        self._poll = zmq.Poller()
        self._poll.register(connection.socket, zmq.POLLIN)
        self._poll.register(self._ports.store_listener, zmq.POLLIN)
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._pidfd = -1
        self._task: Begin | None = None
        self._end_sent = False
        """Whether the end of the task's `main` was reported."""
        self._begun = False
        self._halt_at = 0.0
        """When a child that was told to end is killed; 0: it was not told."""
        self._stopped_at = 0.0
        """Since when the child is stopped (SIGSTOP); 0: it is not."""
        self._tensorboard: TensorBoard | None = None
        self._allowed: dict[str, FeedAllowed] = {}
        """Feed → how far it may go, for a process that could not be sent it yet, as it did not read."""
        self._stores_ended = 0
        """How often torch's store has ended by itself."""
        self._folder = scratch("task")
        """For files that the tasks keep on the host."""

    def run(self) -> None:
        """Host tasks until the driver ends the agent."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        gpus = tuple(name for name in visible if name.strip() not in ("", "-1"))
        place = Place(self._slot, socket.gethostname(), os.getpid(), self._address, self._ports.numbers, gpus)
        adopt_orphans()
        self._spawn()
        self._connection.send(Reserved(place=place))
        try:
            while self._step():
                pass
        finally:
            self._end_child()
            if self._tensorboard is not None:
                self._tensorboard.close()
            self._ports.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _step(self) -> bool:
        """Wait for an event and handle it. False: the driver ends the agent."""
        wait = min(LOOK_SECONDS, max(0.0, self._halt_at - time.monotonic())) if self._halt_at else LOOK_SECONDS
        ready = {key for key, _ in self._poll.poll(math.ceil(wait * 1000))}
        if self._pipe is not None and self._pipe.fileno() in ready:
            self._forward()
        if self._child is not None and (self._pidfd in ready or self._pidfd < 0) and self._child.poll() is not None:
            self._report_exit()
        if self._ports.store_listener.fileno() in ready and not self._ports.has_store:
            self._poll.unregister(self._ports.store_listener)
            self._ports.open_store()
        if self._ports.store_ended():
            self._stores_ended += 1
            if self._stores_ended < STORES:
                print("torch's store ended; the next client gets another", flush=True)  # noqa: T201 - the log
                self._poll.register(self._ports.store_listener, zmq.POLLIN)
            else:
                print(f"torch's store ended {STORES} times; there is none any more", flush=True)  # noqa: T201
        if self._allowed and self._pipe is not None and self._pipe.writable():
            for message in [self._allowed.pop(feed) for feed in list(self._allowed)]:
                self._send(message)
        if self._tensorboard is not None and (started := self._tensorboard.poll()):
            self._connection.send(TensorBoardStarted(self._slot, *started))
        if self._halt_at and time.monotonic() >= self._halt_at and self._child is not None:
            self._child.kill()
        self._check_stopped()
        return self._receive()  # last, as it may change what there is to wait for

    def _receive(self) -> bool:
        for message in self._connection.received():
            if isinstance(message, End):
                return False
            if isinstance(message, Begin):
                self._begin(message)
            elif isinstance(message, Halt):
                self._halt(message)
            elif isinstance(message, (FeedMessage, StopRequested)) and self._is_present(message.incarnation):
                self._send(message)
        return True

    def _begin(self, message: Begin) -> None:
        """Run a task. Its process waits already, unless a task ran before."""
        if self._task is not None:
            self._end_child()
            if message.restart:
                self._ports.close_store()
            if not self._ports.has_store:
                self._poll.register(self._ports.store_listener, zmq.POLLIN)
            self._spawn()
        self._task, self._end_sent, self._begun = message, False, False
        self._allowed.clear()
        self._halt_at = self._stopped_at = 0.0
        print(f"--- {message.task.name}, attempt {message.restart}", flush=True)  # noqa: T201 - the log's headings
        self._send(message)
        if self._setup.tensorboard and message.task.rank == 0 and self._tensorboard is None:
            self._tensorboard = TensorBoard(self._setup.tensorboard, self._address)

    def _halt(self, message: Halt) -> None:
        """End the task: by SIGTERM, then by SIGKILL."""
        if not self._is_present(message.incarnation) or self._child is None:
            self._connection.send(Ended(slot=self._slot, incarnation=message.incarnation, halted=True))
            return
        if not self._begun:  # it hangs: write where
            self._child.send_signal(signal.SIGUSR1)
            time.sleep(0.05)  # for its stack to reach the log
        self._halt_at = time.monotonic() + TERM_SECONDS
        self._send(StopRequested(self._slot, message.incarnation))
        self._child.terminate()
        self._child.send_signal(signal.SIGCONT)

    def _forward(self) -> None:
        """Pass a message of the child on to the driver."""
        assert self._pipe is not None
        message = self._pipe.receive()
        if message is None:
            self._poll.unregister(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None
            return
        if isinstance(message, Running):
            self._begun = True
        if isinstance(message, Ended):
            self._end_sent = True
        self._connection.send(message, patient=isinstance(message, (Reported, FeedMessage)))

    def _report_exit(self) -> None:
        """Tell the driver that the child is gone."""
        child, task = self._child, self._task
        assert child is not None
        code = child.wait()
        if self._pipe is not None:
            self._pipe.hurry()  # its own children may hold the other end
        while self._pipe is not None:  # its last messages
            self._forward()
        self._clear_child()
        if task is None:  # before it had a task
            print(f"the process that waited for its task {story(code)}", flush=True)  # noqa: T201 - the log
            sys.exit(1)
        if not self._end_sent or self._halt_at:
            text = f"process {child.pid} on {socket.gethostname()} {story(code)}"
            halted = bool(self._halt_at)
            self._end_sent = True
            self._connection.send(
                Ended(slot=self._slot, incarnation=task.incarnation, code=code, story=text, halted=halted)
            )
        self._halt_at = 0.0

    def _check_stopped(self) -> None:
        """End the child if it was stopped (SIGSTOP) and did not go on within the heartbeat time-out."""
        if self._child is None or self._task is None or self._end_sent:
            return
        now = time.monotonic()
        if state_of(self._child.pid) not in "Tt":
            self._stopped_at = 0.0
        elif not self._stopped_at:
            self._stopped_at = now
        elif now - self._stopped_at > self._setup.heartbeat_timeout:
            seconds = now - self._stopped_at
            self._end_sent = True
            process = f"its process {self._child.pid} on {socket.gethostname()}"
            reason = f"{process} was stopped (SIGSTOP) for {seconds:.0f} seconds"
            code = -int(signal.SIGKILL)
            self._connection.send(Ended(slot=self._slot, incarnation=self._task.incarnation, code=code, error=reason))
            self._child.kill()

    # ------------------------------------------------------------------------------------------------ the child

    def _spawn(self) -> None:
        """Start a process that waits for its task; it is in this agent's group, and ends with it."""
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "hopyard.agent.programs.task", str(theirs.fileno()), str(self._folder)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._pipe = Pipe(ours, unpack_up)
        self._poll.register(self._pipe.fileno(), zmq.POLLIN)
        self._pidfd = watched(self._child.pid)
        if self._pidfd >= 0:
            self._poll.register(self._pidfd, zmq.POLLIN)
        self._send(self._setup)

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._pipe is not None:
            self._poll.unregister(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None
        self._clear_child()

    def _clear_child(self) -> None:
        self._child = None
        self._end_strays()
        if self._pidfd >= 0:
            self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _end_strays(self) -> None:
        """End the processes that the task has left behind, as they must not talk to the next attempt: those of this
        agent's group, and those in sessions of their own, whose parent this agent is by now. When one ends, this agent
        becomes the parent of its children."""
        tensorboard = 0 if self._tensorboard is None else self._tensorboard.pid
        spared = {os.getpid(), self._companion, self._ports.store_pid, tensorboard}
        own_pid, own_group = str(os.getpid()), str(os.getpgrp())
        for _ in range(GENERATIONS):
            killed = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, IndexError):
                    state, parent, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                    is_stray = parent == own_pid or (process_group == own_group == own_pid and state != "Z")
                    if is_stray and int(entry.name) not in spared:
                        killed.append(int(entry.name))
                        os.kill(killed[-1], signal.SIGKILL)
            if not killed:
                return
            deadline = time.monotonic() + TERM_SECONDS
            while killed and time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    if not os.waitpid(killed[-1], os.WNOHANG)[0]:
                        time.sleep(0.002)  # polled, as a wait for one child has no time-out
                        continue
                killed.pop()

    def _is_present(self, incarnation: int) -> bool:
        return self._task is not None and self._task.incarnation == incarnation

    def _send(self, message: Begin | HostTasks | FeedOrder | StopRequested) -> None:
        if self._pipe is None:
            return
        if isinstance(message, FeedAllowed):
            self._allowed.pop(message.feed, None)
        # there may be many of these, and writing to a process that is stopped would block this one
        if isinstance(message, (FeedQuery, FeedAllowed)) and not self._pipe.writable():
            if isinstance(message, FeedAllowed):
                self._allowed[message.feed] = message
            return
        with contextlib.suppress(OSError):
            self._pipe.send(message)

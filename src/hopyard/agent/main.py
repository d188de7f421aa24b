"""An agent: a process that dials home, gets its recipe once, and runs units until it is told to end.

Three threads. The main one receives a unit, runs it and answers, on a socket of its own, so that no answer waits for
another thread. A second tells the driver every few seconds that the process lives, also while a unit runs. A third
seals and stores States. The last two share a second socket under a lock.

Keys come on standard input, first line; its end means that the driver is gone, and the agent with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import msgspec
import zmq

from hopyard.agent.build import Plan, foresee, warm
from hopyard.agent.keep import Keeper
from hopyard.agent.reach import Network, reach
from hopyard.agent.work import Worker
from hopyard.core.events import Durable
from hopyard.core.messages import (
    LIMIT,
    Beat,
    Card,
    End,
    Examine,
    Hello,
    NoRoom,
    Ready,
    Setup,
    Unfit,
    Up,
    Work,
    pack,
    unpack_down,
)
from hopyard.data.manifest import Manifest
from hopyard.frameworks import environment, imported, quiet, tools
from hopyard.store.arena import Arena, Folder

ARENA_SHARE = 4
"""One agent uses at most this part of the free shared memory."""
PR_SET_PDEATHSIG = 1


class Line:
    """The connection home. `say` may be called from any thread, `answer` and `hear` from the main one only."""

    def __init__(self, card: Card) -> None:
        self._context = zmq.Context()
        self._main = self._dial(card, f"w{card.slot}")
        self._side = self._dial(card, f"s{card.slot}")
        self._lock = threading.Lock()

    def _dial(self, card: Card, name: str) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt_string(zmq.IDENTITY, name)
        dealer.curve_serverkey = card.server_key.encode()
        dealer.curve_publickey = card.public_key.encode()
        dealer.curve_secretkey = card.secret_key.encode()
        dealer.setsockopt(zmq.LINGER, 2000)
        dealer.setsockopt(zmq.MAXMSGSIZE, LIMIT)
        dealer.connect(card.address)
        return dealer

    def hear(self) -> Any:
        """The next message from the driver; waits for it."""
        return unpack_down(self._main.recv())

    def answer(self, message: Up) -> None:
        """Say something from the main thread."""
        self._main.send(pack(message))

    def say(self, message: Up) -> None:
        """Say something from another thread."""
        with self._lock:
            if not self._side.closed:
                self._side.send(pack(message))

    def close(self) -> None:
        """Hang up, once all that was said is sent."""
        with self._lock:
            self._main.close()
            self._side.close()
        self._context.term()

    def beat(self, slot: int, seconds: float) -> None:
        """Say now and then that the process lives, from a thread of its own."""

        def run() -> None:
            pause = threading.Event()
            while not pause.wait(seconds):
                self.say(Beat(slot))

        threading.Thread(target=run, name="hopyard-beat", daemon=True).start()


@dataclass(frozen=True, slots=True)
class Hands:
    """A worker and what it works with."""

    worker: Worker
    keeper: Keeper
    arena: Arena
    folder: Folder
    network: Network | None = None
    """Of an agent that may be on another host than the driver or its peers."""

    @property
    def place(self) -> dict[str, Any]:
        """What `Ready` says of its memory."""
        if self.network is None:
            return {}
        return {"memory": self.folder.identity, "peer": self.network.peer}

    def do(self, message: Work | Examine) -> Sequence[Up]:
        """The answers to a unit or to a check."""
        if isinstance(message, Examine):
            return [self.worker.check(message.trial, message.config)]
        for where in message.release:
            self.keeper.release(where)
        return self.worker.run(message.unit, message.config, message.peer)

    def close(self) -> None:
        """Store what is an epoch's end, give shared memory back."""
        self.keeper.close()
        if self.network is not None:
            self.network.close()
        self.arena.close()
        self.folder.close()


def assemble(slot: int, setup: Setup, tell: Callable[[Durable | NoRoom], None], card: Card | None = None) -> Hands:
    """A worker from what the driver sent.

    Args:
        slot: its number.
        setup: from the driver.
        tell: says what happens in the background.
        card: of an agent that may be on another host.

    Raises:
        Exception: whatever loading the recipe raises.
    """
    quiet()
    manifest = msgspec.json.decode(setup.manifest, type=Manifest)
    recipe = cloudpickle.loads(setup.recipe)
    foresee(recipe)
    plan = Plan(recipe, manifest, setup.spec, setup.device, setup.threads)
    reached = reach(setup, card)
    folder, store, network = reached.folder, reached.store, reached.network
    free = os.statvfs(folder.path)
    arena = Arena(folder.path, slot, free.f_bavail * free.f_frsize // ARENA_SHARE)
    keeper = Keeper(slot, store, arena, tell)
    fetch = None if network is None else network.take
    return Hands(Worker(slot, plan, store, arena, keeper, fetch), keeper, arena, folder, network)


def serve(card: Card) -> None:
    """The life of an agent."""
    line = Line(card)
    try:
        _serve(card, line)
    finally:
        line.close()


def _serve(card: Card, line: Line) -> None:
    slot = card.slot
    line.answer(Hello(slot))
    setup = line.hear()
    if not isinstance(setup, Setup):
        raise TypeError(f"the first message is Setup, not {type(setup).__name__}")
    line.beat(slot, setup.spec.silence / 6)
    for name, value in environment(setup.threads).items():
        os.environ.setdefault(name, value)
    try:
        hands = assemble(slot, setup, line.say, card)
    except Exception as error:  # noqa: BLE001 - told to the user, who must see it
        line.answer(Unfit(slot, f"{type(error).__name__}: {error}"))
        traceback.print_exc()
        return
    hands.worker.prepare()
    line.answer(Ready(slot, socket.gethostname(), os.getpid(), None, fingerprint(), **hands.place))
    warm()
    while True:
        message = line.hear()
        if isinstance(message, End):
            hands.close()
            return
        for answer in hands.do(message):
            line.answer(answer)


def fingerprint() -> dict[str, Any]:
    """What equal digests may depend on: versions, machine, processor."""
    import numpy as np

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
    }
    for framework in imported():
        found |= tools(framework).versions()
    return found


def die_with_parent(parent: int) -> None:
    """End when the parent ends: by signal where the kernel offers it, and by the end of standard input everywhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(1)

    threading.Thread(target=watch, name="hopyard-watch", daemon=True).start()


def main() -> None:
    """`python -m hopyard.agent`, started by an engine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each mapped column of each partition is a file
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the driver decides
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            os._exit(1)
        data += more
    card = msgspec.json.decode(data, type=Card)
    die_with_parent(os.getppid())
    try:
        serve(card)
    except Exception:  # noqa: BLE001 - the log is the only place left to say it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

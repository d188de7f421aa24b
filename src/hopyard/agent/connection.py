"""The agent's connection to the driver: what is sent arrives, once and in order, as long as both processes live.

Two sockets share one sequence of numbers (`core/delivery.py`). The first belongs to the main thread, which receives a
unit there, runs it and answers: no message of a unit waits for another thread. The second belongs to all others under a
lock, and is always read: by it go what the background has to say, confirmations, what the driver has to say in the
middle of a unit, and whatever is sent again. A thread of the connection's own reads it, and sends again what the driver
has not confirmed. What the agent has taken, its companion tells with each heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import zmq

from hopyard.agent.progress import Progress
from hopyard.core.delivery import Delivery, Head, Unconfirmed
from hopyard.core.messages import FRAME_LIMIT, Card, Down, End, GaveUp, Up, framed, pack, unframed, unpack_down
from hopyard.errors import HopyardError

CROWDED = 0.5
"""How much of what may wait does when patient senders stop."""
TELL = 100
"""Messages taken of which the driver is told at once, not by the next heartbeat."""
LOOK_SECONDS = 0.5
"""Between two looks of the main thread at whether something came by the second socket."""
LAST_SECONDS = 30.0
"""Seconds at most that an agent which ends by itself waits until its last words are confirmed."""
KEEPALIVE: Mapping[int, int] = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 6,
    zmq.TCP_MAXRT: 120_000,
}
"""Of all sockets at both ends. Firewalls forget connections that are idle: these keep it in use. One that was dropped
all the same is noticed within two minutes, and dialled anew."""
LAST_WORDS_SECONDS = 1.0
"""For the last words of an agent that gives up to leave the process."""


def dial(
    context: zmq.Context[zmq.Socket[bytes]], card: Card, name: str, options: Mapping[int, int] = MappingProxyType({})
) -> zmq.Socket[bytes]:
    """A socket to the driver, which knows it by this letter."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, card.name(name))
    dealer.curve_serverkey = card.server_key.encode()
    dealer.curve_publickey = card.public_key.encode()
    dealer.curve_secretkey = card.secret_key.encode()
    dealer.setsockopt(zmq.LINGER, 2000)
    dealer.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
    dealer.ipv6 = "[" in card.address
    for option, value in (*KEEPALIVE.items(), *options.items()):
        dealer.setsockopt(option, value)
    dealer.connect(card.address)
    return dealer


class Connection:
    """To the driver. Who makes it is its main thread.

    Args:
        card: who this agent is, and where the driver is.
        progress: where the agent's companion finds what was taken.
    """

    def __init__(self, card: Card, progress: Progress) -> None:
        self._slot = card.slot
        self._progress = progress
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._main = dial(self._context, card, "w")
        self._main.setsockopt(zmq.RCVTIMEO, int(LOOK_SECONDS * 1000))
        self._side = dial(self._context, card, "s")
        self._owner = threading.get_ident()
        self._delivery = Delivery(2 * card.beat)
        self._messages: deque[Down | HopyardError] = deque()
        self._handlers: dict[type[Any], Callable[[Any], object]] = {}
        self._aside: deque[Any] = deque()
        """Messages for handlers."""
        self._lock = threading.Lock()
        self._confirmed = threading.Condition(self._lock)
        self._open = True
        self._ending = False
        """Whether the driver has sent `End`, after which it confirms nothing."""
        self._pause = card.beat
        self._woken, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="hopyard-connection", daemon=True)
        self._thread.start()

    def send(self, message: Up, patient: bool = False) -> None:
        """Say something to the driver, from any thread. Nothing is said any more once the connection is closed.

        Args:
            message: what is said.
            patient: wait as long as much is not confirmed: of what there may be many, while the driver is paused.
        """
        body = pack(message)
        with self._lock:
            if patient and self._delivery.share >= CROWDED:
                self._confirmed.wait_for(lambda: self._delivery.share < CROWDED or self._ending)
            if not self._open:
                return
            try:
                head = self._delivery.send(body, time.monotonic())
            except Unconfirmed as error:
                self._give_up(str(error))
            if threading.get_ident() == self._owner:
                _put(self._main, framed(head, body))
            else:
                _put(self._side, framed(head, body))
                self._take(self._side)

    def receive(self, idle: Callable[[], object] | None = None) -> Down:
        """The next message from the driver, for the main thread; waits for it.

        Args:
            idle: called once when none has come for a moment.

        Raises:
            HopyardError: it is none of this version.
        """
        while not self._messages:
            try:
                data = self._main.recv()
            except zmq.Again:
                if idle is not None:
                    idle()
                    idle = None
                continue
            with self._lock:
                self._open_frame(data)
        return _known(self._messages.popleft())

    def received(self) -> list[Down]:
        """The messages that are there, for a main thread that also waits for others; something to read from `socket`
        tells of most, and it should look every second all the same.

        Raises:
            HopyardError: one is none of this version.
        """
        with self._lock:
            self._take(self._main)
            found = [_known(message) for message in self._messages]
            self._messages.clear()
        return found

    def handle(self, kind: type[Any], handler: Callable[[Any], object]) -> None:
        """Give messages of this kind to a function, in the connection's thread, and not to `receive`. It must not take
        long."""
        self._handlers[kind] = handler

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """What `received` reads, for those who wait for more than the driver."""
        return self._main

    def close(self) -> None:
        """Hang up, once what was said is confirmed or, where the driver has ended the agent, sent."""
        with self._lock:
            self._confirmed.wait_for(lambda: self._ending or not len(self._delivery), LAST_SECONDS)
            self._open = False
            self._confirmed.notify_all()
        os.write(self._waker, b"x")
        self._thread.join()
        self._main.close()
        self._side.close()
        self._context.term()
        os.close(self._woken)
        os.close(self._waker)

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._attend()
        except BaseException:  # noqa: BLE001 - without this thread the agent would be deaf: it ends, and says why
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _attend(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(int(self._side.getsockopt(zmq.FD)), select.POLLIN)
        while True:
            wait = min(self._pause, self._delivery.due - time.monotonic())
            for file, _ in poll.poll(max(0.0, wait) * 1000):
                if file == self._woken:
                    os.read(self._woken, 4096)
            with self._lock:
                if not self._open:
                    return
                self._take(self._side)
                for head, body in self._delivery.overdue(time.monotonic()):
                    _put(self._side, framed(head, body))
                self._take(self._side)
            while self._aside:
                message = self._aside.popleft()
                self._handlers[type(message)](message)

    # ------------------------------------------------------------------------------------------------ under the lock

    def _take(self, socket: zmq.Socket[bytes]) -> None:
        """All that has arrived there. Whoever has used the second socket must look, as its use may take away the signal
        by which the thread would be woken."""
        with contextlib.suppress(zmq.Again):
            while True:
                self._open_frame(socket.recv(zmq.NOBLOCK))

    def _open_frame(self, data: bytes) -> None:
        """Put aside the messages that this frame brings. Only the driver has the keys; what is none of its is lost."""
        delivery = self._delivery
        try:
            bodies = delivery.receive(*unframed(data))
        except HopyardError as error:
            print(f"slot {self._slot}: dropped what the driver sent: {error}", file=sys.stderr, flush=True)  # noqa: T201
            return
        for body in bodies:
            message = _decoded(body)
            if type(message) not in self._handlers:
                self._messages.append(message)
                self._ending |= isinstance(message, End)
            else:
                self._aside.append(message)
                os.write(self._waker, b"x")
        delivery.confirm()
        self._progress.taken = delivery.confirmed
        if delivery.untold >= TELL:
            _put(self._side, framed(delivery.confirmation(), b""))
        self._confirmed.notify_all()

    def _give_up(self, reason: str) -> None:
        """End the process: nobody knows what the driver has heard of it."""
        print(f"slot {self._slot}: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the log
        self._side.poll(int(LAST_WORDS_SECONDS * 1000), zmq.POLLOUT)  # it may be full of what nobody confirmed
        _put(self._side, framed(Head(0, self._delivery.confirmed), pack(GaveUp(self._slot, reason))))
        self._open = False
        self._side.close()  # the main thread may be using its own
        time.sleep(LAST_WORDS_SECONDS)
        os._exit(1)


def _put(socket: zmq.Socket[bytes], data: bytes) -> None:
    """What finds no room is lost like anything else that is lost on its way."""
    with contextlib.suppress(zmq.Again):
        socket.send(data, zmq.NOBLOCK)


def _decoded(body: bytes) -> Down | HopyardError:
    try:
        return unpack_down(body)
    except HopyardError as error:
        return error


def _known(message: Down | HopyardError) -> Down:
    if isinstance(message, HopyardError):
        raise message
    return message

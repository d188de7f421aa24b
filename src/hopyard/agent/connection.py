"""The agent's connection to the driver: what is sent arrives, once and in order, as long as both processes live.

Two sockets share one sequence of numbers (`core/delivery.py`). The first belongs to the main thread, which receives a
unit there, runs it and answers: no message of a unit waits for another thread. The second belongs to all others under a
lock, and is always read: it carries messages of background threads, confirmations, messages of the driver in the middle
of a unit, and whatever is sent again. A thread of the connection's own reads it, and sends again what the driver has
not confirmed. The companion's heartbeats say which messages the agent has received.
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
from hopyard.core.delivery import Delivery, Header, Unconfirmed
from hopyard.core.messages import FRAME_LIMIT, Card, Down, End, GaveUp, Up, framed, pack, unframed, unpack_down
from hopyard.errors import HopyardError

CROWDED_SHARE = 0.5
"""Share of the messages that may wait for confirmation at which patient senders stop."""
CONFIRM_AT = 100
"""Number of unconfirmed messages at which the driver is sent a confirmation at once, not by the next heartbeat."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of the main thread for messages that came by the second socket."""
LAST_SECONDS = 30.0
"""Seconds at most that an agent which ends by itself waits until its last messages are confirmed."""
KEEPALIVE: Mapping[int, int] = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 6,
    zmq.TCP_MAXRT: 120_000,
}
"""Options of all sockets at both ends. Firewalls drop connections that are idle: these keep them in use. One that was
dropped all the same is noticed within two minutes, and dialled anew."""
LAST_WORDS_SECONDS = 1.0
"""Time for the last message of an agent that gives up to leave the process."""


def dial(
    context: zmq.Context[zmq.Socket[bytes]], card: Card, name: str, options: Mapping[int, int] = MappingProxyType({})
) -> zmq.Socket[bytes]:
    """Return a socket to the driver, which knows it by the letter `name`."""
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


class DriverConnection:
    """The agent's connection to the driver. The thread that creates it is its main thread.

    Args:
        card: identity of this agent, and address of the driver.
        progress: where the agent's companion reads which messages were received.
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
        self._for_handlers: deque[Any] = deque()
        """Messages that wait for their handlers."""
        self._lock = threading.Lock()
        self._confirmed = threading.Condition(self._lock)
        self._open = True
        self._ending = False
        """Whether the driver has sent `End`, after which it confirms nothing."""
        self._pause = card.beat
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run_thread, name="hopyard-connection", daemon=True)
        self._thread.start()

    def send(self, message: Up, patient: bool = False) -> None:
        """Send a message to the driver, from any thread. Nothing is sent any more once the connection is closed.

        Args:
            message: the message.
            patient: wait while many messages are not confirmed: for kinds that may be many while the driver is paused.
        """
        body = pack(message)
        with self._lock:
            if patient and self._delivery.outbox.share >= CROWDED_SHARE:
                self._confirmed.wait_for(lambda: self._delivery.outbox.share < CROWDED_SHARE or self._ending)
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
                self._read_all(self._side)

    def receive(self, idle: Callable[[], object] | None = None) -> Down:
        """Return the next message from the driver, to the main thread; waits for it.

        Args:
            idle: called once when none has come for a moment.

        Raises:
            HopyardError: this version does not know the message.
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
        return _checked(self._messages.popleft())

    def received(self) -> list[Down]:
        """Return the messages that are there, for a main thread that also waits for others. It should call this when
        `socket` can be read, which most messages cause, and every second all the same.

        Raises:
            HopyardError: this version does not know one of them.
        """
        with self._lock:
            self._read_all(self._main)
            messages = [_checked(message) for message in self._messages]
            self._messages.clear()
        return messages

    def handle(self, kind: type[Any], handler: Callable[[Any], object]) -> None:
        """Pass messages of this kind to a function in the connection's thread, and not to `receive`. The function must
        not take long."""
        self._handlers[kind] = handler

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket that `received` reads, for a thread that waits for more than the driver."""
        return self._main

    def close(self) -> None:
        """Close the connection, once all messages are confirmed or, where the driver has ended the agent, sent."""
        with self._lock:
            self._confirmed.wait_for(lambda: self._ending or not len(self._delivery.outbox), LAST_SECONDS)
            self._open = False
            self._confirmed.notify_all()
        os.write(self._wake_writer, b"x")
        self._thread.join()
        self._main.close()
        self._side.close()
        self._context.term()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    # ------------------------------------------------------------------------------------------------ the thread

    def _run_thread(self) -> None:
        try:
            self._serve()
        except BaseException:  # noqa: BLE001 - without this thread the agent receives nothing: it ends, and says why
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(int(self._side.getsockopt(zmq.FD)), select.POLLIN)
        while True:
            wait = min(self._pause, self._delivery.outbox.due - time.monotonic())
            for file, _ in poll.poll(max(0.0, wait) * 1000):
                if file == self._wake_reader:
                    os.read(self._wake_reader, 4096)
            with self._lock:
                if not self._open:
                    return
                self._read_all(self._side)
                for head, body in self._delivery.overdue(time.monotonic()):
                    _put(self._side, framed(head, body))
                self._read_all(self._side)
            while self._for_handlers:
                message = self._for_handlers.popleft()
                self._handlers[type(message)](message)

    # ------------------------------------------------------------------------------------------------ under the lock

    def _read_all(self, socket: zmq.Socket[bytes]) -> None:
        """Read all frames that have arrived at a socket. This must follow any use of the second socket, as that may
        clear the signal that would wake the thread."""
        with contextlib.suppress(zmq.Again):
            while True:
                self._open_frame(socket.recv(zmq.NOBLOCK))

    def _open_frame(self, data: bytes) -> None:
        """Queue the messages of this frame. Only the driver has the keys; a frame that is not valid is dropped."""
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
                self._for_handlers.append(message)
                os.write(self._wake_writer, b"x")
        delivery.confirm()
        self._progress.taken = delivery.confirmed
        if delivery.unsent_confirmations >= CONFIRM_AT:
            _put(self._side, framed(delivery.confirmation(), b""))
        self._confirmed.notify_all()

    def _give_up(self, reason: str) -> None:
        """End the process: nobody knows which of its messages the driver has received."""
        print(f"slot {self._slot}: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the log
        self._side.poll(int(LAST_WORDS_SECONDS * 1000), zmq.POLLOUT)  # it may be full of frames that nobody confirmed
        _put(self._side, framed(Header(0, self._delivery.confirmed), pack(GaveUp(self._slot, reason))))
        self._open = False
        self._side.close()  # the main thread may be using its own
        time.sleep(LAST_WORDS_SECONDS)
        os._exit(1)


def _put(socket: zmq.Socket[bytes], data: bytes) -> None:
    """Send a frame. One that finds no room is lost, like any other that is lost on its way."""
    with contextlib.suppress(zmq.Again):
        socket.send(data, zmq.NOBLOCK)


def _decoded(body: bytes) -> Down | HopyardError:
    try:
        return unpack_down(body)
    except HopyardError as error:
        return error


def _checked(message: Down | HopyardError) -> Down:
    if isinstance(message, HopyardError):
        raise message
    return message

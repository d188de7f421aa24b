"""Messages that arrive once and in order over connections that lose, double and reorder them.

**Theory of operation.** Both ends number what they send, from 1. A receiver takes a number once and in order: what came
before is dropped, what comes too early waits for the gap to be filled. With every frame travels the highest number that
its sender has confirmed, so that most confirmations cost nothing; where nothing else goes, a frame of number 0 and no
body carries it. What is not confirmed in time is sent again, each time after twice as long: a large message that is
still on its way is not buried under copies of itself.

A receiver may take messages first and confirm them later: the driver confirms the messages that its journal holds.

No clock, no sockets: time comes with the calls. `Delivery` is one end; the names of connections, which tell one process
from the next under the same slot, are the wire's.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from hopyard.errors import HopyardError

MESSAGES = 1000
"""Messages that may wait for their confirmation."""
BYTES = 64 << 20
"""Bytes of messages that may wait; a single message may always wait."""
SPEED = 4 << 20
"""Bytes a second that a connection is trusted to carry before a large message is sent again."""
LONGEST = 64.0
"""Seconds at most between two times that a message is sent, but for the time that its bytes need."""


class Unconfirmed(HopyardError):
    """More messages or bytes wait for their confirmation than are allowed."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a frame; it stands before the body."""

    number: int
    """Number of the message; 0: the frame carries no numbered message."""
    confirmed: int
    """Highest number that the sender of this frame confirms to the other end."""


class PendingMessage(msgspec.Struct, gc=False):
    """A message that was sent and is not confirmed."""

    number: int
    body: bytes
    due: float
    """When it is sent again."""
    pause: float
    """Seconds from then until it is sent once more."""
    since: float
    """When it should have arrived, had nothing gone wrong."""


class Outbox:
    """The messages that one end has sent and the other has not confirmed.

    Args:
        patience: seconds before a small message is sent again.
        messages: how many may wait.
        size: how many bytes of messages may wait.
    """

    __slots__ = ("_bytes", "_messages", "_size", "_waiting", "due", "number", "patience")

    def __init__(self, patience: float, messages: int = MESSAGES, size: int = BYTES) -> None:
        self.patience = patience
        self.number = 0
        """Number of the message that was added last."""
        self._messages, self._size = messages, size
        self._waiting: deque[PendingMessage] = deque()
        self._bytes = 0
        self.due = math.inf
        """Nothing is to be sent again before this time."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def share(self) -> float:
        """The part of the allowed messages or bytes that waits, from 0 to 1."""
        return max(len(self._waiting) / self._messages, self._bytes / self._size)

    @property
    def since(self) -> float:
        """Since when the oldest message waits for its confirmation; infinity: none does."""
        return self._waiting[0].since if self._waiting else math.inf

    def add(self, body: bytes, now: float) -> int:
        """Keep a message until it is confirmed.

        Returns:
            int: its number.

        Raises:
            Unconfirmed: too much waits already.
        """
        if self._waiting and (len(self._waiting) >= self._messages or self._bytes + len(body) > self._size):
            raise Unconfirmed(
                f"{len(self._waiting):,} messages of {self._bytes:,} bytes were sent and never confirmed; at most "
                f"{self._messages:,} messages and {self._size:,} bytes may wait"
            )
        self.number += 1
        transfer = len(body) / SPEED
        due = now + self.patience + transfer
        self._waiting.append(PendingMessage(self.number, body, due, 2 * self.patience + transfer, now + transfer))
        self._bytes += len(body)
        self.due = min(self.due, due)
        return self.number

    def confirm(self, number: int) -> None:
        """Drop the messages up to this number: the other end has them. A number that was never sent is ignored."""
        if number > self.number:
            return
        waiting = self._waiting
        while waiting and waiting[0].number <= number:
            self._bytes -= len(waiting.popleft().body)

    def overdue(self, now: float) -> list[tuple[int, bytes]]:
        """Return (number, body) of each message to be sent again, in order, and puts off when it is due next."""
        if now < self.due:
            return []
        messages = []
        self.due = math.inf
        for waiting in self._waiting:
            if waiting.due <= now:
                messages.append((waiting.number, waiting.body))
                waiting.due = now + waiting.pause
                waiting.pause = min(2 * waiting.pause, LONGEST + len(waiting.body) / SPEED)
            self.due = min(self.due, waiting.due)
        return messages


class Inbox:
    """The messages that one end receives: each once, in order.

    Args:
        messages: how many that came too early may wait for the missing ones before them.
        size: how many bytes those may have.
    """

    __slots__ = ("_bytes", "_early", "_messages", "_size", "delivered")

    def __init__(self, messages: int = MESSAGES, size: int = BYTES) -> None:
        self.delivered = 0
        """The highest number that was delivered; so were all below it."""
        self._messages, self._size = messages, size
        self._early: dict[int, bytes] = {}
        self._bytes = 0

    def take(self, number: int, body: bytes) -> list[bytes]:
        """Return the messages that can now be delivered, in order: none if this one came before or comes too early."""
        if number != self.delivered + 1:
            ahead = number - self.delivered
            if 0 < ahead <= self._messages and number not in self._early and self._bytes + len(body) <= self._size:
                self._early[number] = body
                self._bytes += len(body)
            return []
        self.delivered = number
        messages = [body]
        while self.delivered + 1 in self._early:
            self.delivered += 1
            messages.append(self._early.pop(self.delivered))
            self._bytes -= len(messages[-1])
        return messages


class Delivery:
    """One end of the connection between the driver and one agent.

    Args:
        patience: seconds before what is not confirmed is sent again.

    Attributes:
        outbox: what this end has sent. Confirmations that come in another way than by a frame go to it directly.
    """

    __slots__ = ("_inbox", "_sent_confirmation", "confirmed", "outbox")

    def __init__(self, patience: float) -> None:
        self.outbox = Outbox(patience)
        self._inbox = Inbox()
        self.confirmed = 0
        """The highest number that this end confirms."""
        self._sent_confirmation = 0
        """The highest confirmation that this end has sent and that, as far as it knows, arrived."""

    @property
    def unsent_confirmations(self) -> int:
        """How many messages this end has confirmed without having sent the confirmation."""
        return self.confirmed - self._sent_confirmation

    def send(self, body: bytes, now: float) -> Header:
        """Number a message and keep it until it is confirmed. Returns its header.

        Raises:
            Unconfirmed: too much waits already.
        """
        return self._head(self.outbox.add(body, now))

    def receive(self, head: Header, body: bytes) -> list[bytes]:
        """Return the messages that can be delivered after this frame, in order."""
        self.outbox.confirm(head.confirmed)
        if not head.number:
            return []
        if head.number <= self._sent_confirmation:  # it was sent again: our confirmation did not arrive
            self._sent_confirmation = head.number - 1
        return self._inbox.take(head.number, body)

    def confirm(self) -> None:
        """Confirm all messages received so far: frames carry their number from now on."""
        self.confirmed = self._inbox.delivered

    def overdue(self, now: float) -> list[tuple[Header, bytes]]:
        """Return the frames that must be sent again."""
        return [(self._head(number), body) for number, body in self.outbox.overdue(now)]

    def confirmation(self) -> Header:
        """Return the header of a frame that only confirms."""
        return self._head(0)

    def _head(self, number: int) -> Header:
        self._sent_confirmation = self.confirmed
        return Header(number, self.confirmed)

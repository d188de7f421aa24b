"""The messages between the driver and its supervisors: one line of JSON for each.

A supervisor sends `Hello`; then the driver orders it to start and to end agents, and it reports what becomes of them.
Both ends have one version of Hopyard: a supervisor with another one is not used.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

FORMAT = 1
"""Version of these messages; the executors may have another version of Hopyard than the driver."""


class Hello(msgspec.Struct, frozen=True):
    """The first line of a supervisor. It has no tag, so that one of any version is understood."""

    token: str
    host: str = ""
    executor: str = ""
    """Host, and process of the executor there."""
    gpus: tuple[str, ...] = ()
    job: int = -1
    """Number of the job whose task started it."""
    format: int = 0


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """The base of all other messages."""


class Start(Message, frozen=True):
    """To a supervisor: start an agent for this slot."""

    slot: int


class End(Message, frozen=True):
    """To a supervisor: end the agent of this slot, then report `Free`."""

    slot: int


class EndTask(Message, frozen=True):
    """To a supervisor: let the task end alone, and go on."""


class Leave(Message, frozen=True):
    """To a supervisor: end all."""


class Printed(Message, frozen=True):
    """To the driver: the agent of this slot printed this text."""

    slot: int
    text: str


class Free(Message, frozen=True):
    """To the driver: the agent of this slot was ended."""

    slot: int


class Ended(Message, frozen=True):
    """To the driver: the agent of this slot ended by itself. `memory`: the system killed it, as memory ran out."""

    slot: int
    reason: str
    memory: bool = False


class Leaving(Message, frozen=True):
    """To the driver: the supervisor leaves, for this reason."""

    reason: str


Order = Start | End | EndTask | Leave
Report = Printed | Free | Ended | Leaving

_encoder = msgspec.json.Encoder()
hello_of = msgspec.json.Decoder(Hello).decode
order_of = msgspec.json.Decoder(Order).decode
report_of = msgspec.json.Decoder(Report).decode
"""Bytes of a line → the message. They raise one of `core.facts.UNREADABLE`."""


def line_of(message: Hello | Order | Report) -> bytes:
    """Return the message as a line."""
    return _encoder.encode(message) + b"\n"


class Lines:
    """Puts lines together from the pieces that a socket brings."""

    def __init__(self) -> None:
        self._buffer = b""

    def __len__(self) -> int:
        """Return how many bytes wait for the end of their line."""
        return len(self._buffer)

    def add(self, data: bytes) -> Iterator[bytes]:
        """Add these bytes, and yield the lines that are whole now."""
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            yield line

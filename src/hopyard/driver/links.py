"""The protocol by which the loops of a run and of a program talk to their agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from hopyard.core.liveness import Stall
from hopyard.core.messages import Down, Up


class Gone(msgspec.Struct, frozen=True):
    """A slot ended: its engine says so, or it is silent, or it makes no progress."""

    slot: int
    reason: str
    memory: bool = False
    """Whether the system killed it because memory ran out."""


class Link(Protocol):
    """The connection of a loop to its agents."""

    def start(self, slot: int) -> None:
        """Start an agent; `Ready` follows."""
        ...

    def end(self, slot: int) -> None:
        """End an agent for good."""
        ...

    def send(self, slot: int, message: Down) -> None:
        """Send a message to an agent."""
        ...

    def receive(self, seconds: float) -> list[Up | Gone]:
        """Return all that arrived, after waiting up to `seconds` for the first message."""
        ...

    def confirm(self) -> None:
        """Confirm all that `receive` returned, which is on disk now: the agents may forget it."""
        ...

    def paused(self) -> float:
        """Return the seconds since the last call in which this process, or the machine, was stopped: nobody's fault."""
        ...

    def stalls(self) -> Mapping[int, Stall]:
        """Return the slots of which people should know that they make no progress."""
        ...

    def close(self) -> None:
        """Tell all agents to end, and see that they do."""
        ...

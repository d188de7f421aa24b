"""What the loops of a run and of a program talk to their agents through."""

from __future__ import annotations

from typing import Protocol

import msgspec

from hopyard.core.messages import Down, Up
from hopyard.core.runs.liveness import Stall


class Gone(msgspec.Struct, frozen=True):
    """A slot ended: its engine says so, or it is silent, or it makes no progress."""

    slot: int
    reason: str
    memory: bool = False
    """Whether the system killed it because memory ran out."""


class Link(Protocol):
    """What the loop talks through."""

    def start(self, slot: int) -> None:
        """Bring up an agent; `Ready` follows."""
        ...

    def end(self, slot: int) -> None:
        """End an agent for good."""
        ...

    def send(self, slot: int, message: Down) -> None:
        """Say something to an agent."""
        ...

    def receive(self, seconds: float) -> list[Up | Gone]:
        """All that arrived, waiting up to `seconds` for the first of it."""
        ...

    def confirm(self) -> None:
        """All that `receive` gave is on disk: the agents may forget it."""
        ...

    def paused(self) -> float:
        """Seconds since last asked in which this process did not run (stopped, or the machine was): nobody's fault."""
        ...

    def stalls(self) -> dict[int, Stall]:
        """Slots of which people should know that they make no progress."""
        ...

    def close(self) -> None:
        """Tell all to end, see that they do."""
        ...

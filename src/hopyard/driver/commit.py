"""What the loops of a run and of a program share: the link to their agents, a clock, and how facts take effect: first
the machine, then the journal, then the effects.

All facts that one receive brought, and the decisions that follow from them, reach the disk by one `fdatasync` before
any of them has an effect. If the disk is full the loop ends: the machine is ahead of the journal then, and is thrown
away; a driver that goes on from the journal folds it anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from hopyard.core.facts import Line
from hopyard.core.liveness import Stall
from hopyard.core.messages import Down, Up
from hopyard.store.journal import Journal

Event = TypeVar("Event")
Command = TypeVar("Command")


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


class Clock:
    """Seconds since the Unix epoch that never run backwards, and stand still while the driver does.

    Args:
        after: the last time that an earlier driver wrote; the system's clock may have been set back since.
    """

    def __init__(self, after: float = 0.0) -> None:
        self._offset = max(time.time(), after) - time.monotonic()
        self._last = 0.0

    def now(self) -> float:
        """Return the time in whole microseconds, which keeps it short: a journal has millions of times."""
        self._last = max(self._last, round(self._offset + time.monotonic(), 6))
        return self._last

    def skip(self, seconds: float) -> None:
        """Leave out time in which the driver did not run: no deadline passes in it."""
        self._offset -= seconds


def commit(
    events: Iterable[Event],
    handle: Callable[[Event], Sequence[Command]],
    journaled: Callable[[Event, Sequence[Command]], Sequence[Line]],
    journal: Journal[Line],
    link: Link,
) -> tuple[list[Line], list[Command]]:
    """Pass events to a machine, journal them, and confirm to the agents what they sent.

    Args:
        events: the events; each is asked for when the machine has handled the one before it.
        handle: method of the machine that returns its commands for an event.
        journaled: returns the lines of an event and of its commands.
        journal: gets all lines at once.
        link: to the agents.

    Returns:
        The lines, and the commands, which the caller carries out now.

    Raises:
        ResourceError: the disk is full.
    """
    lines: list[Line] = []
    commands: list[Command] = []
    for event in events:
        decided = handle(event)
        commands += decided
        lines += journaled(event, decided)
    journal.append(lines)
    link.confirm()
    return lines, commands

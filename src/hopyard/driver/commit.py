"""How facts take effect, in a run and in a program: machine, journal, then what follows from them.

All facts that one receive brought, and the decisions that follow from them, reach the disk by one `fdatasync` before
any of them has an effect. If the disk is full the loop ends: the machine is ahead of the journal then, and is thrown
away; who goes on from the journal folds it anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hopyard.core.facts import Line
from hopyard.driver.links import Link
from hopyard.store.journal import Journal

Event = TypeVar("Event")
Command = TypeVar("Command")


class Clock:
    """Seconds since the epoch of Unix that never run backwards, but stand while the driver does."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """The time, in whole microseconds: a journal has millions of times."""
        return round(self._offset + time.monotonic(), 6)

    def skip(self, seconds: float) -> None:
        """Time in which the driver did not run does not count: no deadline passes in it."""
        self._offset -= seconds


def commit(
    events: Iterable[Event],
    handle: Callable[[Event], Sequence[Command]],
    journaled: Callable[[Event, Sequence[Command]], Sequence[Line]],
    journal: Journal[Line],
    link: Link,
) -> tuple[list[Line], list[Command]]:
    """Tell a machine of events, journal them, and confirm to the agents what they said.

    Args:
        events: one after the other, each asked for when the machine has the one before it.
        handle: of the machine: what it commands then.
        journaled: the lines of an event and of what was commanded.
        journal: takes them all at once.
        link: to the agents.

    Returns:
        The lines, and the commands, which the caller carries out now.

    Raises:
        ResourceError: the disk is full.
    """
    lines: list[Line] = []
    commands: list[Command] = []
    for event in events:
        followed = handle(event)
        commands += followed
        lines += journaled(event, followed)
    journal.append(lines)
    link.confirm()
    return lines, commands

"""The facts that go into a feed's machine (`feeding.py`), and the commands that come out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopyard.core.programs.messages import Endpoint, FeedOrder
from hopyard.errors import HopyardError

Incarnations = frozenset[int]
"""The tasks that are fed, as numbers that no other start of a task has."""


# ----------------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class Fed:
    """The user calls: send all rows of a source so many times. `end`: no more come; wait until all are taken."""

    source: Any
    epochs: int
    end: bool
    timeout: float | None


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The user calls: no more rows come."""


@dataclass(frozen=True, slots=True)
class EndpointsAsked:
    """An inference of the user is about to send rows by itself."""


@dataclass(frozen=True, slots=True)
class TasksReplaced:
    """Tasks were started again while no call was under way."""


@dataclass(frozen=True, slots=True)
class EpochSent:
    """All rows of an epoch were sent."""

    epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The source failed before all rows of an epoch were sent."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Looked:
    """Time has passed, or the program's status has changed."""


FeedFact = Fed | EndAsked | EndpointsAsked | TasksReplaced | EpochSent | SourceFailed | Looked


# ----------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this message to the tasks of these incarnations; None: to all that are fed."""

    message: FeedOrder
    to: Incarnations | None


@dataclass(frozen=True, slots=True)
class SendRows:
    """Send all rows of this source once."""

    source: Any
    epoch: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Send no more rows of this source."""

    source: Any


@dataclass(frozen=True, slots=True)
class Warn:
    """Write into the log."""

    words: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The call returns: so many rows were sent; or these are the endpoints that were asked for."""

    rows: int = 0
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The call raises this error; None: the one with which the program, now over, failed."""

    error: HopyardError | None


FeedCommand = SendMessage | SendRows | Cancel | Warn | Answer | Fail

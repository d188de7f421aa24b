"""The messages between driver and agents about a program; the wire is that of `core/messages.py`.

Down go `HostTasks` once, then `Begin` (a task), `Halt`, and messages about feeds. Up go four facts of the program's
journal (`Reserved`, `Running`, `Reported`, `Ended`), whose time the driver sets when they arrive, and messages about
feeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hopyard.core.programs.feed_progress import Uneven


class HostMessage(msgspec.Struct, frozen=True, tag=True, tag_field="type", gc=False):
    """The base of these messages; the tag is the class's name."""


class HostTasks(HostMessage, frozen=True):
    """Down, once: host tasks of this program."""

    main: bytes
    """cloudpickle of (main, args), or of a script's (source, name, arguments)."""
    script: bool
    directory: str
    heartbeat_timeout: float
    """Seconds after which a process that was stopped is lost."""
    token: str
    """The token with which rows are accepted."""
    home: str
    """Host at which the agent reaches the driver; the same network leads to its peers."""
    apart: bool
    tensorboard: str = ""
    """Directory that TensorBoard shows, started beside the first task."""
    tensorflow1: bool = False
    environment: dict[str, str] = {}
    interface: bool = True
    """Whether collectives are told which network interface leads to the peers."""
    store: str = ""
    """Path or URL of the checkpoints; "": they are in the directory."""
    owner: str = ""
    """The mark of this launch in `store`: without it there, its tasks write no checkpoints."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one process of a program takes rows."""

    machine: str
    """`feeds.protocol.machine` of the process."""
    path: str
    """Its unix socket."""
    host: str = ""
    port: int = 0
    """Port of its TCP socket; 0: it has none."""
    executor: str = ""
    """`feeds.protocol.executor` of the process: which of Spark's executors hosts it; empty: none."""


class FeedEndpoint(HostMessage, frozen=True):
    """Up: rows can be sent to this slot's process."""

    slot: int
    incarnation: int
    endpoint: Endpoint


class TensorBoardStarted(HostMessage, frozen=True):
    """Up: TensorBoard has started, or why it has not."""

    slot: int
    url: str
    error: str = ""


class StopRequested(HostMessage, frozen=True):
    """Down: the program is about to be ended; the task may end by itself."""

    slot: int
    incarnation: int


class FeedMessage(HostMessage, frozen=True, kw_only=True):
    """A message about a feed, to or from the task of this incarnation."""

    feed: str
    slot: int = 0
    incarnation: int = 0


class FeedOpened(FeedMessage, frozen=True, kw_only=True):
    """Down: rows will come; the task must open an endpoint."""

    uneven: Uneven


class FeedEnded(FeedMessage, frozen=True):
    """Down: no more rows come."""


class FeedFailed(FeedMessage, frozen=True, kw_only=True):
    """Down: the missing rows will not come."""

    error: str


class FeedAllowed(FeedMessage, frozen=True, kw_only=True):
    """Down: how many batches may be given out, and whether there will never be more."""

    batches: int
    final: bool


class FeedQuery(FeedMessage, frozen=True, kw_only=True):
    """Down: how many rows were taken? Answered by `RowsTaken` with the same number."""

    question: int


class RowsTaken(FeedMessage, frozen=True, kw_only=True):
    """Up: how many rows were taken so far, and whether some wait."""

    rows: int
    waiting: bool
    question: int


class BatchesReady(FeedMessage, frozen=True, kw_only=True):
    """Up: how many batches are ready, and whether there will never be more."""

    batches: int
    final: bool


FeedOrder = FeedOpened | FeedEnded | FeedFailed | FeedAllowed | FeedQuery
"""Messages about a feed that go down."""

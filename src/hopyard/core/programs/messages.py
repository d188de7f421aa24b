"""What driver and agents say to each other about a program; the wire is that of `messages.py`.

Down go `Host` once, then `Begin` (a task), `Halt`, and words about feeds. Up go four facts of the program's journal
(`Reserved`, `Running`, `Reported`, `Ended`), whose time the driver sets when they arrive, and words about feeds.
"""

from __future__ import annotations

from typing import Any

import msgspec


class HostMessage(msgspec.Struct, frozen=True, tag=True, tag_field="type", gc=False):
    """What all of them are; the tag is the class's name."""


class Host(HostMessage, frozen=True):
    """Down, once: host tasks of this program."""

    main: bytes
    """cloudpickle of (main, args), or of (source, name, arguments) of a script."""
    script: bool
    directory: str
    heartbeat_timeout: float
    """Seconds after which a process that was stopped is lost."""
    token: str
    """Lets rows in."""
    home: str
    """Host by which the agent reaches the driver: the way to its peers, too."""
    apart: bool
    tensorboard: str = ""
    """Directory that TensorBoard shows, started beside the first task."""
    tensorflow1: bool = False
    environment: dict[str, str] = {}
    interface: bool = True
    """Whether collectives are told which network interface leads to the peers."""


class FeedEndpoint(HostMessage, frozen=True):
    """Up: rows can be sent to this slot's process."""

    slot: int
    incarnation: int
    endpoint: dict[str, Any]


class TensorBoardStarted(HostMessage, frozen=True):
    """Up: TensorBoard is there, or why it is not."""

    slot: int
    url: str
    error: str = ""


class FeedWord(HostMessage, frozen=True):
    """Both ways: a word about a feed. Up: "counts" (batches that are ready, whether there will be more), "terminated";
    down: "open" (make an endpoint), "ended", "failed", "allowed"."""

    slot: int
    incarnation: int
    feed: str
    word: str
    number: int = 0
    flag: bool = False
    text: str = ""

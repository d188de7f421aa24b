"""The segments of a journal at a URL: files with the numbers 0, 1, 2, … as names. None is ever rewritten or removed.

A segment names its writer and the bytes of the journal that follow its first line. One that begins at byte 0 behind
others begins another journal: the earlier one is retired. Segment 0 is empty, as is the first one of each later driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from hopyard.errors import HopyardError, JournalError
from hopyard.filesystems import Directory

AT_ONCE = 32
"""Segments that are read at once."""
PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Seconds before a request of a reader is made again."""


class Writer(msgspec.Struct, frozen=True):
    """The driver that wrote a segment."""

    id: str
    host: str
    process: int
    folder: str
    """The id of its working folder."""

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host}"


class Head(msgspec.Struct, frozen=True):
    """The first line of a segment."""

    writer: Writer
    start: int
    """The byte of the journal at which the content begins."""
    bytes: int
    at: float
    """When it was made, by the writer's clock, in seconds since the epoch of Unix."""


def pace(number: int) -> float:
    """Return the seconds from the beginning of the segment before this one to its own: one in the first hour, then a
    3,600th of the time in which the run was at work, and at most 148, so that a week has 22,000 segments."""
    return math.exp(min(5.0, max(0.0, number / 3600 - 1)))


Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return the answer of a store, which may fail a few times: to read a long journal takes thousands of requests."""
    for pause in PAUSES:
        try:
            return ask()
        except (FileNotFoundError, HopyardError):
            raise
        except Exception:  # noqa: BLE001 - drivers raise anything
            time.sleep(pause)
    return ask()


class Segments:
    """The segments of one journal. Raises whatever the driver of the file system raises: see `filesystems.reaching`.

    Args:
        url: the URL of the run directory.
        journal: the name of the journal, which is that of the folder of its segments.
    """

    def __init__(self, url: str, journal: str) -> None:
        self.url = f"{url}/{journal}"
        self._directory = Directory(self.url)

    def make(self, new: bool) -> None:
        """Make the folder; no error when it exists. Of a `new` run, check that the store creates a name once.

        Raises:
            SpecError: it does not.
        """
        patiently(self._directory.make)
        if new:
            patiently(self._directory.check_create)

    def count(self) -> int:
        """Return how many segments there are, from a listing.

        Raises:
            JournalError: one is missing.
        """
        numbers = {int(name) for name in patiently(self._directory.sizes) if name.isdecimal()}
        if missing := set(range(len(numbers))) - numbers:
            raise JournalError(f"{self.url}: segment {min(missing)} of the journal is missing; restore it from a copy")
        return len(numbers)

    def create(self, number: int, segment: bytes) -> bool:
        """Create a segment; returns whether this one is there now, and not that of another writer."""
        return self._directory.create(_name(number), segment)

    def get(self, number: int) -> tuple[Head, bytes] | None:
        """Return a segment; None: there is none of this number.

        Raises:
            JournalError: it is damaged.
        """
        try:
            segment = patiently(partial(self._directory.get, _name(number)))
        except FileNotFoundError:
            return None
        line, _, data = segment.partition(b"\n")
        try:
            head = msgspec.json.decode(line, type=Head)
        except msgspec.MsgspecError as error:
            raise JournalError(f"{self.url}/{_name(number)} is damaged: {error}; restore it from a copy") from error
        if head.bytes != len(data):
            raise JournalError(
                f"{self.url}/{_name(number)} is damaged: it has {len(data)} bytes of the journal, not {head.bytes}; "
                "restore it from a copy"
            )
        return head, data

    def first(self) -> tuple[Head, bytes] | None:
        """Return segment 0; None: there is none."""
        return self.get(0) or (self._there(0) if self.count() else None)

    def read(self, first: int) -> Iterator[tuple[Head, bytes]]:
        """Yield the segments from `first` on, as many as a listing has."""
        count = self.count()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(first, count, AT_ONCE):
                yield from pool.map(self._there, range(start, min(start + AT_ONCE, count)))

    def _there(self, number: int) -> tuple[Head, bytes]:
        """Return a segment that a listing has. A server that was asked for it before it was there may deny it for a
        while: seaweedfs does."""
        for pause in (*PAUSES, 0.0):
            if (found := self.get(number)) is not None:
                return found
            time.sleep(pause)
        raise JournalError(f"{self.url}: segment {number} of the journal is listed, and cannot be read; try again")


def segment(writer: Writer, start: int, data: bytes) -> bytes:
    """Return the segment with these bytes of the journal, from `start` on."""
    return msgspec.json.encode(Head(writer, start, len(data), time.time())) + b"\n" + data


def _name(number: int) -> str:
    return f"{number:08d}"

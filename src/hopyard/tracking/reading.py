"""Reads the journal of a run that may be live, as records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Line
from hopyard.core.runs.machine import Machine
from hopyard.errors import JournalError
from hopyard.store.journal import JournalReader
from hopyard.store.layout import Layout, find
from hopyard.store.standing import held
from hopyard.tracking.recorder import Recorder
from hopyard.tracking.records import Record

PORTION = 2000
"""Lines that are read at a time."""
LOOK = 0.5
"""Seconds between two looks at a journal."""


class ReadAgain(Exception):
    """The journal must be read from its start: it lost lines that were read, as the disk had no room for more, or it is
    another journal; or the tracker lost what it was given."""


class Reading:
    """Reads the journal of a run that may be live, in portions.

    Attributes:
        last: the last line that was read.
        whole: whether the journal had nothing more.
    """

    def __init__(self, layout: Layout) -> None:
        self._reader = JournalReader(layout.journal, CODEC)
        self._recorder = Recorder()
        self.last: Line | None = None
        self.whole = False

    @property
    def count(self) -> int:
        """How many lines were read."""
        return self._reader.count

    @property
    def machine(self) -> Machine | None:
        """The state of the run after what was read."""
        return self._recorder.machine

    def more(self, lines: int = PORTION) -> list[Record]:
        """Return the records of so many further lines.

        Raises:
            JournalError: the journal is damaged, or of a newer version.
            ReadAgain: it does not go on with what was read before.
        """
        records, before, self.whole = list[Record](), self._reader.count, False
        try:
            for line in self._reader.read():
                if self._reader.count <= before:
                    raise ReadAgain("the journal lost lines")
                records += self._recorder.take(line)
                self.last = line
                if self._reader.count >= before + lines:
                    return records
        except FileNotFoundError:
            pass
        self.whole = True
        return records


def read(directory: str | Path, wait: bool = False) -> Iterator[Record]:
    """Yield what has happened in a run, in order, from its start: for trackers of your own.

    Args:
        directory: of the run, or its name under `runs/`.
        wait: go on, as things happen, until the run's driver has ended.

    Raises:
        RunDirectoryError: no run there.
        JournalError: the journal is damaged, or of a newer version, or lost lines meanwhile.

    Example:
        >>> from hopyard.tracking import EpochEnded, read
        >>> for record in read("runs/tettnang", wait=True):  # doctest: +SKIP
        ...     if isinstance(record, EpochEnded):
        ...         print(record.trial, record.epoch, record.metrics)
    """
    layout = find(directory)
    reading = Reading(layout)
    while True:
        live = held(layout.lock)
        try:
            yield from reading.more()
        except ReadAgain:
            raise JournalError(f"{layout.journal}: lines that were read are gone; read it again") from None
        if reading.whole:
            if not wait or not live:
                return
            time.sleep(LOOK)

"""Event files for TensorBoard: `TARGET/<run>-<id>/trial-3/events.out.tfevents.<start>.hopyard`.

The n-th record of a file depends on the run's journal alone. So a follower that opens a file cuts off a torn record,
counts the whole ones, and appends those that follow. Nothing is synced: what a crash of the host damages or takes away
is written again by the next follower.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.errors import DataError
from hopyard.formats.tfrecord import framed, records
from hopyard.store.layout import Layout
from hopyard.tracking.follower import News, Refused
from hopyard.tracking.reading import ReadAgain
from hopyard.tracking.records import Record, RunStarted

if TYPE_CHECKING:
    from hopyard.tracking.summaries import Summaries

GAP = 1.0
"""Seconds between two updates."""


@dataclass(slots=True)
class _File:
    """What is known of an event file."""

    passed: int = 0
    """Records that came from the journal so far. All of them are in the file."""
    count: int = 0
    """Records in the file. An earlier follower may have read more of the journal."""
    size: int = -1
    """Its bytes. If it has others, the records are counted anew."""


class EventFiles:
    """Writes the event files of a run.

    Args:
        target: the directory that TensorBoard is to show.
        name: of the run, for people.
        summaries: from records to events.
    """

    gap = GAP

    def __init__(self, target: Path, name: str, summaries: Summaries) -> None:
        self._target, self._name, self._summaries = target, name, summaries
        self._folder = target
        self._files: defaultdict[str, _File] = defaultdict(_File)
        self._taken = 0
        """Records of the news that are in `_unwritten` or in files."""
        self._unwritten: defaultdict[str, list[bytes]] = defaultdict(list)

    def update(self, news: News) -> None:
        """Append to files. One is open at a time, as a run may have thousands."""
        for record in news.records[self._taken :]:
            self._take(record)
        for file, frames in list(self._unwritten.items()):
            _append(self._folder / file, frames, self._files[file])
            del self._unwritten[file]
        self._taken = 0

    def _take(self, record: Record) -> None:
        if isinstance(record, RunStarted):
            self._folder = run_folder(self._target, self._name, record)
        for file, event in self._summaries.take(record):
            self._unwritten[file].append(framed(event))
        self._taken += 1


def _append(path: Path, frames: list[bytes], file: _File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # another follower may have the same target under another name
        if (size := os.fstat(stream.fileno()).st_size) != file.size:
            file.count, file.size = _whole(path) if size else (0, 0)
            stream.truncate(file.size)
            if file.count < file.passed:
                raise ReadAgain(
                    f"{path} lost events"
                )  # somebody removed records; with the journal read anew, they are written again
        data = b"".join(frames[max(0, file.count - file.passed) :])
        stream.write(data)
        stream.flush()
    file.size += len(data)
    file.passed += len(frames)
    file.count = max(file.count, file.passed)


def _whole(path: Path) -> tuple[int, int]:
    """Return how many whole records a file begins with, and their bytes."""
    count = size = 0
    with contextlib.suppress(DataError):
        for data in records(str(path)):
            count += 1
            size += len(framed(data))
    return count, size


def run_folder(target: Path, name: str, start: RunStarted) -> Path:
    """Return the folder of a run in a target: the one that is there, though the run may have had another name, or a new
    one."""
    suffix = f"-{start.run[:8] or int(start.at)}"
    return min(target.glob(f"*{suffix}"), default=target / f"{name}{suffix}")


def connect(target: str, layout: Layout, environ: Mapping[str, str]) -> EventFiles:
    """Return the event files of a run.

    Args:
        target: a directory; default: `tensorboard/` of the run.
        layout: of the run.
        environ: not used.

    Raises:
        Refused: the package is not installed, or the target is a URL.
    """
    if "://" in target:
        raise Refused(f"tensorboard={target}: must be a directory of this host, as event files are appended to")
    try:
        from hopyard.tracking.summaries import Summaries
    except ImportError as error:
        raise Refused(
            f"event files need the package tensorboard ({error}): pip install 'hopyard[tensorboard]'"
        ) from error
    return EventFiles(Path(target or layout.tensorboard).absolute(), layout.root.name, Summaries())

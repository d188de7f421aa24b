"""The state of a run, folded from its journal: for a driver that goes on with it, and for those who read it.

A driver folds the journal in one pass, as it may be larger than memory. The machine of a driver belongs to its loop
alone. Readers have a machine of their own, which grows with the journal. So they can read a live run, whoever drives
it: a thread of this process, another process, or a driver that started later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Dispatch, Joined, Line, Resumed
from hopyard.core.runs.machine import Machine, fold
from hopyard.errors import RunDirectoryError
from hopyard.spec import Ref
from hopyard.store.journal import JournalReader, read, whole_bytes
from hopyard.store.layout import Layout
from hopyard.store.standing import held, status_of


class Moment(NamedTuple):
    """The state of a run at one moment."""

    machine: Machine
    """Not changed while the context of `Fold.now` lasts."""
    status: str


class Fold:
    """The state of one run. For any number of threads.

    Args:
        layout: of its directory.
        machine: its state while it has no journal; None: it must have one.
    """

    def __init__(self, layout: Layout, machine: Machine | None = None) -> None:
        self._layout = layout
        self._machine = machine
        self._reader = JournalReader(layout.journal, CODEC)
        self._last: Line | None = None
        self._lock = threading.RLock()
        self._moment: Moment | None = None
        """The moment of the outermost `now`; None outside of it."""

    @contextlib.contextmanager
    def now(self) -> Iterator[Moment]:
        """Yield the present state. Nested calls yield the same one. Other threads wait meanwhile, the driver does not.
        Costs O(lines that were appended since the last call).

        Raises:
            RunDirectoryError: the journal is empty.
            JournalError: it is damaged, or of a newer version.
        """
        with self._lock:
            if self._moment is not None:
                yield self._moment
                return
            live = held(self._layout.lock)  # asked first: of a driver that is gone, all lines are read
            machine = self._advanced()
            self._moment = Moment(machine, status_of(machine.status, live, self._last, bool(self._layout.url)))
            try:
                yield self._moment
            finally:
                self._moment = None

    @property
    def at(self) -> float:
        """When the last line of the present state was written; 0: there is none."""
        return 0.0 if self._last is None else self._last.at

    def _advanced(self) -> Machine:
        """Return the machine at the end of the journal, or as it was last where the journal is gone."""
        try:
            for line in self._reader.read():
                self._machine = fold([line], self._machine)
                self._last = line
        except FileNotFoundError:
            pass
        except BaseException:  # Ctrl-C too: the machine may have applied half of a line
            self._reader.restart()
            raise
        if self._machine is None:
            raise _not_begun(self._layout)
        return self._machine

    def lines(self) -> Iterator[Line]:
        """Yield the lines that the present state is folded from. Reads the journal from its start."""
        return islice(read(self._layout.journal, CODEC), self._reader.count)


@dataclass
class EarlierDrivers:
    """What earlier drivers did, as far as the next one must know it.

    Attributes:
        slots: how many slot numbers they used; the next one is free.
        fingerprint: of the first slot; None: none was ever ready.
        marks: the marks that they put into the folder of the States.
        directories: the run directory, as each of them named it.
        members: workers of a gang that the user asked for last, whatever was lost since.
        at: when the last line was written.
    """

    slots: int = 0
    fingerprint: dict[str, Any] | None = None
    marks: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)
    members: int = 1
    at: float = 0.0

    def see(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines, and record what they say of earlier drivers."""
        for line in lines:
            self.at = line.at
            self.slots = max(self.slots, 1 + getattr(line, "slot", -1))
            if isinstance(line, Joined) and self.fingerprint is None:
                self.fingerprint = line.fingerprint
            elif isinstance(line, (Began, Resumed)):
                self.marks.add(line.mark)
                self.directories.append(line.directory)
                self.members = line.spec.members if isinstance(line, Began) else line.members or self.members
            yield line


def recover(layout: Layout) -> tuple[Machine, EarlierDrivers]:
    """Return the machine at the end of the journal, and what earlier drivers did.

    Raises:
        RunDirectoryError: the journal is empty.
        JournalError: it is damaged, or of a newer version.
    """
    if not whole_bytes(layout.journal):
        raise _not_begun(layout)
    earlier = EarlierDrivers()
    return fold(earlier.see(read(layout.journal, CODEC))), earlier


def _not_begun(layout: Layout) -> RunDirectoryError:
    """Return the error for a journal without a line."""
    return RunDirectoryError(
        f"{layout.root}: the journal is empty, the driver ended before anything happened; start the run again, "
        "with resume=True or in another directory"
    )


def dispatched_refs(lines: Iterable[Line], refs: Collection[Ref], lost: int = 0) -> set[Ref]:
    """Return those of `refs` that a worker of this run was asked to make, also by an end of the journal that was lost
    on its way to a URL: the run may delete nothing else in a folder.

    Args:
        lines: the journal.
        refs: what is stored.
        lost: how many leases behind the last line a lost end may have used.
    """
    dispatched, last, skipped = set[Ref](), 0, list[tuple[int, int]]()
    for line in lines:
        if isinstance(line, Dispatch):
            last = line.unit.lease
        elif isinstance(line, Resumed) and line.skipped:
            skipped.append((last, last + line.skipped))
            last += line.skipped
        if isinstance(line, Dispatch) and line.unit.kind == "train":
            ref = Ref(line.unit.trial, line.unit.step + len(line.unit.partitions), line.unit.lease)
            if ref in refs:
                dispatched.add(ref)
    skipped.append((last, last + lost))
    return dispatched | {ref for ref in refs if any(first < ref.attempt <= end for first, end in skipped)}

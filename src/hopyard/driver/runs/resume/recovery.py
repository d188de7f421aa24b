"""What a driver that goes on with a run reads from the journal, in one pass: a journal may be larger than memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hopyard.core.runs.events import CODEC, Began, Dispatch, Joined, Line, Resumed
from hopyard.core.runs.machine import Machine, fold
from hopyard.errors import RunDirectoryError
from hopyard.spec import Ref
from hopyard.store.journal import read, whole_bytes
from hopyard.store.layout import Layout


@dataclass
class EarlierDrivers:
    """What earlier drivers did, as far as the next one must know it.

    Attributes:
        slots: how many slot numbers they used; the next one is free.
        fingerprint: of the first slot; None: none was ever ready.
        marks: the marks that they put into the folder of the States.
        directories: the run directory, as each of them named it.
        trained: whether a unit was ever dispatched.
        members: workers of a gang that the user asked for last, whatever was lost since.
        at: when the last line was written.
    """

    slots: int = 0
    fingerprint: dict[str, Any] | None = None
    marks: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)
    trained: bool = False
    members: int = 1
    at: float = 0.0

    def see(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines, and record what they say of earlier drivers."""
        for line in lines:
            self.at = line.at
            self.slots = max(self.slots, 1 + getattr(line, "slot", -1))
            if isinstance(line, Dispatch):
                self.trained = True
            elif isinstance(line, Joined) and self.fingerprint is None:
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
        raise not_begun(layout)
    earlier = EarlierDrivers()
    return fold(earlier.see(read(layout.journal, CODEC))), earlier


def not_begun(layout: Layout) -> RunDirectoryError:
    """Return the error for a journal without a line."""
    return RunDirectoryError(
        f"{layout.root}: the journal is empty, the driver ended before anything happened; start the run again, "
        "with resume=True or in another directory"
    )


def dispatched_refs(lines: Iterable[Line], refs: Collection[Ref]) -> set[Ref]:
    """Return those of `refs` that a worker of this run was asked to make: it may delete nothing else in a folder."""
    dispatched = set()
    for line in lines:
        if isinstance(line, Dispatch) and line.unit.kind == "train":
            ref = Ref(line.unit.trial, line.unit.step + len(line.unit.partitions), line.unit.lease)
            if ref in refs:
                dispatched.add(ref)
    return dispatched

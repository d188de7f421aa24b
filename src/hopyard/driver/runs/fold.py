"""The state of a run for those who read it, folded from its journal as the journal grows.

The machine of a driver belongs to its loop alone. Readers have a machine of their own. So they can read a live run,
whoever drives it: a thread of this process, another process, or a driver that started later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from hopyard.core.runs.events import CODEC, Line
from hopyard.core.runs.machine import Machine, fold
from hopyard.driver.runs.resume.recovery import not_begun
from hopyard.store.journal import JournalReader, read
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
            self._moment = Moment(machine, status_of(machine.status, live, self._last))
            try:
                yield self._moment
            finally:
                self._moment = None

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
            raise not_begun(self._layout)
        return self._machine

    def lines(self) -> Iterator[Line]:
        """Yield the lines that the present state is folded from. Reads the journal from its start."""
        return islice(read(self._layout.journal, CODEC), self._reader.count)

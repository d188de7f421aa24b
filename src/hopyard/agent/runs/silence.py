"""Detects calls that neither return nor move bytes.

A worker watches its calls of the store: a file server that is away blocks them, and raises nothing. Waiting for a store
counts as progress of the main thread, or the worker would count as hung. A driver watches its calls of the user's
functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from hopyard import meter


@dataclass(slots=True, eq=False)
class _Call:
    report: Callable[[], None]
    thread: int
    moved: int
    since: float
    """When the call began, or was last found to have moved bytes, or to be silent."""
    reported: bool = False


class Silence:
    """Watches calls, in a thread that sleeps while there are none.

    Args:
        seconds: time without a byte after which a call is silent.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._calls: list[_Call] = []
        self._open = True
        self._thread: threading.Thread | None = None

    @contextmanager
    def watched(self, report: Callable[[], None]) -> Iterator[None]:
        """Surrounds a call in this thread. If the call is silent, another thread calls `report`, at most once and never
        after the call returned."""
        thread = threading.get_ident()
        call = _Call(report, thread, meter.moved_by(thread), monotonic())
        with self._changed:
            self._calls.append(call)
            if self._thread is None and self._open:
                self._thread = threading.Thread(target=self._run, name="hopyard-silence", daemon=True)
                self._thread.start()
            elif len(self._calls) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._calls.remove(call)

    def close(self) -> None:
        """Stop watching, and wait for a report on its way."""
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while self._open:
                self._check(monotonic())
                ends = [call.since + self._seconds for call in self._calls]
                self._changed.wait(max(0.0, min(ends) - monotonic()) if ends else None)

    def _check(self, now: float) -> None:
        for call in list(self._calls):
            moved = meter.moved_by(call.thread)
            if now - call.since < self._seconds:
                continue
            call.since = now
            if moved != call.moved:
                call.moved = moved
                continue
            if call.thread == threading.main_thread().ident:
                meter.advance()
            if not call.reported:
                call.reported = True
                call.report()

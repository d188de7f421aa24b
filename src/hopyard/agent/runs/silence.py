"""Detects calls that neither return nor move bytes.

A worker watches its calls of the store: a file server that is away blocks them, and raises nothing. Waiting for a store
counts as progress of the main thread, or the worker would count as hung.
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
    """Watches calls, in a thread that looks at them ten times in `seconds`.

    Args:
        seconds: time without a byte after which a call is silent.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hopyard-silence", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, report: Callable[[], None]) -> Iterator[None]:
        """Surrounds a call in this thread. If the call is silent, another thread calls `report`, at most once and never
        after the call returned."""
        thread = threading.get_ident()
        call = _Call(report, thread, meter.moved_by(thread), monotonic())
        with self._lock:
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)

    def close(self) -> None:
        """Stop watching, and wait for a report on its way."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds / 10):
            with self._lock:
                for call in self._calls:
                    self._check(call, monotonic())

    def _check(self, call: _Call, now: float) -> None:
        moved = meter.moved_by(call.thread)
        if now - call.since < self._seconds:
            return
        call.since = now
        if moved != call.moved:
            call.moved = moved
            return
        if call.thread == threading.main_thread().ident:
            meter.advance()
        if not call.reported:
            call.reported = True
            call.report()

"""Counts the progress of this process, to be watched from outside: batches, bytes, and the phase of its work.

Any package calls it wherever rows and bytes are handled; where no counter is set (in the user's own process, in a
script) the calls do nothing. It knows neither the counter nor how the counts are used (`core/liveness.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from hopyard.spec import Batch


class Counter(Protocol):
    """Receives the counts: an agent, for its heartbeats."""

    def advance(self, count: int) -> None:
        """Count finished batches, or bytes read."""
        ...

    def enter(self, phase: str) -> None:
        """Begin a phase of the process: one of `core.liveness.PHASES`."""
        ...


class _Nobody:
    def advance(self, count: int) -> None:
        pass

    def enter(self, phase: str) -> None:
        pass


class _Process:
    counter: Counter = _Nobody()
    """Set once, by the agent whose process this is."""
    moved: ClassVar[dict[int, int]] = {}
    """Thread → bytes that it has moved."""


def count_with(counter: Counter | None) -> None:
    """Set the counter from now on; None: there is none."""
    _Process.counter = _Nobody() if counter is None else counter


def advance(count: int = 1) -> None:
    """Count finished batches, or bytes read. Costs about 0.2 µs."""
    _Process.counter.advance(count)


def moved(count: int) -> None:
    """Count bytes of a State that were sent or received; 0: the other side showed that it is at work. This is progress
    in the main thread, where a unit waits for it. Storing in the background is not; `moved_by` counts that."""
    thread = threading.get_ident()
    _Process.moved[thread] = _Process.moved.get(thread, 0) + count
    if thread == threading.main_thread().ident:
        advance(max(1, count))


def moved_by(thread: int) -> int:
    """Return the bytes of States that this thread has moved so far."""
    return _Process.moved.get(thread, 0)


def enter(phase: str) -> None:
    """Begin a phase of the process: one of `core.liveness.PHASES`. A change is progress too."""
    _Process.counter.enter(phase)


class StepMeter:
    """The steps of one built model. The first of each kind and shape may compile, which may take any time: that is the
    phase "compile"; the steps after it are "train" or "validate"."""

    __slots__ = ("_compiled",)

    def __init__(self) -> None:
        self._compiled: set[Hashable] = set()

    @contextmanager
    def step(self, phase: str, shape: Hashable = None, count: int = 1) -> Iterator[None]:
        """Return a context manager around a step, or around a call that does `count` of them."""
        key = phase, shape
        first = key not in self._compiled
        if first:
            enter("compile")
        yield
        advance(count)
        if first:
            self._compiled.add(key)
            enter(phase)

    def over(self, batches: Iterable[Batch], phase: str) -> Iterator[Batch]:
        """Yield the batches, and count each when the next one is requested."""
        for batch in batches:
            with self.step(phase, batch.rows):
                yield batch

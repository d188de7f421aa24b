"""What this process has gone over, for who looks at it from outside: batches, bytes, and the phase of its work.

Called wherever rows and bytes are handled, in any package; where nobody counts (in the user's own process, in a script)
the calls do nothing. It knows neither who counts nor what is made of it (`core/runs/liveness.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from hopyard.spec import Batch


class Counter(Protocol):
    """Who counts: an agent, for its heartbeats."""

    def advance(self, count: int) -> None:
        """So many batches were finished, or bytes read."""
        ...

    def enter(self, phase: str) -> None:
        """This is what the process is at from now on: one of `core.liveness.PHASES`."""
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
    """Thread → bytes that it moved."""


def count_with(counter: Counter | None) -> None:
    """Who counts from now on; None: nobody."""
    _Process.counter = _Nobody() if counter is None else counter


def advance(count: int = 1) -> None:
    """So many batches were finished, or bytes read. Costs about 0.2 µs."""
    _Process.counter.advance(count)


def moved(count: int) -> None:
    """So many bytes of a State went or came; 0: who takes or gives them showed that it is at work. That is progress in
    the main thread, where a unit waits for it. What is stored in the background is not; `moved_by` tells of it."""
    thread = threading.get_ident()
    _Process.moved[thread] = _Process.moved.get(thread, 0) + count
    if thread == threading.main_thread().ident:
        advance(max(1, count))


def moved_by(thread: int) -> int:
    """The bytes of States that this thread has moved so far."""
    return _Process.moved.get(thread, 0)


def enter(phase: str) -> None:
    """This is what the process is at from now on: one of `core.liveness.PHASES`. A change is progress too."""
    _Process.counter.enter(phase)


class Steps:
    """The steps of one built model. The first of each kind and shape may compile, which takes what it takes: that is
    the phase "compile"; the steps after it are "train" or "validate"."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()

    @contextmanager
    def step(self, phase: str, shape: Hashable = None, count: int = 1) -> Iterator[None]:
        """Around a step, or a call that does `count` of them."""
        key = phase, shape
        fresh = key not in self._seen
        if fresh:
            enter("compile")
        yield
        advance(count)
        if fresh:
            self._seen.add(key)
            enter(phase)

    def over(self, batches: Iterable[Batch], phase: str) -> Iterator[Batch]:
        """The batches, each counted when the next one is asked for."""
        seen = self._seen
        for batch in batches:
            key = phase, batch.rows
            fresh = key not in seen
            if fresh:
                enter("compile")
            yield batch
            advance()
            if fresh:
                seen.add(key)
                enter(phase)

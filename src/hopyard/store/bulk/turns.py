"""Turns, for work that only so many may do at once: first come, first served, and nobody waits in vain."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

LOOK_SECONDS = 1.0
"""How often those who wait look whether anybody still wants their answer."""


class Late(Exception):
    """A turn did not come in time, or nobody waits for it any longer."""


class Turns:
    """At most `count` turns at once; many threads may use it."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self, seconds: float, gone: Callable[[], bool]) -> Iterator[None]:
        """Hold a turn in the block. It is waited for at most so many seconds, and no longer than somebody wants it.

        Raises:
            Late: it did not come.
        """
        deadline, turn = monotonic() + seconds, object()
        with self._changed:
            self._queue.append(turn)
            try:
                while not self._free or self._queue[0] is not turn:
                    remaining = deadline - monotonic()
                    if remaining <= 0:
                        raise Late(f"its turn did not come within {seconds:.0f} seconds")
                    self._changed.wait(min(remaining, LOOK_SECONDS))
                    if gone():
                        raise Late("who asked hung up")
                self._free -= 1
            finally:
                self._queue.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

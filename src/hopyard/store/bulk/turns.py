"""Who may go on when only so many may at once: first come, first served, and nobody waits in vain."""

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
    """So many turns at once; used by many threads."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for a turn."""
        with self._changed:
            return bool(self._queue)

    @contextlib.contextmanager
    def one(self, seconds: float, gone: Callable[[], bool]) -> Iterator[None]:
        """A turn, waited for at most so many seconds, and no longer than somebody wants it.

        Raises:
            Late: it did not come.
        """
        until, mine = monotonic() + seconds, object()
        with self._changed:
            self._queue.append(mine)
            try:
                while not self._free or self._queue[0] is not mine:
                    left = until - monotonic()
                    if left <= 0:
                        raise Late(f"its turn did not come within {seconds:.0f} seconds")
                    self._changed.wait(min(left, LOOK_SECONDS))
                    if gone():
                        raise Late("who asked hung up")
                self._free -= 1
            finally:
                self._queue.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

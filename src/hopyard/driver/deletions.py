"""States that nobody needs any more, deleted in a thread of their own: a store that stalls must not stop the run."""

from __future__ import annotations

import logging
import threading
from collections import deque

from hopyard.ports import Store
from hopyard.spec import Ref
from hopyard.store.guard import StoreUnreachable

log = logging.getLogger(__name__)

WAITING = 100_000
"""Deletions that may wait; more are left to the sweep at the end, or to the next driver's."""
AGAIN_SECONDS = 30.0
"""Before a deletion is tried again that the store refused."""
DRAIN_SECONDS = 10.0
"""For what still waits at the end of a run."""


class Deletions:
    """Owner of the thread that deletes, in the order in which it was asked. It begins with the first deletion.

    Args:
        store: where the States are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[Ref] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, ref: Ref) -> None:
        """Delete this one, soon."""
        with self._changed:
            if self._closing or len(self._waiting) >= WAITING:
                return
            self._waiting.append(ref)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hopyard-deletions", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Delete what waits, for so long at most; nothing is added or tried again from now on.

        Returns:
            bool: whether nothing waits any more.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
            with self._changed:
                if left := len(self._waiting):
                    log.warning("%d States that are not needed stay in the store for now", left)
                    self._waiting.clear()
                    return False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or len(self._waiting) > 0)
                if not self._waiting:
                    return
                ref = self._waiting[0]
            refused = self._refused(ref)
            with self._changed:
                if not refused and self._waiting:
                    self._waiting.popleft()
                elif refused and not self._closing:
                    self._changed.wait_for(lambda: self._closing, AGAIN_SECONDS)
                elif refused:
                    return

    def _refused(self, ref: Ref) -> bool:
        """Whether the store cannot delete it now."""
        try:
            self._store.delete(ref)
        except StoreUnreachable as error:
            log.warning("deleted later: %s", error)
            return True
        except Exception as error:  # noqa: BLE001 - there is only more in the store than need be
            log.warning("not deleted: %s: %s", type(error).__name__, error)
        return False

"""Finds and deletes States that nobody needs any more, in a thread: a store that stalls must not stop the run.

Only the driver that `driver/runs/ownership.py` has found to be the owner of the folder deletes there. What is needed no
longer is decided by `core/runs/states/retention.py`, and, of States that no journal names, by the sweep of the loop.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from hopyard.errors import RunDirectoryError
from hopyard.ports.states import Store
from hopyard.spec import Ref
from hopyard.store.guard import StoreUnreachable
from hopyard.store.journal import Journal

log = logging.getLogger(__name__)

WAITING = 100_000
"""Deletions that may wait; the sweep at the end, or the next driver's, does the others."""
AGAIN_SECONDS = 30.0
"""Seconds before a deletion that the store refused is tried again."""
DRAIN_SECONDS = 10.0
"""Seconds for the deletions that still wait at the end of a run."""

SHARED_SECONDS = 1.0
"""Seconds for which one look waits for the journal at a URL."""

Choice = Callable[[set[Ref]], Collection[Ref]]
"""Stored States → those of them that are to be deleted."""


class Deletions:
    """Owner of the thread that deletes, in the order in which it was asked. It begins with the first deletion.

    Args:
        store: where the States are.
        journal: of the run. Nothing is deleted before those who read the run at a URL know why: else a State that the
            journal there names could be gone.
    """

    def __init__(self, store: Store, journal: Journal[Any]) -> None:
        self._store, self._journal = store, journal
        self._waiting: deque[tuple[int, Ref | Choice]] = deque()
        """With each job the length of the journal that led to it."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, ref: Ref) -> None:
        """Delete this State soon."""
        with self._changed:
            if not self._closing and len(self._waiting) < WAITING:
                self._put(ref)

    def sweep(self, choice: Choice) -> None:
        """List the store, and delete what `choice` says; it is called in the thread."""
        with self._changed:
            self._put(choice)

    def close(self, seconds: float) -> bool:
        """Delete what waits, for at most so many seconds; nothing is added or tried again from now on.

        Returns:
            bool: whether nothing waits any more.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
            with self._changed:
                if self._waiting:
                    log.warning("States that are not needed stay in the store for now")
                    self._waiting.clear()
                    return False
        return True

    def _put(self, job: Ref | Choice) -> None:
        self._waiting.append((self._journal.size, job))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hopyard-deletions", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or len(self._waiting) > 0)
                if not self._waiting:
                    return
                size, job = self._waiting[0]
            try:
                if not self._journal.shared(size, SHARED_SECONDS):
                    continue
            except RunDirectoryError:  # another driver has gone on with the run: nothing here is ours
                with self._changed:
                    self._waiting.clear()
                return
            next_jobs = self._do(job)
            with self._changed:
                if not self._waiting:
                    return  # it took too long: the run is over
                if next_jobs is not None:
                    self._waiting.popleft()
                    self._waiting.extend((size, ref) for ref in next_jobs)
                elif self._closing:
                    return
                else:
                    self._changed.wait_for(lambda: self._closing, AGAIN_SECONDS)

    def _do(self, job: Ref | Choice) -> Collection[Ref] | None:
        """Do a job; return what else is to be deleted now, or None if the store cannot do the job at present."""
        try:
            if not isinstance(job, Ref):
                return job(self._store.refs())
            self._store.delete(job)
        except StoreUnreachable as error:
            log.warning("deleted later: %s", error)
            return None
        except Exception as error:  # noqa: BLE001 - there is only more in the store than need be
            log.warning("not deleted: %s: %s", type(error).__name__, error)
        return ()

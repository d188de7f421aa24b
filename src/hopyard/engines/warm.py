"""What a started engine keeps between its runs: places whose supervisors can fork agents of a template.

Each run takes them, and gives them back when it is over. A second run at the same time has places of its own, of which
one set is kept. This module knows no cluster.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from hopyard.ports import LaunchInfo


class Places(Protocol):
    """Where the agents of one run after another can be. Owner: a run, or between two runs a `Warm`."""

    @property
    def lasting(self) -> bool:
        """Whether there may be another run in them."""
        ...

    @property
    def usable(self) -> bool:
        """Whether nothing is known that keeps another run from having agents there."""
        ...

    def renew(self, launch: LaunchInfo) -> None:
        """Begin another run."""
        ...

    def rest(self) -> None:
        """End all agents of a run; nothing of it is left but the places."""
        ...

    def close(self) -> None:
        """End all; nothing is left."""
        ...


P = TypeVar("P", bound=Places)


class Warm(Generic[P]):
    """The places of one engine. Any thread may use it. A copy or a pickle has none, and is not started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[P] = []
        """Places that no run has: at most one set."""
        self._owner = 0
        """The process that started the engine; 0: it is not started."""
        self.entered = 0
        """How many `with` statements have the engine."""
        self._finalizer = weakref.finalize(self, _close_all, self._kept, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return Warm, ()

    @property
    def started(self) -> bool:
        """Whether places are kept. A fork of this process does not have its places."""
        return self._owner == os.getpid()

    def start(self) -> None:
        """Keep places from now on."""
        if not self.started:
            self._kept.clear()  # those of the process of which this one was forked
            self._lock = threading.Lock()  # which a thread of that process may have held
        self._owner = os.getpid()

    def stop(self) -> None:
        """End those that no run has; the others end with their runs."""
        with self._lock:
            if self.started:
                _close_all(self._kept, self._owner)
            self._owner = 0

    def take(self, launch: LaunchInfo, make: Callable[[bool], P]) -> P:
        """Return the places of a run.

        Args:
            launch: the run's.
            make: makes them, lasting or not.
        """
        with self._lock:
            lasting = self.started
            kept = self._kept.pop() if lasting and self._kept else None
        if kept is not None:
            if kept.usable:
                try:
                    kept.renew(launch)
                except BaseException:
                    kept.close()
                    raise
                return kept
            kept.close()
        return make(lasting)

    def give_back(self, places: P) -> None:
        """End a run in these places, and keep them for the next one, where that is possible."""
        keep = False
        try:
            if places.lasting and self.started and not self._kept and places.usable:
                places.rest()
                with self._lock:
                    keep = self.started and not self._kept and places.usable
                    if keep:
                        self._kept.append(places)
        finally:
            if not keep:
                places.close()


def _close_all(kept: list[Any], owner: int) -> None:
    if owner != os.getpid():  # a fork of the process that has them
        return
    while kept:
        kept.pop().close()

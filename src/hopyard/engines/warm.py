"""What an engine that was started keeps from one run to the next, and `start`, `stop` and `with` of such engines.

It belongs to the process that started the engine: a fork of that process neither uses nor ends it. `hy.Local` keeps
templates; `hy.Hosts` and `hy.Spark` keep supervisors that have templates (`supervised.Warm`). This module knows no
cluster.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, Self, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_of_parents: list[object] = []
"""What processes above this one keep. It is never freed here: that would close sockets and processes of theirs."""


class Standby(Generic[T]):
    """Owner of what one engine keeps. Any thread may use it. A copy or a pickle has nothing, and is not started.

    Args:
        close: ends a thing that was kept; it may take its time.
    """

    def __init__(self, close: Callable[[T], None]) -> None:
        self._close = close
        self._belong_here()

    def _belong_here(self) -> None:
        """Belong to this process, with nothing."""
        self._started = False
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._items: dict[Hashable, T] = {}
        """Keyed by configuration, least recently used first."""
        self._run_count = 0
        """How many runs go on."""
        self.entered = 0
        """How many `with` statements have the engine."""
        self._finalizer = weakref.finalize(self, _close_all, self._items, self._close, self._process)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    @property
    def started(self) -> bool:
        """Whether anything is kept. A fork of this process does not have what is."""
        return self._started and self._process == os.getpid()

    def _leave_to_parent(self) -> None:
        """Where this is a fork of the process to which it belongs: forget all, and belong to this one."""
        if self._process != os.getpid():
            _of_parents.append(self._items)
            self._belong_here()  # with another lock: a thread of the other process may have held this one

    def start(self) -> None:
        """Keep things from now on."""
        self._leave_to_parent()
        self._started = True

    def stop(self) -> None:
        """End what is kept, and keep nothing from now on. A run that goes on does so, and ends what it has."""
        if not self.started:
            return
        with self._lock:
            self._started = False
            items = list(self._items.values())
            self._items.clear()
            run_count = self._run_count
        if run_count:
            which = "a run" if run_count == 1 else f"{run_count} runs"
            log.warning("the engine was stopped, and %s of it will go on: its workers stay, and end with it", which)
        for each in items:  # without the lock: nobody else is to wait for that
            self._close(each)

    def begin_run(self) -> None:
        """Count a run, until `end_run`."""
        self._leave_to_parent()
        with self._lock:
            self._run_count += 1

    def end_run(self) -> None:
        """Count a run no more."""
        if self._process == os.getpid():
            with self._lock:
                self._run_count -= 1


class Startable:
    """An engine that can be started: between `start` and `stop`, or in a `with` block, it keeps what its runs have in
    common, see its class."""

    __slots__ = ()
    _standby: Standby[Any]

    def start(self) -> Self:
        """Have what workers are forked of stay when a run is over. Nothing starts before the first run needs it. On
        Linux only; elsewhere each worker starts as a process of its own."""
        self._standby.start()
        return self

    def stop(self) -> None:
        """End what stays. A run that is under way goes on with its workers, which a warning says, and ends them."""
        self._standby.stop()

    def __enter__(self) -> Self:
        engine = self.start()
        self._standby.entered += 1
        return engine

    def __exit__(self, *exception: object) -> None:
        self._standby.entered -= 1
        if not self._standby.entered:  # else an outer `with` goes on
            self.stop()


def _close_all(items: dict[Hashable, Any], close: Callable[[Any], None], process: int) -> None:
    if process != os.getpid():  # this is a fork of the one that has them
        return
    while items:
        close(items.popitem()[1])

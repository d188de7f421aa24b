"""Stores a worker's States in the background and reports their digests (BLAKE3). Training never waits for it.

A store that is away is tried again until it is back, and the driver is told: nothing is lost meanwhile, as the State
lies in memory. A store that blocks its callers and raises nothing is away as well (`agent/runs/silence.py`).

The State at an epoch's end is always stored. Of the others only the newest of each trial is, at most one a second,
since a State that is replaced within a second saves at most a second of work. At most two writes of a trial are
pending: the newer replaces the older that is not an epoch's end.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from hopyard import meter
from hopyard.agent.runs.silence import Silence
from hopyard.core.messages import NoRoom
from hopyard.core.runs.events import Durable, Forgotten, StoreAway, StoreBack
from hopyard.errors import ResourceError
from hopyard.ports.states import Store
from hopyard.spec import Ref
from hopyard.store.arena import Arena
from hopyard.store.guard import StoreUnreachable
from hopyard.store.tree import digest
from hopyard.text import escaped

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST = 1.0, 60.0
"""Seconds between the first two attempts to store, and at most between any two; each time they are doubled."""
PATIENCE = 1.0
"""Seconds of failures that are not reported."""
PAUSE = 1.0
"""Seconds between two stored States of one trial that are not an epoch's end."""

SILENT = 30.0
"""Seconds without an answer or a byte moved after which a store is away."""
HUNG = 0.25
"""The same as a part of the time after which the worker counts as hung, where that is less."""
SLICE = 0.5
"""Seconds between two signs of life while the training thread waits for a store that is away."""

StateMessage = Durable | Forgotten | NoRoom | StoreAway | StoreBack


@dataclass(slots=True)
class Pending:
    """A State that lies in shared memory and is to be stored."""

    ref: Ref
    memory_key: str
    always: bool
    """An epoch's end."""
    due: float


class StateWriter:
    """Owner of this worker's own States, from when they lie in shared memory until nobody needs them there.

    Args:
        slot: number of this worker's slot.
        store: where States are stored.
        arena: the shared memory that holds them.
        send: sends messages about States to the driver; called from the background thread, and from `flush`.
        stall: seconds without progress after which the driver ends the worker; 0: it need not make any.
    """

    def __init__(
        self, slot: int, store: Store, arena: Arena, send: Callable[[StateMessage], None], stall: float = 0.0
    ) -> None:
        self._slot = slot
        self._store = store
        self._arena = arena
        self._send = send
        self._condition = threading.Condition()
        self._ending = threading.Event()
        self._pending: list[Pending] = []
        self._stored_at: dict[int, float] = {}
        self._released: set[str] = set()
        self._flushed: dict[int, Ref] = {}
        """Trial → its newest State that was stored without ever lying in shared memory."""
        self._durable: list[str] = []
        self._active_key = ""
        self._open = True
        self._asleep_until = -math.inf
        """When the background thread wakes by itself; minus infinity while it is awake."""
        self._silence_limit = min(SILENT, HUNG * stall) if stall else SILENT
        self._silence = Silence(self._silence_limit)
        self._away: set[object] = set()
        """Transfers to or from the store, with all their attempts, that wait for it and have reported it."""
        self._thread = threading.Thread(target=self._run, name="hopyard-keep", daemon=True)
        self._thread.start()

    def keep(self, ref: Ref, memory_key: str, always: bool) -> None:
        """Store this State when its turn comes."""
        with self._condition:
            for older in [p for p in self._pending if p.ref.trial == ref.trial and not p.always]:
                self._pending.remove(older)
                self._free(older.memory_key)
            due = 0.0 if always else self._stored_at.get(ref.trial, 0.0) + PAUSE
            self._pending.append(Pending(ref, memory_key, always, due))
            if due < self._asleep_until:  # to wake it for each State, most of them replaced, costs as much as to lay it
                self._condition.notify()

    def store_next(self, ref: Ref, memory_key: str) -> None:
        """Store this State next, as others wait for it. If it is not here any longer, the driver is told."""
        with self._condition:
            for pending in self._pending:
                if pending.ref == ref:
                    pending.due = -1.0
                    self._condition.notify()
                    return
            if self._arena.own(memory_key, ref) is None:  # also where another State has this memory key
                if self._flushed.get(ref.trial) != ref:
                    self._send(Forgotten(slot=self._slot, ref=ref))
                return
            if memory_key == self._active_key or memory_key in self._durable:
                return  # it is being stored, or was
            self._pending.append(Pending(ref, memory_key, True, -1.0))
            self._condition.notify()

    def release(self, memory_key: str) -> None:
        """Free shared memory that nobody will read again; a State at an epoch's end is stored all the same."""
        with self._condition:
            for pending in self._pending:
                if pending.memory_key == memory_key:
                    if not pending.always:
                        self._pending.remove(pending)
                        self._free(memory_key)
                    else:
                        self._released.add(memory_key)
                    return
            if memory_key == self._active_key:
                self._released.add(memory_key)
            else:
                self._free(memory_key)

    def make_room(self) -> bool:
        """Free the shared memory of the oldest State that is stored; False when there is none."""
        with self._condition:
            if not self._durable:
                return False
            self._arena.settle(self._durable.pop(0))
            return True

    def flush(self, ref: Ref, data: memoryview) -> Durable:
        """Store a State at once, in the caller's thread: there is no shared memory for it.

        Raises:
            ResourceError: no room in the store either.
        """
        self._put(ref, data, waited_for=True)
        with self._condition:
            self._flushed[ref.trial] = ref
        return Durable(slot=self._slot, ref=ref, digest=digest(data), bytes=len(data))

    def close(self, seconds: float = 5.0) -> None:
        """Store the pending States of epochs' ends, then stop."""
        with self._condition:
            self._pending = [pending for pending in self._pending if pending.always]
            self._open = False
            self._condition.notify()
        self._ending.set()
        self._thread.join(seconds)
        self._silence.close()

    def _free(self, memory_key: str) -> None:
        self._released.discard(memory_key)
        if memory_key in self._durable:
            self._durable.remove(memory_key)
        self._arena.settle(memory_key)

    def _next(self) -> Pending | None:
        """Return what is to be stored now; waits for it. None: closed."""
        while True:
            now = time.monotonic()
            ready = [pending for pending in self._pending if pending.due <= now]
            if ready:
                first = min(ready, key=lambda pending: (pending.due >= 0.0, not pending.always, pending.due))
                self._pending.remove(first)
                return first
            if not self._open and not self._pending:
                return None
            self._asleep_until = min((pending.due for pending in self._pending), default=math.inf)
            self._condition.wait(None if self._asleep_until == math.inf else self._asleep_until - now)
            self._asleep_until = -math.inf

    def _put(self, ref: Ref, data: memoryview, waited_for: bool = False) -> None:
        """Store a State; a store that is away is tried again until it is back. (What is stored is not written twice.)

        Args:
            ref, data: the State.
            waited_for: whether a unit waits for it; then waiting for a store that is away is progress, or the worker
                would count as hung.

        Raises:
            ResourceError: there is no room.
            StoreUnreachable: this worker ends, and the store is still away.
        """
        wait, began, call = FIRST_WAIT, time.monotonic(), object()
        try:
            while True:
                try:
                    with self._watched(call, ref):
                        self._store.put(ref, data)
                    return
                except StoreUnreachable as error:
                    if self._ending.is_set():
                        raise
                    log.warning("tried again in %.0f s: %s", wait, error)
                    if time.monotonic() - began >= PATIENCE:
                        self._report_away(call, str(error))
                self._wait_to_retry(wait, waited_for)
                wait = min(LONGEST, 2 * wait)
        finally:
            self._report_back(call)

    @contextmanager
    def watched(self, ref: Ref) -> Iterator[None]:
        """Surrounds reading a State from the store in this thread: if the store does not answer, the driver is told."""
        call = object()
        try:
            with self._watched(call, ref):
                yield
        finally:
            self._report_back(call)

    def _watched(self, call: object, ref: Ref) -> AbstractContextManager[None]:
        reason = f"State {ref}: the store has not answered for {self._silence_limit:.0f} s, and moved no byte meanwhile"
        return self._silence.watched(lambda: self._report_away(call, reason))

    def _wait_to_retry(self, seconds: float, waited_for: bool) -> None:
        """Wait until the next attempt, or until this worker ends."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if waited_for:
                meter.advance()
            if self._ending.wait(min(remaining, SLICE) if waited_for else remaining):
                return

    def _report_away(self, call: object, error: str) -> None:
        with self._condition:
            if not self._away:
                self._send(StoreAway(slot=self._slot, error=error))
            self._away.add(call)

    def _report_back(self, call: object) -> None:
        with self._condition:
            if call in self._away:
                self._away.remove(call)
                if not self._away:
                    self._send(StoreBack(slot=self._slot))

    def _run(self) -> None:
        while True:
            with self._condition:
                pending = self._next()
                if pending is None:
                    return
                self._active_key = pending.memory_key
            try:
                data = self._arena.view(pending.memory_key)
                self._put(pending.ref, data)
                state_digest = digest(data)
            except KeyError:  # another State lies there by now
                self._send(Forgotten(slot=self._slot, ref=pending.ref))
                with self._condition:
                    self._active_key = ""
                continue
            except StoreUnreachable as error:
                log.warning("not stored, as this worker ends: %s", error)
                return
            except ResourceError as error:
                self._send(NoRoom(self._slot, str(error)))
                return
            except Exception as error:  # without a message, the run would wait for ever
                log.exception("State %s cannot be stored", pending.ref)
                reason = escaped(f"State {pending.ref} cannot be stored: {type(error).__name__}: {error}")
                self._send(NoRoom(self._slot, reason, "error"))
                return
            durable = Durable(slot=self._slot, ref=pending.ref, digest=state_digest, bytes=len(data))
            self._send(durable)
            with self._condition:
                self._active_key = ""
                self._stored_at[pending.ref.trial] = time.monotonic()
                if pending.memory_key in self._released:
                    self._free(pending.memory_key)
                else:
                    self._durable.append(pending.memory_key)

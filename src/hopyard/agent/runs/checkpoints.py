"""The background of a worker: stores States, computes their digests (BLAKE3), says so. Training never waits for it.

A store that is away is tried again until it is back, and the driver hears of it: nothing is lost meanwhile, the State
lies in memory. A store that blocks who reads or writes, and raises nothing, is away as well (`agent/runs/silence.py`).

What is stored: always the State at an epoch's end; of the others the newest of each trial, at most one a second,
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
from hopyard.ports import Store
from hopyard.spec import Ref
from hopyard.store.arena import Arena
from hopyard.store.guard import StoreUnreachable
from hopyard.store.tree import digest
from hopyard.text import escaped

log = logging.getLogger(__name__)

LONGEST = 60.0
"""Seconds between attempts to store, at most; the first ones follow after 1, 2, 4, …"""
PATIENCE = 1.0
"""Seconds of failures that nobody needs to hear of."""
PAUSE = 1.0
"""Seconds between two stored States of one trial that are not an epoch's end."""

SILENT = 30.0
"""Seconds in which a store gives or takes no byte and does not answer; then it is away."""
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


@dataclass(slots=True)
class Call:
    """A State on its way to or from the store, whatever that takes."""

    away: bool = False
    """The driver was told that the store is away."""


class CheckpointWriter:
    """Owner of the States that this worker made, from when they lie in shared memory until nobody needs them there.

    Args:
        slot: who speaks.
        store: where States go.
        arena: where they lie.
        send: tells the driver what becomes of States; called from the background thread, and from `flush`.
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
        self._last: dict[int, float] = {}
        self._released: set[str] = set()
        self._flushed: set[Ref] = set()
        """States that were never in shared memory."""
        self._durable: list[str] = []
        self._active = ""
        self._open = True
        self._asleep_until = -math.inf
        """When the background looks again by itself; minus infinity while it is awake."""
        self._silent = min(SILENT, HUNG * stall) if stall else SILENT
        self._silence = Silence(self._silent)
        self._away = 0
        """Threads that wait for the store, and said so."""
        self._thread = threading.Thread(target=self._run, name="hopyard-keep", daemon=True)
        self._thread.start()

    def keep(self, ref: Ref, memory_key: str, always: bool) -> None:
        """Store this State when its turn comes."""
        with self._condition:
            for older in [p for p in self._pending if p.ref.trial == ref.trial and not p.always]:
                self._pending.remove(older)
                self._free(older.memory_key)
            due = 0.0 if always else self._last.get(ref.trial, 0.0) + PAUSE
            self._pending.append(Pending(ref, memory_key, always, due))
            if due < self._asleep_until:  # to wake it for each State, most of them replaced, costs as much as to lay it
                self._condition.notify()

    def store_next(self, ref: Ref, memory_key: str) -> None:
        """Others wait for this State: it is stored next. If it is not here any longer, the driver hears it."""
        with self._condition:
            for pending in self._pending:
                if pending.ref == ref:
                    pending.due = -1.0
                    self._condition.notify()
                    return
            if self._arena.own(memory_key, ref) is None:  # also where another State lies at this place
                if ref not in self._flushed:
                    self._send(Forgotten(slot=self._slot, ref=ref))
                return
            if memory_key == self._active or memory_key in self._durable:
                return  # it is being stored, or was
            self._pending.append(Pending(ref, memory_key, True, -1.0))
            self._condition.notify()

    def release(self, memory_key: str) -> None:
        """Nobody will ask for it in shared memory again; an epoch's end is stored all the same."""
        with self._condition:
            for pending in self._pending:
                if pending.memory_key == memory_key:
                    if not pending.always:
                        self._pending.remove(pending)
                        self._free(memory_key)
                    else:
                        self._released.add(memory_key)
                    return
            if memory_key == self._active:
                self._released.add(memory_key)
            else:
                self._free(memory_key)

    def make_room(self) -> bool:
        """Give up shared memory of States that are stored, oldest first; False when there is none."""
        with self._condition:
            if not self._durable:
                return False
            self._arena.settle(self._durable.pop(0))
            return True

    def flush(self, ref: Ref, data: memoryview) -> Durable:
        """Store at once, in the caller's thread: there is no shared memory for it.

        Raises:
            ResourceError: no room in the store either.
        """
        self._put(ref, data, waited_for=True)
        self._flushed.add(ref)
        return Durable(slot=self._slot, ref=ref, digest=digest(data), bytes=len(data))

    def close(self, seconds: float = 5.0) -> None:
        """Store what is an epoch's end, then stop."""
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
        """What is to be stored now; waits for it. None: closed."""
        while True:
            now = time.monotonic()
            ready = [pending for pending in self._pending if pending.due <= now]
            if ready:
                chosen = min(ready, key=lambda pending: (pending.due >= 0.0, not pending.always, pending.due))
                self._pending.remove(chosen)
                return chosen
            if not self._open and not self._pending:
                return None
            self._asleep_until = min((pending.due for pending in self._pending), default=math.inf)
            self._condition.wait(None if self._asleep_until == math.inf else self._asleep_until - now)
            self._asleep_until = -math.inf

    def _put(self, ref: Ref, data: memoryview, waited_for: bool = False) -> None:
        """Store it; a store that is away is tried again until it is back. (What is there already is not written twice.)

        Args:
            ref, data: the State.
            waited_for: whether a unit waits for it; then waiting for a store that is away is progress, or the worker
                would count as hung.

        Raises:
            ResourceError: there is no room.
            StoreUnreachable: this worker ends, and the store is still away.
        """
        wait, began, call = 1.0, time.monotonic(), Call()
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
                self._rest(wait, waited_for)
                wait = min(LONGEST, 2 * wait)
        finally:
            self._report_back(call)

    @contextmanager
    def watched(self, ref: Ref) -> Iterator[None]:
        """Around reading a State from the store in this thread: if that does not answer, the driver hears of it."""
        call = Call()
        try:
            with self._watched(call, ref):
                yield
        finally:
            self._report_back(call)

    def _watched(self, call: Call, ref: Ref) -> AbstractContextManager[None]:
        silent = f"State {ref}: the store has not answered for {self._silent:.0f} s, and moved no byte meanwhile"
        return self._silence.watched(lambda: self._report_away(call, silent))

    def _rest(self, seconds: float, waited_for: bool) -> None:
        """Until the next attempt, or this worker ends."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if waited_for:
                meter.advance()
            if self._ending.wait(min(left, SLICE) if waited_for else left):
                return

    def _report_away(self, call: Call, error: str) -> None:
        with self._condition:
            if call.away:
                return
            call.away = True
            self._away += 1
            if self._away == 1:
                self._send(StoreAway(slot=self._slot, error=error))

    def _report_back(self, call: Call) -> None:
        with self._condition:
            if not call.away:
                return
            self._away -= 1
            if not self._away:
                self._send(StoreBack(slot=self._slot))

    def _run(self) -> None:
        while True:
            with self._condition:
                pending = self._next()
                if pending is None:
                    return
                self._active = pending.memory_key
            try:
                data = self._arena.view(pending.memory_key)
                self._put(pending.ref, data)
                seal = digest(data)
            except KeyError:  # another State lies there by now
                self._send(Forgotten(slot=self._slot, ref=pending.ref))
                with self._condition:
                    self._active = ""
                continue
            except StoreUnreachable as error:
                log.warning("not stored, as this worker ends: %s", error)
                return
            except ResourceError as error:
                self._send(NoRoom(self._slot, str(error)))
                return
            except Exception as error:  # unsaid, the run would wait for ever
                log.exception("State %s cannot be stored", pending.ref)
                words = escaped(f"State {pending.ref} cannot be stored: {type(error).__name__}: {error}")
                self._send(NoRoom(self._slot, words, "error"))
                return
            sealed = Durable(slot=self._slot, ref=pending.ref, digest=seal, bytes=len(data))
            self._send(sealed)
            with self._condition:
                self._active = ""
                self._last[pending.ref.trial] = time.monotonic()
                if pending.memory_key in self._released:
                    self._free(pending.memory_key)
                else:
                    self._durable.append(pending.memory_key)

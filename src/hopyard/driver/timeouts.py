"""Which agents are silent, and which make no progress, as their messages and heartbeats tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hopyard.core.runs.liveness import SHOWN, Sample, Stall, Watch

GRACE = 120.0
"""Seconds that a new agent may take, beyond `heartbeat_timeout`, until it dials."""


class Timeouts:
    """Owner of when each slot was heard last, and of how far it has come.

    Args:
        heartbeat_timeout: seconds after which an agent that says nothing is lost.
        stall_timeout: seconds after which one that makes no progress is lost; None: it need not make any.
    """

    def __init__(self, heartbeat_timeout: float, stall_timeout: float | None) -> None:
        self._heartbeat_timeout, self._stall_timeout = heartbeat_timeout, stall_timeout
        self._last_heard: dict[int, float] = {}
        self._watches: dict[int, Watch] = {}
        self._stalls: dict[int, Stall] | None = None
        """What `stalls` gives, as long as no heartbeat changes it."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._last_heard

    def start(self, slot: int) -> None:
        """An agent is brought up for this slot."""
        now = time.monotonic()
        self._last_heard[slot], self._watches[slot] = now + GRACE, Watch(now)
        self._stalls = None

    def forget(self, slot: int) -> None:
        """The slot's process is of no interest any more."""
        self._last_heard.pop(slot, None)
        self._watches.pop(slot, None)
        self._stalls = None

    def heard(self, slot: int) -> None:
        """A message of this slot came."""
        self._last_heard[slot] = time.monotonic()

    def advanced(self, slot: int, sample: Sample) -> None:
        """A heartbeat says how far the slot has come."""
        self._watches[slot].see(sample)
        self._stalls = None

    def excuse(self, now: float) -> None:
        """This process did not run for a while: nobody else is to blame."""
        self._last_heard = dict.fromkeys(self._last_heard, now)
        for watch in self._watches.values():
            watch.excuse(now)
        self._stalls = None

    def expired(self, now: float, waits: Callable[[int], bool]) -> Iterator[tuple[int, str]]:
        """(slot, why it is lost; "": it is not) of all slots, but of those that `waits` says have not begun."""
        limit = self._stall_timeout
        for slot, last in list(self._last_heard.items()):
            if waits(slot):
                self._last_heard[slot] = now + GRACE
            elif now - last > self._heartbeat_timeout:
                yield slot, f"said nothing for {now - last:.0f} seconds (heartbeat_timeout={self._heartbeat_timeout:g})"
            else:
                yield slot, "" if limit is None else self._watches[slot].hung(limit)

    def stalls(self) -> dict[int, Stall]:
        """Those that are past `liveness.SHOWN`."""
        if self._stalls is None:
            found = {slot: watch.stall for slot, watch in self._watches.items()}
            self._stalls = {slot: stall for slot, stall in found.items() if stall.seconds >= SHOWN}
        return self._stalls

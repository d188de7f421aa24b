"""Which agents are silent, and which make no progress, as their messages and heartbeats show.

It is asked now and then, and ends nothing: who is lost, and why, is what it gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from hopyard.core.liveness import SHOWN, Sample, Stall, Watch

GRACE = 120.0
"""Seconds that a new agent may take, beyond `heartbeat_timeout`, until it connects."""


class SlotTimers:
    """Owner of the time of each slot's last message, and of how far each slot has come.

    Args:
        heartbeat_timeout: seconds after which an agent that sends nothing is lost.
        stall_timeout: seconds after which an agent that makes no progress is lost; None: it need not make any.
    """

    def __init__(self, heartbeat_timeout: float, stall_timeout: float | None) -> None:
        self._heartbeat_timeout, self._stall_timeout = heartbeat_timeout, stall_timeout
        self._last_message_at: dict[int, float] = {}
        self._watches: dict[int, Watch] = {}
        self._stalls: Mapping[int, Stall] = {}
        """What `stalls` returns. It is replaced where something changes: callers compare it with an earlier one."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._last_message_at

    def start(self, slot: int) -> None:
        """Begin to watch a slot whose agent is started."""
        now = time.monotonic()
        self._last_message_at[slot], self._watches[slot] = now + GRACE, Watch(now)
        self._note(slot, None)

    def forget(self, slot: int) -> None:
        """Stop watching a slot."""
        self._last_message_at.pop(slot, None)
        self._watches.pop(slot, None)
        self._note(slot, None)

    def on_message(self, slot: int) -> None:
        """Record that a message of this slot came."""
        self._last_message_at[slot] = time.monotonic()

    def advanced(self, slot: int, sample: Sample) -> None:
        """Record how far the slot has come, as a heartbeat says."""
        watch = self._watches[slot]
        watch.see(sample)
        stall = watch.stall
        self._note(slot, stall if stall.seconds >= SHOWN else None)

    def excuse(self, now: float) -> None:
        """Begin all limits anew: this process did not run for a while, and nobody else is to blame."""
        self._last_message_at = dict.fromkeys(self._last_message_at, now)
        for watch in self._watches.values():
            watch.excuse(now)
        self._stalls = {}

    def expired(self, now: float, waits: Callable[[int], bool]) -> Iterator[tuple[int, str]]:
        """Yield (slot, why it is lost) for each slot whose agent may have begun; "": it is not lost. The time of one
        that waits, for a place or for what it imports (`ports.engines.Agents.waits`), has not begun."""
        limit = self._stall_timeout
        for slot, last in list(self._last_message_at.items()):
            if waits(slot):
                self._last_message_at[slot] = now + GRACE
            elif now - last > self._heartbeat_timeout:
                yield slot, f"said nothing for {now - last:.0f} seconds (heartbeat_timeout={self._heartbeat_timeout:g})"
            else:
                yield slot, "" if limit is None else self._watches[slot].hung(limit)

    def stalls(self) -> Mapping[int, Stall]:
        """Return the slots that are past `liveness.SHOWN`."""
        return self._stalls

    def _note(self, slot: int, stall: Stall | None) -> None:
        """Note that a slot is stalled, or (None) is not. Each heartbeat comes here, of hundreds a second where there
        are a thousand agents, so nothing goes over all slots."""
        if stall is not None:
            self._stalls = {**self._stalls, slot: stall}
        elif slot in self._stalls:
            self._stalls = {other: each for other, each in self._stalls.items() if other != slot}

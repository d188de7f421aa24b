"""Whether a worker advances: judged by samples of its counters, not by a guess of how long work may take.

A worker counts batches that it finished, bytes that it read, and changes of its phase. It is *stalled* while these
counters stand still, and *hung* when they have stood still for `stall_timeout` seconds. While it builds or compiles a
model it finishes no batch, so there processor time counts as well, for an hour at most. A worker that is idle waits
for the driver, and never stalls.

No clock is read here: each sample carries the time at which the driver received it. Silence is not judged here either:
a worker of which no sample comes is the business of `heartbeat_timeout`.
"""

from __future__ import annotations

from typing import NamedTuple

PHASES = ("idle", "fetch", "build", "compile", "train", "validate", "lay", "store")
"""What a worker does; a heartbeat carries the index. *fetch* brings a State or a partition, *build* calls the recipe,
*compile* is the first step of a built model, *lay* puts the new State into shared memory, *store* into the store."""
COMPUTING = frozenset({"build", "compile"})
"""Phases in which processor time is progress."""
BUSY = 0.01
"""Least part of the time between two samples that counts as work. A worker that sleeps and polls in turn uses less; one
that compiles on a machine with ten times more work than it can do gets little more."""
CREDIT = 3600.0
"""Seconds for which processor time alone is progress."""
SHOWN = 30.0
"""Seconds without progress after which the user sees it."""


class Sample(NamedTuple):
    """One heartbeat."""

    at: float
    """When it was received, in seconds of the driver's clock."""
    advanced: int
    """Batches finished, bytes read, and changes of phase so far."""
    phase: str
    cpu: float
    """Processor seconds used so far by the training thread, compilers and child processes; 0.0: not measured."""


class Stall(NamedTuple):
    """A worker makes no progress."""

    phase: str
    seconds: float


class Watch:
    """The samples of one worker. Owner: the receiver of its heartbeats.

    Args:
        at: when the watch begins.
    """

    __slots__ = ("_advanced_at", "_last", "_progress_at")

    def __init__(self, at: float) -> None:
        self._last = Sample(at, 0, "idle", 0.0)
        self._advanced_at = at
        """When the counters were last seen to move."""
        self._progress_at = at
        """When the worker last made progress: later than that, where processor time counts."""

    def see(self, sample: Sample) -> None:
        """Take the next heartbeat."""
        last, self._last = self._last, sample
        if sample.phase == "idle" or (sample.advanced, sample.phase) != (last.advanced, last.phase):
            self._advanced_at = self._progress_at = sample.at
        elif sample.phase in COMPUTING:
            used = sample.cpu - last.cpu
            if used > 0 and used >= BUSY * (sample.at - last.at):
                self._progress_at = max(self._progress_at, min(sample.at, self._advanced_at + CREDIT))

    def excuse(self, at: float) -> None:
        """Begin anew, as the driver itself did not run until now: the time before counts against no worker."""
        self._last = self._last._replace(at=at)
        self._advanced_at = self._progress_at = at

    @property
    def stall(self) -> Stall:
        """For how long there was no progress at the last heartbeat; zero seconds: there was progress."""
        return Stall(self._last.phase, self._last.at - self._progress_at)

    def hung(self, stall_timeout: float) -> str:
        """Return why the worker counts as hung; "": it does not."""
        phase, seconds = self.stall
        if seconds < stall_timeout:
            return ""
        return f"made no progress for {seconds:.0f} seconds in phase {phase!r} (stall_timeout={stall_timeout:g})"

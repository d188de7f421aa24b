"""The order of work, and its predicates and sizes. `scheduler` has the queues, and pairs slots with work.

An idle slot takes

1. a fold (milliseconds, and it ends an epoch),
2. the validation of the State that it has in memory,
3. the trial that it has in memory,
   unless a waiting trial is *critical*: its remaining time exceeds an even share of all that is left, so that it
   alone would decide when the run ends,
4. another trial's validation, oldest first,
5. the waiting trial with the longest remaining time.

Source: 5 is longest-processing-time-first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math.
17(2), 1969, §3), applied to what remains; the exception in 3 is McNaughton's bound max(longest, total / slots)
("Scheduling with Deadlines and Loss Functions", Management Science 6(1), 1959), without which two slots would end
three equal trials after 2 lengths instead of 1.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.core.runs.order import visit
from hopyard.core.runs.records import SlotRecord, TrialRecord
from hopyard.spec import RunSpec

SHARES = 4
"""A group of units is at most 1 / SHARES of a slot's even share of the remaining work, so that slots end together."""


def critical(waiting: TrialRecord | None, mine: TrialRecord, share: float) -> bool:
    """Whether `waiting` must run before `mine` goes on: it is longer than an even share of all remaining work."""
    return waiting is not None and waiting.remaining > mine.remaining and waiting.remaining > share


def span(trial: TrialRecord, spec: RunSpec, share: float) -> tuple[int, ...]:
    """Return the consecutive partitions that a training unit covers: at least one, of one epoch.

    Args:
        trial: the trial of the unit.
        spec: the run's; its `group` is a fixed number, else `group_seconds` says how long a unit may be.
        share: one slot's share of all remaining work, in seconds.
    """
    partitions = spec.partitions
    if spec.group:
        most = spec.group
    elif trial.seconds > 0:
        most = int(min(spec.group_seconds, share / SHARES) / trial.seconds)
    else:
        most = 1
    first = trial.step
    if most <= 1:
        return (visit(trial.offset, first, partitions)[1],)
    last = first + min(most, partitions - first % partitions, trial.target - first)
    return tuple([visit(trial.offset, step, partitions)[1] for step in range(first, last)])


def portion(pending: list[int], seconds: float, spec: RunSpec) -> tuple[int, ...]:
    """Return the validation partitions of one unit, out of `pending`. A partition takes about `seconds`; 0: not
    known."""
    if spec.group:
        return tuple(pending[: spec.group])
    if seconds <= 0:
        return tuple(pending[:1])
    return tuple(pending[: max(1, int(spec.group_seconds / seconds))])


def neighbours(slot: SlotRecord, slots: Mapping[int, SlotRecord]) -> set[int]:
    """Return the other slots of its host, which share memory with it."""
    return {number for number, other in slots.items() if number != slot.id and other.host == slot.host}


def slot_for_retry(candidates: Iterable[SlotRecord], new: bool) -> SlotRecord | None:
    """Return the slot for a unit that ran out of memory, out of those that can take it: one that has done nothing yet,
    whose memory holds nothing of other units; else, unless it must be `new`, any slot, idle ones first."""
    able = [slot for slot in candidates if not (new and slot.used)]
    return min(able, key=lambda slot: (slot.used, bool(slot.busy), slot.id), default=None)

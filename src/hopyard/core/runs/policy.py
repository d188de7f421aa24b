"""Which ready unit goes to which idle slot.

Pure choices over what waits; who waits where is kept by `scheduler`. An idle slot takes

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

from collections.abc import Mapping

from hopyard.core.runs.order import visit
from hopyard.core.runs.records import SlotRecord, TrialRecord
from hopyard.spec import RunSpec

SHARES = 4
"""A group of units is at most this part of a slot's even share of what is left, so that slots end together."""


def critical(waiting: TrialRecord | None, mine: TrialRecord, share: float) -> bool:
    """Whether `waiting` must run before `mine` goes on: it is longer than an even share of all the work left."""
    return waiting is not None and waiting.remaining > mine.remaining and waiting.remaining > share


def span(trial: TrialRecord, spec: RunSpec, share: float) -> tuple[int, ...]:
    """The consecutive partitions that a training unit covers: at least one, of one epoch.

    Args:
        trial: whose unit it is.
        spec: of the run; its `group` is a fixed number, else `group_seconds` says how long a unit may be.
        share: seconds of all work left that fall to one slot.
    """
    partitions = spec.partitions
    if spec.group:
        most = spec.group
    elif trial.seconds > 0:
        most = int(min(spec.group_seconds, share / SHARES) / trial.seconds)
    else:
        most = 1
    first = trial.step
    last = first + max(1, min(most, partitions - first % partitions))
    return tuple([visit(trial.id, step, partitions)[1] for step in range(first, last)])


def portion(left: list[int], each: float, spec: RunSpec) -> tuple[int, ...]:
    """How much of a validation one unit takes: `left` partitions of about `each` seconds; 0 when that is not known."""
    if spec.group:
        return tuple(left[: spec.group])
    if each <= 0:
        return tuple(left[:1])
    return tuple(left[: max(1, int(spec.group_seconds / each))])


def sharers(slot: SlotRecord, slots: Mapping[int, SlotRecord], on_device: bool) -> set[int]:
    """The other slots that share memory with this one: that of its device, or that of its host. A slot that does not
    say which device it has may have any."""
    return {
        number
        for number, other in slots.items()
        if number != slot.id
        and other.host == slot.host
        and not (on_device and slot.device and other.device and slot.device != other.device)
    }


def slot_for_retry(able: Mapping[int, SlotRecord], new: bool) -> SlotRecord | None:
    """The slot for a unit that ran out of memory, of those that can take it: one that has done nothing yet, whose
    memory holds nothing of others; else, unless it must be a `new` one, any, an idle one first."""
    unused = [slot for slot in able.values() if not slot.used]
    if not unused and new:
        return None
    return min(unused or able.values(), key=lambda slot: (bool(slot.busy), slot.id), default=None)

"""What follows from a fault: the trial ends, or it is tried again, at once or after a wait.

| fault | what happens |
|---|---|
| user, data | the trial ends |
| system | the trial waits 1, 2, 4, … s, at most `MOST`; it ends when one unit failed so more than `retries` times |
| store | the same without end: States are safe, only the store is away |
| memory | once more, in a new worker, while other slots of the host rest; the second time ends the trial |
| a slot stored no State in time | its unit goes to another slot at once; the third in a row ends the State's trial |
| a slot was lost | the unit goes to another slot at once; the third slot (`strikes`) ends the trial as poison |

The lease of a slot that was lost is revoked in `slots.py`, and its trial rewound in `lifecycle.py`.

A unit that ends well clears what was counted against it, and progress of its trial makes the next wait short again.
Work that is only done again is no progress: a unit that kills every worker, behind others that end well, must not go on
for ever.

Rules over one TrialRecord: nothing depends on anything but their arguments. `retries` carries them out.
"""

from __future__ import annotations

from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec, Unit

FIRST = 1.0
"""Seconds of the first wait."""
MOST = 300.0
"""Seconds of the longest wait."""
FRESH = 120.0
"""Seconds in which a new worker should have come up; after that any slot may try what ran out of memory."""
UNSTORED = 3
"""Times that the store lacks a durable State, or returns it damaged, before the State is made again; and slots in a row
that did not store a State of a trial in time, before the trial ends."""

TRANSIENT = ("system", "store", "memory")
"""Faults after which a trial is tried again."""
OUT_OF_MEMORY = "its memory ran out: a new worker takes its place"
POISON = "poison: "
"""Beginning of the error of a trial that ended several workers."""
REASON = 300
"""Most characters of the error that says why a trial waits."""

Key = tuple[str, str, int, int]


def key(fault: str, unit: Unit) -> Key:
    """Return the key under which faults of a unit are counted: the next time units may be grouped otherwise."""
    return fault, unit.kind, unit.epoch, unit.partitions[0] if unit.partitions else 0


def strike(trial: TrialRecord, key: Key) -> int:
    """Count one more fault. Returns how many there are by now."""
    count = trial.strikes[key] = trial.strikes.get(key, 0) + 1
    return count


def ends(fault: str, count: int, spec: RunSpec) -> bool:
    """Whether the trial ends when this fault of one unit was counted so often."""
    if fault == "lost":
        return count >= spec.strikes
    if fault == "memory":
        return count > 1
    return fault == "system" and count > spec.retries


def pause(troubles: int) -> float:
    """Return the seconds to wait after so many faults in a row."""
    return min(MOST, FIRST * 2.0 ** min(troubles - 1, 30))


def brief(error: str) -> str:
    """Return the first line of an error, cut to `REASON`."""
    return (error.strip().splitlines() or [""])[0][:REASON]


def out_of_memory(error: str, on_device: bool) -> str:
    """Return the error of a trial that ran out of memory again."""
    kind = "device" if on_device else "host"
    return (
        f"out of memory, also in a new worker while the others of its host rested: {error}. Give fewer workers to each "
        f"{kind}, or a {kind} with more memory, then `hopyard resume --failed` goes on with it; or a recipe with a "
        "smaller batch_size or model: hy.resume(run, failed=True, recipe=…) begins it anew"
    )


def begins_anew(trial: TrialRecord) -> bool:
    """Whether a trial that failed begins anew with another recipe, where the user gives one. The other trials lose
    nothing: they go on from their last States. A recipe may be to blame for its own errors, too much memory, and
    workers that crash; and a trial without a durable State has nothing to lose."""
    return trial.fault in ("user", "memory") or trial.error.startswith(POISON) or not trial.durable_step


def well(trial: TrialRecord, unit: Unit, slot: int) -> None:
    """Record that a unit of the trial ended well on this slot; the trial's step has moved on already."""
    progress = unit.kind != "train" or trial.step > trial.reached
    if trial.strikes:
        for fault in ("system", "lost", "memory"):
            trial.strikes.pop(key(fault, unit), None)
        if progress and unit.kind == "train":
            trial.strikes = {unit_key: count for unit_key, count in trial.strikes.items() if unit_key[1] != "train"}
    if progress:
        trial.troubles = 0
    if trial.isolated == unit.kind and trial.refuge == slot:
        trial.isolated, trial.fresh, trial.refuge = "", 0.0, -1
    if trial.step > trial.reached:  # noqa: PLR1730 - `max` takes three times as long, for each unit
        trial.reached = trial.step


def cleared(trial: TrialRecord) -> None:
    """Clear all faults and waits of the trial."""
    trial.strikes.clear()
    trial.troubles = trial.unstored = 0
    trial.until, trial.waits_for = 0.0, ""
    trial.isolated, trial.fresh, trial.refuge = "", 0.0, -1

"""Trackers, outside of the run: a *follower*, a process of its own, reads the journal and writes to one tracker.

    hopyard.tracking.read(directory, wait=True)     what happens in a run, for a tracker of your own: RunStarted,
                                                    TrialStarted, Logged, EpochEnded, RungReached, TrialEnded, …

    records                          what happens, as plain values
    recorder, reading                from the journal to records: pure, and from files that grow
    follower                         brings one tracker up to date, again and again
    kubeflow, mlflow, tensorboard    the trackers, by name in `hopyard.trackers`
    summaries                        from records to events of TensorBoard

Names are looked up when they are first used, as a follower takes the lowest priority before it imports anything.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_RECORDS = "hopyard.tracking.records"
_MODULES = {"read": "hopyard.tracking.reading"} | dict.fromkeys(
    (
        *("EpochEnded", "Logged", "Record", "RunEnded", "RunResumed", "RunStarted"),
        *("RungReached", "TrialEnded", "TrialStarted"),
    ),
    _RECORDS,
)
"""Public name → the module that defines it."""

__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hopyard.tracking' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES[name]), name)


if TYPE_CHECKING:
    from hopyard.tracking.reading import read as read
    from hopyard.tracking.records import EpochEnded as EpochEnded
    from hopyard.tracking.records import Logged as Logged
    from hopyard.tracking.records import Record as Record
    from hopyard.tracking.records import RunEnded as RunEnded
    from hopyard.tracking.records import RungReached as RungReached
    from hopyard.tracking.records import RunResumed as RunResumed
    from hopyard.tracking.records import RunStarted as RunStarted
    from hopyard.tracking.records import TrialEnded as TrialEnded
    from hopyard.tracking.records import TrialStarted as TrialStarted

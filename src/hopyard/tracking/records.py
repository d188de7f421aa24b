"""What happened in a run, as plain records in the order of its journal: all that a tracker needs.

Records depend on the journal alone, times included. What is done again after a fault has the values that it had before,
and no second record. Epochs count from 1, steps are partitions that a trial has finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hopyard.core.runs.events import LoggedValue
from hopyard.spec import Config


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in a run.

    Attributes:
        at: when, in seconds since 1970.
    """

    at: float


class RunStarted(Record, frozen=True):
    """The run began. Always the first record.

    Attributes:
        run: its id, which no other run has.
        settings: what it was asked for: `epochs`, `partitions`, `seed`, `metric`, `mode` and so on.
        facts: versions, and the digest of its data (`data`).
    """

    run: str
    settings: dict[str, Any]
    facts: dict[str, Any]


class RunResumed(Record, frozen=True):
    """Another driver goes on with the run."""


class RunEnded(Record, frozen=True):
    """The run ended, or its driver did: "completed", "partial", "failed", "stopped" or "interrupted".

    Attributes:
        reason: why the driver ended before the run.
    """

    status: str
    reason: str = ""


class OfTrial(Record, frozen=True):
    """Something that happened to a trial.

    Attributes:
        trial: its number, from 0.
        attempt: how often it has begun anew with another recipe before.
    """

    trial: int
    attempt: int


class TrialStarted(OfTrial, frozen=True):
    """A trial began, or began anew. The first record of an attempt."""

    config: Config


class Logged(OfTrial, frozen=True):
    """What the recipe logged (`ctx.log`) while one partition was trained.

    Attributes:
        values: name → the mean of its numbers, or the histogram of its arrays.
    """

    epoch: int
    partition: int
    step: int
    values: Mapping[str, LoggedValue]


class EpochEnded(OfTrial, frozen=True):
    """All metrics of an epoch are in. Epochs may come in another order than theirs."""

    epoch: int
    step: int
    metrics: dict[str, float]


class RungReached(OfTrial, frozen=True):
    """The search looked at a trial, and decided for the first time what becomes of it there.

    Attributes:
        epochs: how many it has trained; a fraction where it looks at it within an epoch.
        metrics: those of its last whole epoch.
        verdict: "paused", "granted" or "stopped".
        reason: why, in words.
    """

    epochs: float
    step: int
    metrics: dict[str, float]
    verdict: str
    reason: str


class TrialEnded(OfTrial, frozen=True):
    """A trial ended, for now: it may be tried again, or get more epochs.

    Attributes:
        status: "completed", "stopped" or "failed".
        epoch: the best one; None: it has none.
        metrics: those of the best epoch.
        digest: of its final State; "": it failed.
        seconds: of workers.
        reason: why it failed or was stopped.
    """

    status: str
    epoch: int | None
    metrics: dict[str, float]
    digest: str
    seconds: float
    reason: str = ""

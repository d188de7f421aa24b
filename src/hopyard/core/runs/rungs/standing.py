"""Where the trials of a search stand, which its owner (`search`) changes and every rule reads; and what a rule is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hopyard.core.runs.events import Granted, Paused, Stopped
from hopyard.core.runs.records import TrialRecord

AHEAD = 2
"""Trials that train at a time, for each slot, where a search is asynchronous: fewer, and slots would idle while
validations run; more, and trials are proposed before results are known."""

Verdict = Paused | Granted | Stopped


@dataclass
class Standing:
    """Where trials stand.

    Attributes:
        trials: number → record, as the machine has them.
        active: trials that train towards their target, or wait for metrics there.
        undecided: trial → step, for trials whose metrics at their target are in, and about which nothing is decided.
        paused: trials that wait at their target.
        exhausted: whether nothing more is proposed.
        slots: how many slots train.
        at: when the present event happened.
    """

    trials: dict[int, TrialRecord]
    active: dict[int, None] = field(default_factory=dict)
    undecided: dict[int, int] = field(default_factory=dict)
    paused: dict[int, None] = field(default_factory=dict)
    exhausted: bool = False
    slots: int = 0
    at: float = 0.0

    @property
    def room(self) -> int:
        """How many trials an asynchronous search lets train at a time."""
        return AHEAD * self.slots

    def pause(self, trial: int, reason: str) -> Paused:
        """Return the decision that the trial waits."""
        return Paused(at=self.at, trial=trial, reason=reason)

    def grant(self, trial: int, target: int, reason: str) -> Granted:
        """Return the decision that the trial goes on."""
        return Granted(at=self.at, trial=trial, target=target, reason=reason)

    def stop(self, trial: int, reason: str) -> Stopped:
        """Return the decision that the trial ends."""
        return Stopped(at=self.at, trial=trial, reason=reason)


class Judge(Protocol):
    """What carries out a rule of `stopping`. All methods but `decide` are part of a fold."""

    def first(self, trial: int) -> int:
        """Return the first target of a trial, in steps. It must never change, as no journal has it."""
        ...

    def proposed(self, trial: int) -> None:
        """Record that there is such a trial."""
        ...

    def report(self, trial: TrialRecord, step: int, value: float) -> None:
        """Record the trial's key (`rung.key`) at its target `step`."""
        ...

    def granted(self, trial: int, step: int) -> None:
        """Record that the trial, which was at its target `step`, goes on."""
        ...

    def ended(self, trial: TrialRecord) -> None:
        """Record that the trial has ended, or will with its newest State."""
        ...

    def again(self, trial: TrialRecord, anew: bool) -> bool:
        """Record that a trial that failed is tried again; `anew`: from its beginning. Returns whether it waits at its
        target, to which it had come before."""
        ...

    def decide(self, standing: Standing) -> Iterator[Verdict]:
        """Yield decisions, as far as some are due. Each depends on the one before it: carry it out first."""
        ...

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return (first trial, number of trials) of those that are proposed together with this one; None: trials are
        proposed one by one."""
        ...

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return (name, step, trials that came, trials that went on) of each rung, for views."""
        ...

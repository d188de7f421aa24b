"""What rules are, what they know of a run and of its trials, and what they decide. Its owner is `core/runs/search`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec

AHEAD = 2
"""Trials that train at a time, for each slot, where a search is asynchronous: fewer, and slots would idle while
validations run; more, and trials are proposed before results are known."""


class StoppingRule(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
    """The base of all rules: a value that a journal holds under the name of its class.

    Each rule also has `sync`, which is true if its decisions do not depend on time.
    """

    compares: ClassVar[bool] = False
    """Whether it compares trials with each other."""

    def judge(self, course: Course) -> Judge:
        """Return what decides during one run."""
        raise NotImplementedError

    def check(self, epochs: int, metric: str) -> None:
        """Raise SpecError unless it fits a run. By default any does, even one too short for a trial to be stopped."""


def set_checked(rule: StoppingRule, **checks: Callable[[str, Any], Any]) -> None:
    """Replace fields of a rule by what their checks return: (name, value) → the value to use."""
    for name, check in checks.items():
        value = check(f"{type(rule).__name__}: {name}", getattr(rule, name))
        msgspec.structs.force_setattr(rule, name, value)


class Verdict(NamedTuple):
    """One decision."""

    trial: int
    target: int | None
    """Up to where the trial goes on; where it is now: it waits; None: it ends."""
    reason: str


@dataclass(frozen=True, slots=True)
class Course:
    """What rules know of a run; each as in `RunSpec`."""

    epochs: int
    partitions: int
    trials: int | None
    batch: int
    metric: str
    mode: Literal["min", "max"]

    @property
    def steps(self) -> int:
        """Partitions that a trial goes over in the whole run."""
        return self.epochs * self.partitions


class TrialView(Protocol):
    """What rules know of a trial; each as in `core.runs.records.TrialRecord`."""

    id: int
    target: int
    history: dict[int, dict[str, float]]

    @property
    def status(self) -> str: ...  # noqa: D102


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
    """

    trials: Mapping[int, TrialView]
    active: dict[int, None] = field(default_factory=dict)
    undecided: dict[int, int] = field(default_factory=dict)
    paused: dict[int, None] = field(default_factory=dict)
    exhausted: bool = False
    slots: int = 0

    @property
    def room(self) -> int:
        """How many trials an asynchronous search lets train at a time."""
        return AHEAD * self.slots


class Judge(Protocol):
    """What decides for a rule. All methods but `decide` are part of a fold."""

    def first(self, trial: int) -> int:
        """Return the first target of a trial, in steps. It must never change, as no journal has it."""
        ...

    def proposed(self, trial: int) -> None:
        """Record that there is such a trial."""
        ...

    def report(self, trial: TrialView, step: int, value: float) -> None:
        """Record the trial's key (`rung.key`) at its target `step`."""
        ...

    def granted(self, trial: int, step: int) -> None:
        """Record that the trial, which was at its target `step`, goes on."""
        ...

    def ended(self, trial: TrialView) -> None:
        """Record that the trial has ended, or will with its newest State."""
        ...

    def again(self, trial: TrialView, anew: bool) -> bool:
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

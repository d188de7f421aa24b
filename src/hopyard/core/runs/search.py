"""The owner of what a run knows of its search: where trials stand, what its rule knows, its budgets.

Whatever is decided is a fact with its reason (`Paused`, `Granted`, `Stopped`, `Closed`), so a fold decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hopyard.core.runs.events import Closed, Granted, Paused, Stopped
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec
from hopyard.stopping import Asked
from hopyard.stopping.rung import WORST, key
from hopyard.stopping.standing import Course, Standing, Verdict

Decision = Paused | Granted | Stopped | Closed


class Search:
    """Where the trials of a run stand in its search. Owner: `Machine`, which changes it through `lifecycle` and
    `epochs`.

    Args:
        spec: the run's.
        trials: the machine's, by number.
        slots: the machine's, by number.

    Attributes:
        spec: the run's, also when the user gives it more.
        standing: which trials train, wait, or await a decision.
        closed: why the run ends with what it has; "": it does not.
        error: what the search raised, so that nothing more is proposed; "": nothing.
        changed: whether something may have to be decided.
    """

    def __init__(self, spec: RunSpec, trials: dict[int, TrialRecord], slots: dict[int, Any]) -> None:
        self.standing = Standing(trials)
        self.closed = ""
        self.error = ""
        self.changed = False
        self.spec = spec
        self._slots = slots
        course = Course(spec.epochs, spec.partitions, spec.trials, spec.batch, spec.metric or "", spec.mode)
        self._judge = None if spec.stop is None else spec.stop.judge(course)
        self._reached = ""
        """What reached the goal."""
        self._deadline: float | None = None

    # ---------------------------------------------------------------- what an event changes

    def begun(self, at: float) -> None:
        """Let time count from now on."""
        if self.spec.max_time is not None:
            self._deadline = at + self.spec.max_time

    def resumed(self, at: float, before: float) -> None:
        """Leave out the time from `before`, when the last driver was at work, until now."""
        self.changed = True
        if self._deadline is not None:
            self._deadline += at - before

    def propose(self, number: int) -> int:
        """Add a trial. Returns its first target."""
        self.standing.active[number] = None
        if self._judge is None:
            return self.spec.steps
        self._judge.proposed(number)
        return self._judge.first(number)

    def report(self, trial: TrialRecord, values: dict[str, float]) -> None:
        """Record that the metrics of an epoch are in, which the trial has already. When it has all up to its target,
        something is to be decided about it; epochs may come in any order."""
        spec = self.spec
        if spec.goal is not None and not self._reached:
            value = key(spec.mode, values.get(spec.metric or ""))
            if value < WORST and value <= key(spec.mode, spec.goal):
                self._reached = f"trial {trial.id} reached {spec.metric}={values[spec.metric or '']:g}"
                self.changed = True
        epochs, rest = divmod(trial.target, spec.partitions)
        if not rest and len(trial.history) >= epochs and self.awaits(trial):
            self.look(trial, trial.history[epochs - 1])

    def awaits(self, trial: TrialRecord) -> bool:
        """Whether a decision waits for metrics of the trial at its target."""
        return self._judge is not None and trial.id in self.standing.active and trial.target < self.spec.steps

    def look(self, trial: TrialRecord, values: dict[str, float]) -> None:
        """Record the metrics at the trial's target, about which something is to be decided now: those of an epoch, or
        of the partitions of an unfinished one."""
        if self._judge is None:
            return
        del self.standing.active[trial.id]
        self.standing.undecided[trial.id] = trial.target
        self._judge.report(trial, trial.target, key(self.spec.mode, values.get(self.spec.metric or "")))
        self.changed = True

    def pause(self, trial: TrialRecord) -> None:
        """Record that the trial waits at its target."""
        self.standing.undecided.pop(trial.id, None)
        self.standing.paused[trial.id] = None

    def grant(self, trial: TrialRecord) -> None:
        """Record that the trial goes on from its target."""
        self._leave(trial)
        self.standing.active[trial.id] = None
        if self._judge is not None:
            self._judge.granted(trial.id, trial.target)

    def end(self, trial: TrialRecord) -> None:
        """Record that the trial has ended, or ends with its newest State."""
        self._leave(trial)
        if self._judge is not None:
            self._judge.ended(trial)
        self.changed = True

    def again(self, trial: TrialRecord, anew: bool) -> None:
        """Record that a trial that failed is tried again. Where it begins anew, it has its first target again; else it
        waits there again, if it did."""
        trial.paused = self._judge is not None and self._judge.again(trial, anew)
        if anew:
            trial.target = self.spec.steps if self._judge is None else self._judge.first(trial.id)
        (self.standing.paused if trial.paused else self.standing.active)[trial.id] = None
        self.changed = True

    def exhausted(self, error: str = "") -> None:
        """Record that nothing more is proposed. `error`: what the search raised."""
        self.standing.exhausted = True
        self.error = error or self.error
        self.changed = True

    # ---------------------------------------------------------------- asked

    @property
    def limited(self) -> bool:
        """Whether trials are proposed as others end, wait, or come to their ends: not all at once."""
        spec = self.spec
        return spec.max_time is not None or spec.goal is not None or not (spec.stop is None or spec.stop.sync)

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return (first trial, number of trials) of those that are proposed together with this one; None: trials are
        proposed one by one."""
        together = None if self._judge is None else self._judge.generation(trial)
        batch = self.spec.batch
        return together if together is not None or not batch else (trial - trial % batch, batch)

    def asks(self) -> list[int]:
        """Return the trials about which the user's function decides."""
        return list(self.standing.undecided) if isinstance(self.spec.stop, Asked) else []

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return (name, step, trials that came, trials that went on) of each rung."""
        return [] if self._judge is None else self._judge.rungs()

    @property
    def slots(self) -> int:
        """How many slots train: a gang is one, and a worker that waits for others to form one is none."""
        if self.spec.members == 1:  # asked after each event, of which there are thousands a second
            return len(self._slots)
        return sum([slot.trains for slot in self._slots.values()])

    def earliest(self) -> float | None:
        """Return when `max_time` is over; None: never."""
        return None if self.closed else self._deadline

    # ---------------------------------------------------------------- decisions

    def decide(self, at: float) -> Iterator[Decision]:
        """Yield what is to be decided now. Each decision depends on the one before it: carry it out first."""
        standing = self.standing
        standing.slots = self.slots
        if not self.closed and self._reached:
            yield Closed(at=at, reason=f"{self._reached}, the goal was {self.spec.goal:g}")
        elif not self.closed and self._deadline is not None and at >= self._deadline:
            yield Closed(at=at, reason=f"max_time={self.spec.max_time:g} seconds are over")
        if self.closed:
            for number in [*standing.active, *standing.undecided, *standing.paused]:
                yield Stopped(at=at, trial=number, reason=self.closed)
        elif self._judge is not None:
            for verdict in self._judge.decide(standing):
                yield self._decision(at, verdict)
        self.changed = False

    def _decision(self, at: float, verdict: Verdict) -> Decision:
        trial, target, reason = verdict
        if target is None:
            return Stopped(at=at, trial=trial, reason=reason)
        if target == self.standing.trials[trial].target:
            return Paused(at=at, trial=trial, reason=reason)
        return Granted(at=at, trial=trial, target=target, reason=reason)

    def _leave(self, trial: TrialRecord) -> None:
        self.standing.active.pop(trial.id, None)
        self.standing.undecided.pop(trial.id, None)
        self.standing.paused.pop(trial.id, None)

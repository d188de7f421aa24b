"""The owner of what a run knows of its search: where trials stand, what its rule knows, its budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hopyard.core.runs.events import Closed
from hopyard.core.runs.records import TrialRecord
from hopyard.core.runs.rungs import cohorts, curves
from hopyard.core.runs.rungs.halving import Bracket, Halving
from hopyard.core.runs.rungs.rung import WORST, key
from hopyard.core.runs.rungs.standing import Judge, Standing, Verdict
from hopyard.spec import RunSpec
from hopyard.stopping import ASHA, Asked, Hyperband, Lengths, Median, Patience, powers


def judge_of(spec: RunSpec) -> Judge | None:
    """Return the judge of the run's rule; None: there is no rule."""
    rule, steps, partitions = spec.stop, spec.steps, spec.partitions
    if isinstance(rule, ASHA):
        first = rule.min_partitions or rule.min_epochs * partitions
        targets = powers(first, rule.reduction_factor, steps)
        if rule.sync:
            return _batches(spec, targets, *cohorts.halving(rule.reduction_factor))
        return Halving([(1, Bracket("", targets, steps))], rule.reduction_factor, rule.promote)
    if isinstance(rule, Hyperband):
        dealt = [(count, [n * partitions for n in epochs]) for count, epochs in rule.brackets(spec.epochs)]

        def bracket(kind: int) -> Bracket:
            return Bracket(f"bracket {kind + 1}, ", dealt[kind][1], steps)

        if rule.sync:
            keep, verdict = cohorts.halving(rule.reduction_factor)
            return cohorts.Cohorts([count for count, _ in dealt], bracket, keep, verdict)
        brackets = [(count, bracket(kind)) for kind, (count, _) in enumerate(dealt)]
        return Halving(brackets, rule.reduction_factor, promote=True)
    if isinstance(rule, Median) and rule.sync:
        targets = tuple([epoch * partitions for epoch in range(rule.min_epochs, spec.epochs)])
        return _batches(spec, targets, *cohorts.below_the_median(spec, rule.min_trials))
    if isinstance(rule, Median):
        return curves.median_of_the_ended(spec, rule)
    if isinstance(rule, Patience):
        return curves.patience(spec, rule)
    if isinstance(rule, Asked):
        return curves.EachEpoch(spec, 1, None)
    if isinstance(rule, Lengths):
        return curves.lengths(spec, rule.epochs)
    return None


def _batches(spec: RunSpec, targets: Sequence[int], keep: cohorts.Keep, verdict: cohorts.Verdicts) -> cohorts.Cohorts:
    """Return the judge of a rule that does not say itself how many trials wait for each other: those of a batch, or all
    of the run."""
    sizes = [max(1, spec.batch or spec.trials or 1)]
    return cohorts.Cohorts(sizes, lambda kind: Bracket("", targets, spec.steps), keep, verdict, bool(spec.batch))


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
        self._judge = judge_of(spec)
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
        return spec.max_time is not None or spec.goal is not None or (spec.stop is not None and spec.stop.asynchronous)

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

    def decide(self, at: float) -> Iterator[Verdict | Closed]:
        """Yield what is to be decided now. Each decision depends on the one before it: carry it out first."""
        standing = self.standing
        standing.at, standing.slots = at, self.slots
        if not self.closed and self._reached:
            yield Closed(at=at, reason=f"{self._reached}, the goal was {self.spec.goal:g}")
        elif not self.closed and self._deadline is not None and at >= self._deadline:
            yield Closed(at=at, reason=f"max_time={self.spec.max_time:g} seconds are over")
        if self.closed:
            for number in [*standing.active, *standing.undecided, *standing.paused]:
                yield standing.stop(number, self.closed)
        elif self._judge is not None:
            yield from self._judge.decide(standing)
        self.changed = False

    def _leave(self, trial: TrialRecord) -> None:
        self.standing.active.pop(trial.id, None)
        self.standing.undecided.pop(trial.id, None)
        self.standing.paused.pop(trial.id, None)

    def snapshot(self) -> dict[str, Any]:
        """Return all that matters, as plain values: equal for equal journals."""
        standing = self.standing
        return {
            "active": sorted(standing.active),
            "undecided": dict(sorted(standing.undecided.items())),
            "paused": sorted(standing.paused),
            "closed": self.closed,
            "error": self.error,
            "deadline": self._deadline,
            "rungs": self.rungs(),
        }

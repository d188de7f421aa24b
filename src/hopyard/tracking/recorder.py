"""From the lines of a journal to records. Pure, but for the state of what was taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hopyard.core.runs.events import (
    Began,
    Dispatch,
    Done,
    Durable,
    Failed,
    Finished,
    Granted,
    Interrupted,
    Line,
    Paused,
    Resumed,
    Retried,
    Stopped,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import Unit
from hopyard.tracking.records import (
    EpochEnded,
    Logged,
    Record,
    RunEnded,
    RungReached,
    RunResumed,
    RunStarted,
    TrialEnded,
    TrialStarted,
)


@dataclass(slots=True)
class _Sent:
    """What there are records of, of one attempt of a trial."""

    attempt: int = 0
    started: bool = False
    epochs: set[int] = field(default_factory=set)
    step: int = 0
    """The last whose logged values are in a record."""
    rung: int = 0
    """The last step at which the search decided."""
    end: TrialEnded | None = None


class Recorder:
    """Turns the lines of a journal into records.

    Attributes:
        machine: the state of the run after these lines; None: there was none.
    """

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self._units: dict[int, tuple[Unit, int]] = {}
        """Lease → its unit, and the attempt that it is of."""
        self._sent: dict[int, _Sent] = {}
        self._ended: set[int] = set()

    def take(self, line: Line) -> list[Record]:
        """Return what this line adds. Costs O(1), and O(trials) where it changes how many trials have ended other than
        by its own."""
        decided = self._decision(line) if isinstance(line, (Paused, Granted, Stopped)) else []
        machine = self.machine = fold([line], self.machine)
        records, trial = list[Record](), -1
        match line:
            case Began():
                settings = msgspec.to_builtins(line.spec)
                records.append(RunStarted(at=line.at, run=line.mark, settings=settings, facts=line.fingerprint))
            case Resumed():
                self._units.clear()
                records.append(RunResumed(at=line.at))
            case Retried(recipe=str(recipe)) if recipe:
                self._sent[line.trial] = _Sent(self._of(line.trial).attempt + 1)
            case Dispatch(unit=unit):
                self._units[unit.lease] = unit, self._of(unit.trial).attempt
                if unit.kind == "train":
                    records += self._start(line.at, machine.trials[unit.trial])
            case Done() | Failed() if line.lease in self._units:
                unit, attempt = self._units.pop(line.lease)
                trial = unit.trial
                if isinstance(line, Done) and attempt == self._of(trial).attempt:
                    records += self._done(line, unit, machine.trials[trial])
            case Durable():
                trial = line.ref.trial
            case Paused() | Granted() | Stopped():
                records, trial = decided, line.trial
            case _:
                pass
        if len(machine.trials) - machine.open != len(self._ended):
            records += self._ends(line.at, machine, trial)
        if isinstance(line, Finished):
            records.append(RunEnded(at=line.at, status=line.status))
        elif isinstance(line, Interrupted):
            status = "stopped" if line.stopped else "interrupted"
            records.append(RunEnded(at=line.at, status=status, reason=line.reason))
        return records

    def _of(self, trial: int) -> _Sent:
        return self._sent.setdefault(trial, _Sent())

    def _start(self, at: float, trial: TrialRecord) -> list[Record]:
        sent = self._of(trial.id)
        if sent.started:
            return []
        sent.started = True
        return [TrialStarted(at=at, trial=trial.id, attempt=sent.attempt, config=trial.config)]

    def _done(self, line: Done, unit: Unit, trial: TrialRecord) -> list[Record]:
        sent, records = self._of(trial.id), list[Record]()
        own: dict[str, Any] = {"at": line.at, "trial": trial.id, "attempt": sent.attempt}
        if unit.kind == "train":
            for step, part in enumerate(line.parts, unit.step + 1):
                if step > sent.step:
                    sent.step = step
                    if values := line.logged.get(part.partition):
                        records.append(
                            Logged(**own, epoch=unit.epoch + 1, partition=part.partition, step=step, values=values)
                        )
        if len(trial.history) > len(sent.epochs):
            assert self.machine is not None
            for epoch in sorted(trial.history.keys() - sent.epochs):
                sent.epochs.add(epoch)
                step = (epoch + 1) * self.machine.spec.partitions
                records.append(EpochEnded(**own, epoch=epoch + 1, step=step, metrics=trial.history[epoch]))
        return records

    def _decision(self, line: Paused | Granted | Stopped) -> list[Record]:
        """Return the record of a decision of the search, from the state before it."""
        assert self.machine is not None
        trial, sent = self.machine.trials[line.trial], self._of(line.trial)
        step = trial.target
        if step <= sent.rung or trial.ended or trial.step < step:
            return []
        sent.rung = step
        partitions = self.machine.spec.partitions
        return [
            RungReached(
                at=line.at,
                trial=trial.id,
                attempt=sent.attempt,
                epochs=step / partitions,
                step=step,
                metrics=trial.history.get(step // partitions - 1, {}),
                verdict=type(line).__name__.lower(),
                reason=line.reason,
            )
        ]

    def _ends(self, at: float, machine: Machine, trial: int) -> list[Record]:
        """Return the ends of trials that have ended since the last line: of this one, or of any."""
        records = list[Record]()
        only = machine.trials.get(trial)
        if only is not None and only.ended and trial not in self._ended:
            records += self._end(at, only)
        if len(machine.trials) - machine.open != len(self._ended):
            self._ended = {number for number in self._ended if machine.trials[number].ended}
            for each in machine.trials.values():
                if each.ended and each.id not in self._ended:
                    records += self._end(at, each)
        return records

    def _end(self, at: float, trial: TrialRecord) -> list[Record]:
        self._ended.add(trial.id)
        records, sent = self._start(at, trial), self._of(trial.id)
        end = TrialEnded(
            at=at,
            trial=trial.id,
            attempt=sent.attempt,
            status=trial.status,
            epoch=None if trial.best is None else trial.best + 1,
            metrics={} if trial.best is None else trial.history[trial.best],
            digest=trial.digest(),
            seconds=trial.worker_seconds,
            reason=trial.error or (trial.reason if trial.status == "stopped" else ""),
        )
        if sent.end is None or end != msgspec.structs.replace(sent.end, at=at, seconds=end.seconds):
            sent.end = end
            records.append(end)
        return records

"""Before any unit runs, a slot builds the first trial that may be fit and puts one batch through it.

When the first few trials do not pass, none will, and nothing runs. A trial that could not be checked through no fault
of its own is checked again. `Check` is a decision, so it is in the journal.
"""

from __future__ import annotations

from collections.abc import Callable

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Check, Checked
from hopyard.core.runs.faults import rules
from hopyard.core.runs.faults.retries import Retries
from hopyard.core.runs.records import TrialRecord
from hopyard.core.runs.run_record import RunRecord, RunStatus
from hopyard.spec import Fault
from hopyard.text import escaped

CHECKS = 3
"""Preflight tries the first trials in turn: when this many cannot start, nothing runs."""


class Preflight:
    """The checks of a run. Owner: `Machine`.

    Args:
        run: the machine's.
        retries: the machine's.
        set_status: changes the status of the run.

    Attributes:
        names: the metrics that the first trial that passed reports.
    """

    def __init__(self, run: RunRecord, retries: Retries, set_status: Callable[[RunStatus], None]) -> None:
        self.names: tuple[str, ...] = ()
        self._faults: dict[str, list[int]] = {}
        """What is wrong → the trials that did not pass because of it."""
        self._run = run
        self._retries = retries
        self._set_status = set_status
        self._checking: tuple[int, int] | None = None
        """(slot, trial) of the check that is under way."""
        self._unfit = 0
        """Number of trials that did not pass."""
        self._recipe = ""
        """Digest of the newest recipe; empty: there is only the first one."""

    @property
    def faults(self) -> list[str]:
        """What is wrong with the trials that did not pass: each fault once, with its trials."""
        return [self._fault(text, trials) for text, trials in self._faults.items()]

    def _fault(self, text: str, trials: list[int]) -> str:
        if len(trials) > 1:
            return f"trials {', '.join(map(str, trials))}: {text}"
        return escaped(f"trial {trials[0]}, config {self._run.trials[trials[0]].config!r}: {text}")

    def decide(self) -> Check | None:
        """Return the next check, of the first trial that may be fit; trials of the newest recipe and without a State
        come first. A trial that ran out of memory needs a new slot."""
        run = self._run
        if self._checking is not None or not (idle := [slot for slot in run.slots.values() if not slot.busy]):
            return None
        ready = [trial for trial in run.trials.values() if not (trial.ended or trial.until)]
        for trial in sorted(ready, key=lambda trial: (trial.recipe != self._recipe, bool(trial.states))):
            slot = next((slot for slot in idle if not (slot.used and trial.fresh)), None)
            if slot is not None:
                partitions = run.places.first(slot.host, "train"), run.places.first(slot.host, "validate")
                return Check(at=run.at, slot=slot.id, trial=trial.id, partitions=partitions)
        return None

    def begin(self, line: Check) -> None:
        """Record that a slot checks a trial."""
        slot = self._run.slots[line.slot]
        slot.busy, slot.used = -1, True
        self._run.scheduler.set_busy(slot)
        self._checking = line.slot, line.trial

    def awaits(self, event: Checked) -> bool:
        """Whether this is the answer to the check that is under way."""
        return self._checking == (event.slot, event.trial)

    def checked(self, event: Checked) -> None:
        """Take the answer to the check."""
        self._checking = None
        trial = self._run.trials[event.trial]
        if trial.ended:  # the run was closed meanwhile
            return
        if event.faults and event.fault in rules.TRANSIENT:
            self._again(trial, event.fault, "; ".join(event.faults), event.device, event.trace)
        elif event.faults:
            self._refuse(trial, event.fault, list(event.faults), event.trace)
        else:
            rules.cleared(trial)
            trial.model = event.model
            self.names = event.names
            self._set_status("running")

    def lost(self, slot: int, reason: str, fault: str) -> None:
        """Handle the loss of a slot, and of its check; a trial that has lost `strikes` slots is poison."""
        if self._checking is None or self._checking[0] != slot:
            return
        spec, trial = self._run.spec, self._run.trials[self._checking[1]]
        self._checking = None
        if fault == "memory":
            self._again(trial, "memory", reason, False, "")
        elif fault == "system" and rules.ends("lost", rules.strike(trial, ("lost", "check", 0, 0)), spec):
            text = f"{rules.POISON}building trial {trial.id} ended {spec.strikes} workers, the last one so: {reason}"
            self._refuse(trial, "system", [text])

    def begin_anew(self, recipe: str) -> None:
        """Begin again with failed trials, as the user asks. With another recipe (its digest), or where no trial ever
        passed, there is a new preflight."""
        self._unfit, self._faults = 0, {}
        self._recipe = recipe or self._recipe
        self._set_status("running" if self.names and not recipe else "checking")

    def clear(self) -> None:
        """Drop the check under way, as all slots are gone."""
        self._checking = None

    def _again(self, trial: TrialRecord, fault: Fault, error: str, on_device: bool, trace: str) -> None:
        """Retry or refuse a trial that could not be checked, which may be no fault of its own."""
        count = rules.strike(trial, (fault, "check", 0, 0))
        if not rules.ends(fault, count, self._run.spec):
            self._retries.delay(trial, fault, error)
            return
        text = rules.out_of_memory(error, on_device) if fault == "memory" else f"{error} (tried {count} times)"
        self._refuse(trial, fault, [text], trace)

    def _refuse(self, trial: TrialRecord, fault: Fault, errors: list[str], trace: str = "") -> None:
        """End a trial that did not pass preflight. When the first few do not, none will; unless the run went on before
        and only another recipe is unfit: then each other trial is tried by itself."""
        for error in errors:
            self._faults.setdefault(error, []).append(trial.id)
        lifecycle.fail(self._run, trial, fault, "; ".join(errors), trace)
        self._unfit += 1
        if self._unfit >= CHECKS or (self._run.exhausted and not self._run.open):
            self._set_status("running" if self.names else "failed")

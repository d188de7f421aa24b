"""The records and tables of one run, which the modules that change them share."""

from __future__ import annotations

from typing import Literal

from hopyard.core.runs.events import Began, Command
from hopyard.core.runs.leases import Leases
from hopyard.core.runs.records import SlotRecord, TrialRecord
from hopyard.core.runs.scheduling.estimates import Estimates
from hopyard.core.runs.scheduling.homes import Homes
from hopyard.core.runs.scheduling.scheduler import Scheduler
from hopyard.core.runs.search import Search
from hopyard.core.runs.states.durability import Durability
from hopyard.spec import RunSpec, Warned

RunStatus = Literal["checking", "running", "completed", "partial", "failed"]
"""Checking until preflight has passed, then running; the others are how a run ends."""


class RunRecord:
    """All that the machine knows of one run. Owner: `Machine`, which passes it to the modules that change parts of it.

    Attributes:
        spec: what the user asked for, with the timeouts of the present driver.
        trials: number → TrialRecord, in the order of proposal.
        slots: number → SlotRecord, for those that are there.
        leases: who works on what, and until when.
        places: which partitions are at home on which host.
        estimates: how long trials take.
        scheduler: what waits, and which slots are idle.
        search: which trials train, wait, or await a decision of the search.
        durability: which States must still be stored, and until when.
        open: number of trials that have not ended, or that failed and have States on their way to the store.
        exhausted: whether the search has no more to propose.
        extended: epochs of each trial before the user gave the run more; 0: the run has as many as from the start.
        warnings: (place, category) → (first text of a warning that the user's code gave there, its trials).
        commands: those that the present event led to.
        mark: id of the newest driver's mark, as in `Began`.
        at: when the present event happened.
        before: when the one before it did.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.trials: dict[int, TrialRecord] = {}
        self.slots: dict[int, SlotRecord] = {}
        self.leases = Leases()
        self.places = Homes(spec)
        self.estimates = Estimates()
        self.scheduler = Scheduler(spec, self.trials, self.slots, self.places, self.estimates)
        self.search = Search(spec, self.trials, self.slots)
        self.durability = Durability(spec.timeouts.durable_timeout)
        self.open = 0
        self.exhausted = False
        self.extended = 0
        self.warnings: dict[tuple[str, str], tuple[str, set[int]]] = {}
        self.commands: list[Command] = []
        self.mark = ""
        self.at = 0.0
        self.before = 0.0

    def begin(self, event: Began) -> None:
        """Begin the run."""
        self.mark = event.mark
        self.places.begin(event.workers, self.spec)
        self.search.begun(event.at)

    def outcome(self) -> Literal["completed", "partial", "failed"]:
        """Return how the run has ended. It has failed if no trial has a finite value of the metric."""
        well = [trial for trial in self.trials.values() if trial.status in ("completed", "stopped")]
        if not any(self.spec.metric is None or trial.good(self.spec.metric) for trial in well):
            return "failed"
        return "completed" if len(well) == len(self.trials) else "partial"

    def warned(self, trial: int, warnings: tuple[Warned, ...]) -> None:
        """Add warnings that the user's code gave about a trial."""
        for warning in warnings:
            key = warning.place, warning.text.partition(":")[0]
            self.warnings.setdefault(key, (warning.text, set()))[1].add(trial)

"""What follows when workers report that States are stored, forgotten, or cannot be stored."""

from __future__ import annotations

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Delete, Durable, Forgotten, StoreAway, StoreBack, Warn
from hopyard.core.runs.faults.retries import Retries
from hopyard.core.runs.gangs import Gangs
from hopyard.core.runs.run_record import RunRecord


class Storing:
    """The States on their way to the store. Owner: `Machine`.

    Attributes:
        defects: values that must be equal and are not, one sentence each.
    """

    def __init__(self, run: RunRecord, workers: Gangs, retries: Retries) -> None:
        self.defects: list[str] = []
        self._run = run
        self._workers = workers
        self._retries = retries

    def durable(self, event: Durable) -> None:
        """Record a State that is stored."""
        ref, run = event.ref, self._run
        trial = run.trials.get(ref.trial)
        if trial is None:
            return
        partitions = run.spec.partitions
        run.durability.stored(event.slot, event.at)
        if not ref.step % partitions:
            run.durability.settled(ref)
        trial.unstored = 0
        earlier_digest = trial.seal(ref.step, event.digest, partitions)
        if earlier_digest != event.digest:
            self._defect(
                f"trial {ref.trial}, step {ref.step} was done again and gave another State: digest "
                f"{event.digest[:16]} after {earlier_digest[:16]}"
            )
        state = trial.states.get(ref.step)
        if state is None or state.ref != ref:
            run.commands.append(Delete(ref))
            return
        state.digest, state.bytes, state.sealed = event.digest, event.bytes, run.leases.last
        if state.parked:
            self._retries.unpark(trial, state)
        lifecycle.advance(run, trial)

    def _defect(self, text: str) -> None:
        self.defects.append(text)
        blame = "The recipe is not deterministic, or Hopyard is at fault; the newer State is used"
        self._run.commands.append(Warn(f"defect: {text}. {blame}", defect=True))

    def forgotten(self, event: Forgotten) -> None:
        """Treat the State as if its maker were gone: the maker no longer has it, and did not store it."""
        trial = self._run.trials.get(event.ref.trial)
        state = None if trial is None else trial.states.get(event.ref.step)
        if trial is None or state is None or state.ref != event.ref or state.maker != event.slot or state.digest:
            return
        state.memory_key, state.maker = "", -1
        self._run.durability.settled(event.ref)
        self._retries.unpark(trial, state)
        lifecycle.repair(self._run, trial)

    def away(self, event: StoreAway) -> None:
        """Record that a worker cannot reach the store."""
        if (slot := self._workers.record(event.slot)) is not None:
            slot.away, slot.away_since = event.error, event.at
            self._run.durability.away(event.slot, event.at)

    def back(self, event: StoreBack) -> None:
        """Wake the trials that wait for the store."""
        slot = self._workers.record(event.slot)
        if slot is None or not slot.away:
            return
        slot.away = ""
        self._run.durability.back(event.slot, event.at)
        for trial in self._run.trials.values():
            if trial.until and trial.waits_for.startswith("store:"):
                self._retries.wake(trial)

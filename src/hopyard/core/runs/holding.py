"""Workers that are too few for a gang, where others want their places too.

Two runs that each hold some of the places of a gang, and wait for the rest, would wait for each other for ever. So
workers without a gang that have been idle for a while, with no place coming, are given back, and those that were
requested are requested no longer. After a pause the run asks for as many again; `core.contention` has the times. A gang
that was formed is never touched, nor is a worker with a State that is not durable yet.

The driver says which workers it waits for (`Requested`). It does so only where others want the places: elsewhere no
worker is ever given back for this reason.
"""

from __future__ import annotations

from hopyard.core.contention import hold_seconds, pause_seconds
from hopyard.core.runs.events import AskAgain, Requested, Yielded
from hopyard.core.runs.gangs import Gangs
from hopyard.core.runs.records import SlotRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.core.runs.slots import Slots
from hopyard.core.runs.states import retention


class Holding:
    """Decides when workers that are too few are given back, and when they are requested again. Owner: `Machine`.

    Attributes:
        requested: of the workers that were requested and have not joined, (how many have no place, how many start).
    """

    def __init__(self, run: RunRecord, workers: Gangs, slots: Slots) -> None:
        self._run = run
        self._workers = workers
        self._slots = slots
        self.clear()

    def clear(self) -> None:
        """Begin with another driver, which requests all workers."""
        self.requested = 0, 0
        self._turn = self._formed = 0
        """How often workers were given back since a gang was formed, and how many gangs there were by then."""
        self._changed = 0.0
        """When the driver last reported them."""
        self._until = 0.0
        """When they are requested again; 0: there is no pause."""

    # ---------------------------------------------------------------- what a line changes

    def request(self, event: Requested) -> None:
        """Note which workers the driver waits for."""
        self.requested, self._changed = (event.unplaced, event.starting), event.at

    def joined(self) -> None:
        """Note that a worker that was requested has joined."""
        unplaced, starting = self.requested
        self.requested = (unplaced, starting - 1) if starting else (max(0, unplaced - 1), 0)

    def give_back(self, line: Yielded) -> None:
        """Remove the workers, and begin the pause."""
        for slot in line.slots:
            self._slots.remove(slot, "too few workers for a gang: it was given back", "system")
        self.requested, self._until = (0, 0), line.until
        self._turn, self._formed = self.turn + 1, self._workers.formed

    def tick(self, at: float) -> None:
        """End the pause, if it is over."""
        if 0 < self._until <= at:
            self._until = 0.0
            self._run.commands.append(AskAgain())

    # ---------------------------------------------------------------- asked

    @property
    def turn(self) -> int:
        """How often workers were given back since the driver began, or since a gang was formed."""
        return self._turn if self._formed == self._workers.formed else 0

    def earliest(self) -> float | None:
        """Return when workers are given back or requested again next; None: never."""
        times = [self._deadline(loose)] if (loose := self._too_few()) else []
        return min([*times, self._until] if self._until else times, default=None)

    def decide(self) -> bool:
        """Give workers back that are too few for a gang and whose time is over. Returns whether there were any."""
        run, loose = self._run, self._too_few()
        if not loose or run.at < self._deadline(loose):
            return False
        until = run.at + pause_seconds(run.mark, self.turn)
        line = Yielded(at=run.at, slots=tuple([slot.id for slot in loose]), until=until)
        self.give_back(line)
        run.commands.append(line)
        return True

    def _deadline(self, loose: list[SlotRecord]) -> float:
        idle_since = max(slot.idle_since for slot in loose)
        return max(idle_since, self._changed) + hold_seconds(self._run.mark, self.turn)

    def _too_few(self) -> list[SlotRecord]:
        """Return the workers without a gang, if they are idle and too few for one, and places are missing for it. Not
        where they are about to form a smaller one, which the user allows once there was a whole one."""
        unplaced, starting = self.requested
        if not unplaced:
            return []
        run, spec = self._run, self._run.spec
        loose = [slot for slot in run.slots.values() if not slot.members]
        placed = len(loose) + starting
        least = 0 if spec.gang is None else spec.gang.least
        if not placed < spec.members <= placed + unplaced or (self._workers.formed and 0 < least <= len(loose)):
            return []
        for slot in loose:
            if slot.busy or any(retention.in_memory_only(run.trials[n], slot.id) for n in slot.memory_only):
                return []
        return loose

"""The slots of a program: which of them have an agent, whether they are enough, and when too few are given back.

A program runs when it has all its slots. Where others want their places too, as those of Spark's tasks and of pods, two
programs that fit alone, and not together, would each wait for what the other holds. So a program that holds some
places, but too few, and gets no other for a while, gives all of them back, and asks again after a pause
(`core/contention.py`).
"""

from __future__ import annotations

import msgspec

from hopyard.core.contention import hold_seconds, pause_seconds
from hopyard.core.facts import Lost
from hopyard.core.programs.events import AskedAgain, Closing, ProgramSpec, Reserved, Waiting, Yielded
from hopyard.core.programs.placement import Place

ELASTIC = 5.0
"""Seconds that an elastic program waits for more slots once it has the fewest that it needs."""
FAILED_STARTS = 3
"""Number of agents of one slot that may end before the program begins."""


class Reservation(msgspec.Struct, eq=False):
    """The slots of one program. `ProgramMachine` owns it, and changes it by lines of the journal alone."""

    spec: ProgramSpec
    began: float = 0.0
    """When slots were asked for first: at the launch, or once all tasks of an attempt had ended."""
    places: dict[int, Place] = {}
    """Slot → what its agent reserved, for the slots that are there."""
    known: dict[int, Place] = {}
    """The same for all slots that ever were there."""
    last_arrival: float = 0.0
    """When the last agent came."""
    last_grant: float = 0.0
    """When the last agent or place arrived."""
    waiting: int = 0
    """How many slots have no place in the cluster yet, as the engine said last."""
    most: int = 0
    """The most slots that were there at once since then."""
    turn: int = 0
    """How many times they were given back."""
    asks_at: float | None = None
    """When they are asked for again; None: they are asked for."""
    failed_starts: dict[int, int] = {}
    """Slot → how many of its agents ended, one after the other, before the program began."""

    # ------------------------------------------------------------------------------------------------ the fold

    def begin(self, at: float) -> None:
        """Begin to ask for slots."""
        self.began = self.last_arrival = self.last_grant = at
        self.waiting, self.most = self.spec.shared_slots, len(self.places)
        self.turn, self.asks_at = 0, None

    def arrive(self, fact: Reserved) -> None:
        """Note an agent that has come, unless its slot was given back meanwhile."""
        if not self.gave_back(fact.slot):
            self.places[fact.slot] = self.known[fact.slot] = fact.place
            self.last_arrival = self.last_grant = fact.at
            self.most = max(self.most, len(self.places))

    def grant(self, fact: Waiting) -> None:
        """Note how many slots wait for a place."""
        if fact.slots < self.waiting:
            self.last_grant = fact.at
        self.waiting = fact.slots

    def lose(self, fact: Lost, *, early: bool) -> Place | None:
        """Note that an agent has ended; return what it had reserved. `early`: the program had not begun."""
        if early and not self.gave_back(fact.slot):
            self.failed_starts[fact.slot] = self.failed_starts.get(fact.slot, 0) + 1
        return self.places.pop(fact.slot, None)

    def give_back(self, line: Yielded) -> None:
        """Forget the slots whose places are left to others."""
        self.places = {slot: place for slot, place in self.places.items() if slot >= self.spec.shared_slots}
        self.turn, self.asks_at = line.turn + 1, line.at + line.seconds

    def ask_again(self, line: AskedAgain) -> None:
        """Note that they are asked for again."""
        self.last_grant, self.waiting, self.asks_at = line.at, self.spec.shared_slots, None

    # ------------------------------------------------------------------------------------------------ questions

    def gave_back(self, slot: int) -> bool:
        """Return whether this slot is given back, and not asked for again yet."""
        return self.asks_at is not None and slot < self.spec.shared_slots

    def complete(self, at: float) -> bool:
        """Return whether the program can run: with all slots, or with the fewest that it needs and no hope of more."""
        slots = len(self.places)
        return slots >= self.spec.slots or (slots >= self.spec.least and at - self.last_arrival >= ELASTIC)

    def decision(self, at: float) -> Closing | Yielded | AskedAgain | None:
        """Return what is decided while slots are missing: to give up, to give back those that are there, or to ask for
        them again; None: to wait."""
        if at - self.began >= self.spec.start_timeout:
            cause = (
                f"the roles need {self.spec.least} processes, and after {self.spec.start_timeout:.0f} seconds there "
                f"were slots for {self.most}: ask for fewer, or give the engine more (executors, cores, workers=)"
            )
            return Closing(at=at, status="failed", halted=True, cause=cause, no_slots=True)
        if self.asks_at is not None:
            return AskedAgain(at=at) if at >= self.asks_at else None
        held = self._held()
        if not held or at - self.last_grant < hold_seconds(self.spec.run_id, self.turn):
            return None
        return Yielded(at=at, turn=self.turn, held=held, seconds=pause_seconds(self.spec.run_id, self.turn))

    def deadlines(self) -> list[float]:
        """Return when something may be decided, if no agent comes."""
        deadlines = [self.began + self.spec.start_timeout, self.last_arrival + ELASTIC]
        if self.asks_at is not None:
            deadlines.append(self.asks_at)
        elif self._held():
            deadlines.append(self.last_grant + hold_seconds(self.spec.run_id, self.turn))
        return deadlines

    def _held(self) -> int:
        """Return how many slots have a place, if these are too few, and others may want some of them; else 0. A slot
        whose agent is still starting has its place."""
        present = sum(slot < self.spec.shared_slots for slot in self.places)
        waiting = min(self.waiting, self.spec.shared_slots - present)
        held = self.spec.slots - waiting
        return held if waiting < self.spec.shared_slots and held < self.spec.least else 0

"""Gangs: k workers that train one model together are one slot, below the scheduler.

A worker that joins is a slot of its own. `regroup` makes a *gang* of k idle ones, of one host first: a slot of k
members, which has the number of the first (rank 0). Scheduler, policy and leases go on seeing slots. Training units go
to gangs; a worker that completes none takes validations and folds meanwhile, and rests once the others that it needs
are there and busy. Formation is a decision, `Formed`, so the journal has it.

All members work on a training unit, and the first one answers for it; validations and folds are the first one's alone.
When a member is lost its gang is dissolved: the unit is given out again, those who are left are told to give it up
(`GiveUp`) and are free at once, with their processes. What the first member has in memory stays there; what another
one had there before it joined the gang is released.

Where the user allows smaller gangs, and the engine has too few workers for one, they have fewer members from then on
(`Shrunk`). The driver finds that out, as it starts workers; gangs never grow by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Formed, GiveUp, Release
from hopyard.core.runs.records import SlotRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.spec import with_members


class Gangs:
    """The gangs of a run. Owner: `Machine`."""

    def __init__(self, run: RunRecord) -> None:
        self.formed = 0
        """How many were formed since the driver began."""
        self._run = run
        self._followers: dict[int, tuple[SlotRecord, int]] = {}
        """Worker of a rank > 0 → (its record, for when it is free again; the slot of its gang)."""

    def __contains__(self, worker: int) -> bool:
        """Whether the worker is there, alone or in a gang."""
        return worker in self._run.slots or worker in self._followers

    def __len__(self) -> int:
        """How many workers are there."""
        return len(self._run.slots) + len(self._followers)

    def slot_of(self, worker: int) -> SlotRecord | None:
        """Return the slot that the worker is, or is a member of."""
        _, number = self._followers.get(worker, (None, worker))
        return self._run.slots.get(number)

    def record(self, worker: int) -> SlotRecord | None:
        """Return what is known of the worker itself."""
        record, _ = self._followers.get(worker, (None, worker))
        return record or self._run.slots.get(worker)

    def regroup(self) -> None:
        """Form the gangs that can be formed now. Workers that wait for busy ones to form a gang rest meanwhile."""
        run, size = self._run, self._run.spec.members
        if size == 1:
            return
        slots = run.slots
        free = [slot for slot in slots.values() if not slot.members]
        apart = run.places.settled
        groups = grouped([slot for slot in free if not slot.busy], size, apart)
        grown = {member for members in groups for member in members}
        later = grouped([slot for slot in free if slot.id not in grown], size, apart)
        waiting = {member for members in later for member in members if not slots[member].busy}
        run.scheduler.withhold(waiting)
        for members in groups:
            formed = Formed(at=run.at, slot=members[0], members=members)
            self.form(formed)
            run.commands.append(formed)

    def form(self, line: Formed) -> None:
        """Make one slot of the members."""
        self.formed += 1
        run, first = self._run, line.members[0]
        for member in line.members[1:]:
            record = run.slots.pop(member)
            self._followers[member] = record, first
            run.scheduler.remove(record)
            self._release_memory(record)
        slot = run.slots[first]
        slot.members, slot.trains, slot.group = line.members, True, 0
        apart = any(self._followers[member][0].host != slot.host for member in line.members[1:])
        run.scheduler.set_home(slot, None if apart else slot.host)
        if not apart:
            run.places.join("train", slot.host)
            run.scheduler.offer_again()
        run.scheduler.set_idle(slot)
        run.search.changed = True  # one more slot trains, for which a trial may be promoted

    def _release_memory(self, record: SlotRecord) -> None:
        """Let a worker that becomes a follower drop the States in its memory: they count as gone."""
        run = self._run
        for number in sorted(record.memory_only):
            trial = run.trials[number]
            for state in trial.states.values():
                if state.maker == record.id and state.memory_key:
                    run.commands.append(Release(record.id, state.memory_key))
                    state.memory_key = ""
            lifecycle.repair(run, trial)
        record.memory_only.clear()
        record.trial = record.step = -1

    def give_up(self, slot: SlotRecord, lease: int, without: int = -1) -> None:
        """Tell the members of a gang, but for one that is gone, to give up the unit of this lease, which counts no
        longer. Their process group ends with it."""
        members = tuple([member for member in slot.members if member != without])
        self._run.commands.append(GiveUp(members, lease, slot.group))
        slot.group = 0

    def dissolve(self, slot: SlotRecord, gone: int) -> None:
        """Dissolve the gang of a worker that is gone; the others are free and idle, but for what the first member does
        alone."""
        run = self._run
        if slot.together:
            self.give_up(slot, slot.busy, gone)
        followers, slot.members, slot.trains, slot.group = slot.members[1:], (), False, 0
        if slot.home is not None:
            run.places.leave("train", slot.host, run.at)
        run.scheduler.set_home(slot, slot.host)
        for member in followers:
            record, _ = self._followers.pop(member)
            if member != gone:
                run.slots[member] = record
                record.used, record.idle_since = record.used or slot.used, run.at
                run.scheduler.set_idle(record)

    def resize(self, members: int) -> None:
        """Let gangs have so many members from now on. Those that are there stay as they are."""
        run = self._run
        run.spec = run.search.spec = run.scheduler.spec = with_members(run.spec, members)
        run.scheduler.withhold(set())
        for slot in run.slots.values() if members == 1 else ():
            if not slot.trains:
                run.places.join("train", slot.host)
            slot.trains = run.search.changed = True
            if not slot.busy:
                run.scheduler.set_idle(slot)

    def clear(self) -> None:
        """Drop all, as all workers are gone."""
        self.formed = 0
        self._followers.clear()


def grouped(free: Iterable[SlotRecord], size: int, apart: bool = True) -> list[tuple[int, ...]]:
    """Return groups of `size` out of free workers: of one host where there are enough of them, else (if `apart`) of as
    few as possible. Those with States in their memory come first, as the first member keeps its own."""
    hosts: dict[str, list[int]] = {}
    for slot in sorted(free, key=lambda slot: (not slot.memory_only, slot.id)):
        hosts.setdefault(slot.host, []).append(slot.id)
    groups = []
    for workers in hosts.values():
        while len(workers) >= size:
            groups.append(tuple(workers[:size]))
            del workers[:size]
    rest = [worker for workers in sorted(hosts.values(), key=len, reverse=True) for worker in workers]
    while apart and len(rest) >= size:
        groups.append(tuple(rest[:size]))
        del rest[:size]
    return groups

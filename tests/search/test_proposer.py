"""How many trials are proposed at a time."""

import pytest

from hopyard.core.runs.events import Began, Checked, Done, Granted, Joined
from hopyard.core.runs.machine import Machine
from hopyard.search.listed import Listed
from hopyard.search.proposer import Proposer
from hopyard.spec import Gang, Part, RunSpec, packed
from hopyard.stopping import ASHA

TRIALS = 40


class Searched:
    """A machine that trains trials of one partition, fed by a proposer as the driver's loop feeds it."""

    def __init__(self, workers, joined, members):
        gang = {"gang": Gang(members)} if members > 1 else {}
        spec = RunSpec(epochs=9, partitions=1, validation=0, trials=TRIALS, metric="loss", stop=ASHA(), **gang)
        self.machine = Machine(spec)
        self.proposer = Proposer(self.machine, Listed([{}] * TRIALS), workers)
        self.promoted = False
        self.give(Began(spec=spec))
        for slot in range(joined):
            self.give(Joined(slot=slot, host="h", pid=slot))
        self.give(Checked(slot=0, trial=0, faults=(), names=("loss",)))

    def give(self, event):
        waiting = [event]
        while waiting:
            for each in waiting:
                self.promoted |= any(isinstance(command, Granted) for command in self.machine.handle(each))
            waiting = self.proposer.events(0.0)

    def work(self):
        """Each slot ends the unit that it has."""
        for slot in list(self.machine.slots.values()):
            if slot.busy > 0:
                _, unit = self.machine.leases.standing()[slot.busy]
                parts = tuple(Part(each, packed({"loss": (float(unit.trial), 1.0)}), 1.0) for each in unit.partitions)
                self.give(Done(slot=slot.id, lease=unit.lease, parts=parts, seconds=1.0, memory_key=f"m{unit.lease}"))


@pytest.mark.parametrize(("workers", "joined", "members"), [(4, 4, 1), (4, 3, 1), (4, 4, 2), (4, 4, 4)])
def test_trials_are_promoted_before_all_are_proposed(workers, joined, members):
    """Bug: proposals kept places for workers that were not there, or that a gang has in one, and none was promoted."""
    search = Searched(workers, joined, members)
    while not search.promoted:
        search.work()
    assert len(search.machine.trials) < TRIALS / 2

"""Runs that share the places of one cluster, in virtual time: the real machines, driven as their drivers would."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from hopyard.core.runs.events import AskAgain, Began, Command, Event, Finished, Joined, Requested, Yielded
from hopyard.sim.world import World, lengths
from hopyard.spec import Gang, RunSpec

RELEASE = 2.0
"""Most seconds until a place that was given back is free for others."""
PLACE = 1.0
"""Most seconds until a place is looked for that was requested."""
START = 8.0
"""Most seconds that a worker needs in its place until it joins: processes and imports differ."""


class Cluster:
    """Places that runs compete for, a clock, and all that happens.

    Args:
        places: how many.
        seed: of all times.
    """

    def __init__(self, places: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = 0.0
        self.free = places
        self.waiting: deque[tuple[Tenant, int]] = deque()
        """(run, slot) that have no place, in the order in which they were requested."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen after so many seconds."""
        self._count += 1
        heappush(self._queue, (self.clock + seconds, self._count, happen))

    def run(self, until: float = 1e5) -> None:
        """Run until nothing more happens, or for so many seconds."""
        while self._queue and self.clock < until:
            self.clock, _, happen = heappop(self._queue)
            happen()

    def release(self) -> None:
        """Free one place, after a while."""

        def freed() -> None:
            self.free += 1
            self.assign()

        self.later(self.random.uniform(0, RELEASE), freed)

    def assign(self) -> None:
        """Give a free place to one that waits, any of them: pods and tasks are not placed in order."""
        if self.free and self.waiting:
            self.free -= 1
            index = self.random.randrange(len(self.waiting))
            tenant, slot = self.waiting[index]
            del self.waiting[index]
            tenant.place(slot)


class Tenant(World):
    """One run on the cluster.

    Args:
        cluster: has the places.
        name: its own, as the mark of a driver.
        workers: of its engine.
        gang: members of a gang.
        seconds: of one partition.
        begins: when it begins.
        trials: how many.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        workers: int = 3,
        gang: int = 3,
        seconds: float = 5.0,
        begins: float = 0.0,
        trials: int = 2,
    ) -> None:
        spec = RunSpec(epochs=2, partitions=2, validation=1, trials=trials, metric="val_loss", group=1, gang=Gang(gang))
        times = lengths(trials, 0.0, 0.1, cluster.random.randrange(1 << 30))
        super().__init__(spec, workers, lambda unit, partition: seconds * times(unit, partition))
        self.cluster, self.name = cluster, name
        self.held: set[int] = set()
        """Slots that have a place."""
        self.starting: set[int] = set()
        self.given_back = 0
        self.turns = 0
        self.ended_at = float("inf")
        self._next_slot = 0
        cluster.later(begins, self.begin)

    def begin(self) -> None:
        """Begin as a driver does: with all workers requested."""
        self.clock = self.cluster.clock
        self.feed(Began(at=self.clock, spec=self.spec, mark=self.name))
        self._propose()
        self.request(self.slots)

    def request(self, count: int) -> None:
        """Ask the cluster for so many places."""
        for _ in range(count):
            self.cluster.waiting.append((self, self._next_slot))
            self._host_of[self._next_slot] = 0
            self._next_slot += 1
            self.cluster.later(self.cluster.random.uniform(0, PLACE), self.cluster.assign)
        self._tell()

    def place(self, slot: int) -> None:
        """Let a worker start in the place that it got."""
        self.held.add(slot)
        self.starting.add(slot)

        def joined() -> None:
            if slot in self.starting:
                self.starting.discard(slot)
                self._event(Joined(at=self.cluster.clock, slot=slot, host="sim", pid=slot))

        self.cluster.later(self.cluster.random.uniform(0.2, START), joined)
        self.cluster.later(0.0, self._tell)

    def later(self, seconds: float, event: Event) -> None:
        """Let an event happen on the cluster's clock."""
        self.cluster.later(seconds, lambda: self._event(event))

    def obey(self, command: Command) -> None:
        """Answer a command, those too that concern places."""
        super().obey(command)
        if isinstance(command, Yielded):
            waiting = [entry for entry in self.cluster.waiting if entry[0] is self]
            for entry in waiting:
                self.cluster.waiting.remove(entry)
            left = self.starting.union(command.slots)
            assert left <= self.held
            self.given_back = len(waiting) + len(left)
            self.turns += 1
            self._leave(left)
        elif isinstance(command, AskAgain):
            self.cluster.later(0.0, lambda: self.request(self.given_back))

    def feed(self, event: Event) -> None:
        """Handle an event. At its end, a run gives all its places back."""
        super().feed(event)
        if isinstance(event, Finished):
            self.ended_at = self.cluster.clock
            self._leave(set(self.held))

    def _leave(self, slots: set[int]) -> None:
        self.held -= slots
        self.starting -= slots
        for _ in slots:
            self.cluster.release()

    def _tell(self) -> None:
        """Tell the machine which workers are awaited, if it does not know."""
        unplaced = sum(tenant is self for tenant, _ in self.cluster.waiting)
        if not self.machine.ended and self.machine.holding.requested != (unplaced, len(self.starting)):
            self._event(Requested(at=self.cluster.clock, unplaced=unplaced, starting=len(self.starting)))

    def _event(self, event: Event) -> None:
        self.clock = self.cluster.clock
        if not self.machine.ended:
            self.happen(event)

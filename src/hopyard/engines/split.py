"""Agents of one run in two places: most where another engine puts them, those of the last few slots beside the driver.

The latter need no slot of the cluster: parameter servers, for example, do little but wait for the network.
"""

from __future__ import annotations

from collections.abc import Collection

from hopyard.engines.supervised import SupervisedAgents
from hopyard.errors import ResourceError
from hopyard.ports.engines import Agents


class Split:
    """The agents of both places.

    Args:
        cluster: takes all slots but these.
        local: takes these.
        slots: numbers of the slots beside the driver.
    """

    def __init__(self, cluster: SupervisedAgents, local: Agents, slots: range) -> None:
        self._cluster, self._local, self._slots = cluster, local, slots

    def _agents_of(self, slot: int) -> Agents:
        return self._local if slot in self._slots else self._cluster

    def start(self, slot: int) -> None:
        """Begin to bring up an agent."""
        self._agents_of(slot).start(slot)

    def end(self, slot: int) -> None:
        """End an agent."""
        self._agents_of(slot).end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents of both that ended since the last call."""
        lost = self._local.lost()
        try:
            return [*lost, *self._cluster.lost()]
        except ResourceError:  # the cluster raises it again
            if not lost:
                raise
            return lost

    def watch(self) -> list[int]:
        """Return descriptors that are readable when an agent has ended."""
        return [*self._local.watch(), *self._cluster.watch()]

    def waits(self, slot: int) -> bool:
        """Whether there is no place for the agent of this slot yet."""
        return self._agents_of(slot).waits(slot)

    def device(self, slot: int) -> str:
        """ "cpu" or "cuda"."""
        return self._agents_of(slot).device(slot)

    def waiting(self) -> int:
        """Return how many slots wait for a place in the cluster."""
        return self._cluster.waiting()

    def give_back(self, slots: Collection[int]) -> None:
        """End these agents, and leave the places in the cluster to others."""
        for slot in slots:
            if slot in self._slots:
                self._local.end(slot)
        self._cluster.give_back([slot for slot in slots if slot not in self._slots])

    def release_cores(self, slots: Collection[int]) -> None:
        """Release the cores that the slots of the cluster hold there."""
        self._cluster.release_cores([slot for slot in slots if slot not in self._slots])

    def reacquire_cores(self) -> None:
        """Ask to hold the cores again."""
        self._cluster.reacquire_cores()

    def close(self) -> None:
        """End all agents."""
        try:
            self._local.close()
        finally:
            self._cluster.close()

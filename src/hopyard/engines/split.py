"""Agents of one run in two places: most where another engine puts them, the last few slots beside the driver.

For those that need no place in the cluster: parameter servers, which do little but wait for the network.
"""

from __future__ import annotations

from collections.abc import Collection

from hopyard.errors import ResourceError
from hopyard.ports import Agents, ReleasesCores


class Split:
    """The agents of both.

    Args:
        far: takes all slots but these.
        near: takes these.
        slots: their numbers.
    """

    def __init__(self, far: ReleasesCores, near: Agents, slots: range) -> None:
        self._far, self._near, self._slots = far, near, slots

    def _of(self, slot: int) -> Agents:
        return self._near if slot in self._slots else self._far

    def start(self, slot: int) -> None:
        """Begin to bring up an agent."""
        self._of(slot).start(slot)

    def end(self, slot: int) -> None:
        """End an agent."""
        self._of(slot).end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Those that ended since last asked, of both."""
        lost = self._near.lost()
        try:
            return [*lost, *self._far.lost()]
        except ResourceError:  # it says so again
            if not lost:
                raise
            return lost

    def watch(self) -> list[int]:
        """Readable when an agent ended."""
        return [*self._near.watch(), *self._far.watch()]

    def waits(self, slot: int) -> bool:
        """Whether there is no place for it yet."""
        return self._of(slot).waits(slot)

    def device(self, slot: int) -> str:
        """ "cpu" or "cuda"."""
        return self._of(slot).device(slot)

    def release_cores(self, slots: Collection[int]) -> None:
        """Free what those of the cluster hold there."""
        self._far.release_cores([slot for slot in slots if slot not in self._slots])

    def reacquire_cores(self) -> None:
        """Ask to hold it again."""
        self._far.reacquire_cores()

    def close(self) -> None:
        """End all."""
        try:
            self._near.close()
        finally:
            self._far.close()

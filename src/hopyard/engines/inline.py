"""One slot in this very process: for notebooks, debuggers and tests. A peer of the other engines, not a mock: the same
machine, journal, worker and States, only without a process and a socket between them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hopyard.errors import SpecError
from hopyard.ports import Agents, LaunchInfo
from hopyard.system.network import LOOPBACK


@dataclass(frozen=True, slots=True)
class Inline:
    """Units run in the calling process, one after the other.

    Args:
        threads: intra-op threads of the framework.
    """

    threads: int = 1
    name: str = field(default="inline", init=False)
    workers: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise SpecError(f"Inline(threads={self.threads!r}): a whole number of at least 1 is needed")

    @property
    def address(self) -> tuple[str, int]:
        """Nobody dials."""
        return LOOPBACK, 0

    @property
    def apart(self) -> bool:
        """Never."""
        return False

    @property
    def in_process(self) -> bool:
        """They are nothing else."""
        return True

    def open(self, launch: LaunchInfo) -> Agents:
        """The agents of one."""
        return Alone()


class Alone:
    """There is nothing to start, to end or to lose."""

    def start(self, slot: int) -> None:
        """It runs already."""

    def end(self, slot: int) -> None:
        """It ends with the process."""

    def lost(self) -> list[tuple[int, str]]:
        """Never."""
        return []

    def watch(self) -> list[int]:
        """Nothing to watch."""
        return []

    def waits(self, slot: int) -> bool:
        """Never."""
        return False

    def device(self, slot: int) -> str:
        """Inline runs on the CPU."""
        return "cpu"

    def release_cores(self, slots: Collection[int]) -> None:
        """There are no books here."""

    def reacquire_cores(self) -> None:
        """There are no books here."""

    def close(self) -> None:
        """Nothing is left."""

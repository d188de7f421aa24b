"""An agent's progress, for its companion: a page of memory that both share, since one was forked from the other.

The agent writes, the companion reads, nobody waits: each field is one aligned word. So the companion can read it while
the agent computes in C and lets no other thread of its interpreter run.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from hopyard.core.liveness import PHASES

_ADVANCED, _PHASE, _TAKEN, _COMPANION, _LENGTH = range(5)
"""Fields of the page, in words of 8 bytes."""
_PATH = 512
"""Offset of the path of the shared memory."""
_INDEX = {name: number for number, name in enumerate(PHASES)}


class Progress:
    """The shared page. Owner: the agent."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("Q")
        self.enter("build")  # includes all that comes before the first unit: imports, and the recipe

    def advance(self, count: int = 1) -> None:
        """Count batches that were finished, or bytes that were read."""
        self._words[_ADVANCED] = (self._words[_ADVANCED] + count) & 0xFFFFFFFFFFFFFFFF

    def enter(self, phase: str) -> None:
        """Set the phase of the agent; the change counts as progress, even when the phase has changed back by the
        time of the next look."""
        self._words[_PHASE] = _INDEX[phase]
        self.advance()

    @property
    def advanced(self) -> int:
        """The count so far."""
        return self._words[_ADVANCED]

    @property
    def phase(self) -> int:
        """Index into `core.liveness.PHASES`."""
        return self._words[_PHASE]

    @property
    def taken(self) -> int:
        """The highest number of a message from the driver that the agent has received."""
        return self._words[_TAKEN]

    @taken.setter
    def taken(self, number: int) -> None:
        self._words[_TAKEN] = number

    @property
    def companion(self) -> int:
        """Process id of the companion; 0: there is none."""
        return self._words[_COMPANION]

    @companion.setter
    def companion(self, pid: int) -> None:
        self._words[_COMPANION] = pid

    @property
    def folder(self) -> Path | None:
        """The run's folder in shared memory, which the last process of the run removes."""
        length = self._words[_LENGTH]
        return Path(bytes(self._page[_PATH : _PATH + length]).decode()) if length else None

    @folder.setter
    def folder(self, path: Path) -> None:
        data = str(path).encode()
        if len(data) <= mmap.PAGESIZE - _PATH:  # else the next start of a run removes it
            self._page[_PATH : _PATH + len(data)] = data
            self._words[_LENGTH] = len(data)

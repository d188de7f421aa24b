"""The output of agents, in one file for each slot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)


class SlotLogs:
    """Owner of the open files.

    Args:
        log_of: slot → its file.
    """

    def __init__(self, log_of: Callable[[int], Path]) -> None:
        self._log_of = log_of
        self._files: dict[int, IO[bytes]] = {}

    def write(self, slot: int, text: str, keep_open: bool) -> None:
        """Add text to the log of a slot. `keep_open`: its agent is there, and will print more."""
        try:
            if not keep_open:
                with self._log_of(slot).open("ab") as ended:
                    ended.write(text.encode())
                return
            file = self._files.get(slot)
            if file is None:
                path = self._log_of(slot)
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._files[slot] = path.open("ab", buffering=0)
            file.write(text.encode())
        except OSError as error:  # the journal says so too, if the disk is full; training need not end for a log
            log.warning("slot %d: its log cannot be written: %s", slot, error)

    def close(self, slot: int) -> None:
        """Close the file of a slot."""
        file = self._files.pop(slot, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close all files."""
        for slot in list(self._files):
            self.close(slot)

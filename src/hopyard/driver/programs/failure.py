"""What a failed program raises: its cause, and the end of the log of the task that failed."""

from __future__ import annotations

from pathlib import Path

from hopyard.core.programs.machine import ProgramMachine
from hopyard.errors import ProgramFailed, ResourceError
from hopyard.store.layout import Layout

TAIL = 40
"""Lines of a task's log that an error shows."""
TAIL_BYTES = 1 << 16


def failure(machine: ProgramMachine, layout: Layout) -> ProgramFailed | ResourceError:
    """What a failed program raises."""
    if machine.no_slots:
        return ResourceError(f"{layout.root}: {machine.cause}")
    book = machine.tasks.get(machine.failed_slot)
    if book is None:
        words, path = f"{layout.root}: {machine.cause}", layout.log(max(machine.failed_slot, 0))
        return ProgramFailed(words if machine.failed_slot < 0 else f"{words}\n  log {path}{_last_lines(path)}")
    path = layout.log(book.task.slot)
    place = machine.known.get(book.task.slot)
    host = "" if place is None else place.host
    words = f"{machine.cause}\n  on host {host}, log {path}"
    if machine.restart:
        words += f", after {machine.restart} restart(s)"
    if "Traceback" not in machine.cause:
        words += _last_lines(path)
    return ProgramFailed(words, book.task.name, host, str(path))


def _last_lines(path: Path) -> str:
    return "".join(f"\n  | {line[:500]}" for line in read_log(path, TAIL_BYTES).splitlines()[-TAIL:])


def read_log(path: Path, last: int | None = None) -> str:
    """A log, or its last bytes; empty where there is none."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, path.stat().st_size - last))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

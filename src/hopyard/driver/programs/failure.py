"""What a failed program raises: its cause, and the end of the log of the task that failed."""

from __future__ import annotations

from pathlib import Path

from hopyard.core.programs.status import ProgramStatus
from hopyard.errors import ProgramFailed, ResourceError
from hopyard.store.layout import Layout

TAIL = 40
"""Lines of a task's log that an error shows."""
TAIL_BYTES = 1 << 16


def failure(status: ProgramStatus, layout: Layout) -> ProgramFailed | ResourceError:
    """Return the error that a failed program raises."""
    if status.no_slots:
        return ResourceError(f"{layout.root}: {status.cause}")
    path = layout.log(max(status.failed_slot, 0))
    failed = next((task for task in status.tasks if task.task.slot == status.failed_slot), None)
    if failed is None:
        text = f"{layout.root}: {status.cause}"
        return ProgramFailed(text if status.failed_slot < 0 else f"{text}\n  log {path}{_last_lines(path)}")
    text = f"{status.cause}\n  on host {failed.host}, log {path}"
    if status.restart:
        text += f", after {status.restart} restart(s)"
    if "Traceback" not in status.cause:
        text += _last_lines(path)
    return ProgramFailed(text, failed.task.name, failed.host, str(path))


def _last_lines(path: Path) -> str:
    return "".join(f"\n  | {line[:500]}" for line in read_log(path, TAIL_BYTES).splitlines()[-TAIL:])


def read_log(path: Path, last: int | None = None) -> str:
    """Return a log, or its last bytes; empty where there is none."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, path.stat().st_size - last))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

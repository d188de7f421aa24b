"""What a failed program raises: its cause, and the end of the log of the task that failed."""

from __future__ import annotations

from hopyard.core.programs.status import ProgramStatus
from hopyard.driver.logs import last_lines
from hopyard.errors import ProgramFailed, ResourceError
from hopyard.store.layout import Layout

TAIL = 40
"""Lines of a task's log that an error shows."""
PREFIX = "  | "


def failure(status: ProgramStatus, layout: Layout) -> ProgramFailed | ResourceError:
    """Return the error that a failed program raises."""
    if status.no_slots:
        return ResourceError(f"{layout.root}: {status.cause}")
    path = layout.log(max(status.failed_slot, 0))
    failed = next((task for task in status.tasks if task.task.slot == status.failed_slot), None)
    if failed is None:
        text = f"{layout.root}: {status.cause}"
        return ProgramFailed(
            text if status.failed_slot < 0 else f"{text}\n  log {path}{last_lines(path, TAIL, PREFIX)}"
        )
    text = f"{status.cause}\n  on host {failed.host}, log {path}"
    if status.restart:
        text += f", after {status.restart} restart(s)"
    if "Traceback" not in status.cause:
        text += last_lines(path, TAIL, PREFIX)
    return ProgramFailed(text, failed.task.name, failed.host, str(path))

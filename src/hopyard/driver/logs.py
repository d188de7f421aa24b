"""The logs of agents and tasks: whole, or their last lines for an error."""

from __future__ import annotations

from pathlib import Path

from hopyard.system.files import open_regular
from hopyard.text import one_line

TAIL_BYTES = 1 << 16
"""An error looks for a log's last lines in so many bytes at its end."""


def read_log(path: Path, last: int | None = None) -> str:
    """Return a log, or its last bytes; empty where there is none, or none that can be read."""
    try:
        with open_regular(path) as file:
            if last is not None:
                file.seek(max(0, path.stat().st_size - last))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(path: Path, count: int, prefix: str) -> str:
    """Return the last lines of a log, each on a line of its own after `prefix`."""
    lines = read_log(path, TAIL_BYTES).strip().splitlines()[-count:]
    return "".join(f"\n{prefix}{one_line(line[:500])}" for line in lines)

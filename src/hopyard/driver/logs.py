"""The logs of agents and tasks: whole, their last lines for an error, or line by line as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hopyard.system.files import open_regular
from hopyard.text import escaped, one_line

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


CHUNK_BYTES = 1 << 20
"""Bytes of one log that are shown before it is another log's turn."""


class LogStream:
    """Reads logs line by line while they are written. Owns how far each was read.

    Args:
        offsets: log → the byte from which on it is read; others from their beginning.
        bars: whether to show each state of a progress bar, where it is read in time, or the last one alone.
    """

    def __init__(self, offsets: Mapping[Path, int], bars: bool = False) -> None:
        self._read = dict(offsets)
        self._bars = bars

    def lines(self, logs: Iterable[tuple[str, Path]], is_last: bool) -> Iterator[tuple[str, str]]:
        """Yield what was added to the logs, as (name, line): escaped, without its end.

        Args:
            logs: (name, log), of logs that may not be there yet.
            is_last: whether nothing more comes, so that a line without an end is whole.
        """
        for name, path in logs:
            for line in self._lines(path, is_last):
                yield name, escaped(line)

    def _lines(self, path: Path, is_last: bool) -> Iterator[str]:
        while data := self._chunk(path):
            end = data.rfind(b"\n") + 1
            if self._bars and not is_last:  # the last byte may be the first half of a line's end
                end = max(end, data.rfind(b"\r", 0, len(data) - 1) + 1)
            if not end:  # one line, that is not whole yet, or longer than a chunk
                if len(data) < CHUNK_BYTES and not is_last:
                    return
                end = len(data)
            self._read[path] = self._read.get(path, 0) + end
            for line in data[:end].decode(errors="replace").removesuffix("\n").split("\n"):
                yield line.rstrip("\r").rpartition("\r")[2]
            if len(data) < CHUNK_BYTES and not is_last:
                return

    def _chunk(self, path: Path) -> bytes:
        try:
            with open_regular(path) as file:
                file.seek(self._read.get(path, 0))
                return file.read(CHUNK_BYTES)
        except OSError:  # not written yet
            return b""

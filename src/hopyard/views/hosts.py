"""What each host of a run holds and has moved: one record a host, folded from the lines of a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopyard.core.facts import Lost
from hopyard.core.runs.events import (
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Failed,
    Formed,
    Joined,
    Left,
    Line,
    Resumed,
)
from hopyard.views import words

Sizes = Mapping[str, Sequence[int]]
"""Kind → bytes of each partition; empty: unknown."""
MOST = 100
"""The most hosts that a table has."""


@dataclass(slots=True)
class HostRecord:
    """What one host holds and has moved, over all drivers of the run."""

    workers: int = 0
    """The most workers at a time."""
    fetched_bytes: int = 0
    """Rows moved: bytes of rows that its workers have brought there."""
    states: int = 0
    """States that its workers have stored."""
    state_bytes: int = 0
    hop_bytes: int = 0
    """Bytes of States that its workers have taken over, from this host or another."""
    exchanged_bytes: int = 0
    """Bytes that its members of gangs have sent to others."""
    peak_bytes: int = 0
    """The most memory of one worker's process; 0: unknown, as with `hy.Inline`."""
    stored: dict[str, int] = field(default_factory=dict)
    """Kind → its partitions there, a bit each: those that were there when a worker joined, and those that a worker has
    gone over. Evicted partitions stay counted; those of the driver's own entry do not count."""
    entry: bool = False
    """Whether it sees the driver's own entry of the data cache."""

    @property
    def partitions(self) -> int:
        """The number of partitions that it stores."""
        return sum(bits.bit_count() for bits in self.stored.values())

    def rows_bytes(self, sizes: Sizes) -> int | None:
        """Return the bytes of the rows that it stores; None where the sizes of partitions are unknown."""
        if not sizes:
            return None
        return sum(
            size for kind, bits in self.stored.items() for n, size in enumerate(sizes.get(kind, ())) if bits >> n & 1
        )


class HostRecords:
    """The records of all hosts by name. It owns its state and changes it in `see` only."""

    def __init__(self) -> None:
        self.records: dict[str, HostRecord] = {}
        self._hosts: dict[int, HostRecord] = {}
        """Slot → its host, also when the slot is gone: what it has stored may be told later."""
        self._present: dict[int, HostRecord] = {}
        self._workers: Counter[int] = Counter()
        """`id` of a host → its workers now."""
        self._gangs: dict[int, tuple[int, ...]] = {}
        """Worker → the members of its gang, by rank."""
        self._units: dict[int, Dispatch | Check] = {}
        """Slot → what it works on."""

    def see(self, line: Line) -> None:
        """Add one line. O(1), but for a worker that joins a host with rows."""
        if (change := _CHANGES.get(type(line))) is not None:
            change(self, line)

    def _joined(self, line: Joined) -> None:
        host = self._hosts[line.slot] = self.records.setdefault(line.host, HostRecord())
        if line.slot not in self._present:
            self._workers[id(host)] += 1
        self._present[line.slot] = host
        host.workers = max(host.workers, self._workers[id(host)])
        host.entry = line.entry
        for each in line.rows:
            _add(host, each.kind, range(each.first, each.end))

    def _gone(self, line: Lost | Left) -> None:
        if (host := self._present.pop(line.slot, None)) is not None:
            self._workers[id(host)] -= 1
        self._units.pop(line.slot, None)
        members = self._gangs.get(line.slot, (line.slot,))
        for member in members:
            self._gangs.pop(member, None)
        begun = self._units.get(members[0])
        if isinstance(begun, Dispatch) and begun.unit.kind == "train":
            del self._units[members[0]]

    def _resumed(self, line: Resumed) -> None:
        self._present, self._gangs, self._units = {}, {}, {}
        self._workers.clear()

    def _formed(self, line: Formed) -> None:
        self._gangs |= dict.fromkeys(line.members, line.members)

    def _begun(self, line: Dispatch | Check) -> None:
        self._units[line.slot] = line

    def _checked(self, line: Checked) -> None:
        check, host = self._units.pop(line.slot, None), self._hosts.get(line.slot)
        if host is None:
            return
        _cost(host, line.fetched_bytes, line.peak_bytes)
        if isinstance(check, Check) and not line.faults:
            train, validate = check.partitions
            _add(host, "train", [train])
            if any(name.startswith("val_") for name in line.names):
                _add(host, "validate", [validate])

    def _done(self, line: Done) -> None:
        begun = self._units.get(line.slot)
        unit = begun.unit if isinstance(begun, Dispatch) and begun.unit.lease == line.lease else None
        members: tuple[int, ...] = (line.slot,)
        if unit is not None:
            del self._units[line.slot]
            if unit.kind == "train":
                members = self._gangs.get(line.slot, members)
        costs = [(line.fetched_bytes, line.peak_bytes), *line.others]
        for rank, member in enumerate(members):
            host = self._hosts.get(member)
            if host is None:
                continue
            host.hop_bytes += 0 if rank else line.hop_bytes
            host.exchanged_bytes += line.exchanged_bytes
            if rank < len(costs):
                _cost(host, *costs[rank])
            if unit is not None and unit.kind != "fold":
                _add(host, unit.kind, unit.partitions)

    def _failed(self, line: Failed) -> None:
        self._units.pop(self._gangs.get(line.slot, (line.slot,))[0], None)

    def _durable(self, line: Durable) -> None:
        host = self._hosts.get(line.slot)
        if host is not None:
            host.states += 1
            host.state_bytes += line.bytes


def _cost(host: HostRecord, fetched: int, peak: int) -> None:
    host.fetched_bytes += fetched
    host.peak_bytes = max(host.peak_bytes, peak)


def _add(host: HostRecord, kind: str, partitions: Iterable[int]) -> None:
    if host.entry:
        return
    bits = host.stored.get(kind, 0)
    for partition in partitions:
        bits |= 1 << partition
    host.stored[kind] = bits


_CHANGES: dict[type[Any], Callable[[HostRecords, Any], None]] = {
    Joined: HostRecords._joined,
    Lost: HostRecords._gone,
    Left: HostRecords._gone,
    Resumed: HostRecords._resumed,
    Formed: HostRecords._formed,
    Dispatch: HostRecords._begun,
    Check: HostRecords._begun,
    Checked: HostRecords._checked,
    Done: HostRecords._done,
    Failed: HostRecords._failed,
    Durable: HostRecords._durable,
}


def plain(hosts: HostRecords, sizes: Sizes, most: int | None = None) -> dict[str, dict[str, int | None]]:
    """Return host → its record, as plain values; of the first `most` by name, or all."""
    return {
        name: {
            "workers": host.workers,
            "partitions": host.partitions,
            "rows_bytes": host.rows_bytes(sizes),
            "fetched_bytes": host.fetched_bytes,
            "states": host.states,
            "state_bytes": host.state_bytes,
            "hop_bytes": host.hop_bytes,
            "exchanged_bytes": host.exchanged_bytes,
            "peak_bytes": host.peak_bytes,
        }
        for name, host in sorted(hosts.records.items())[:most]
    }


def table(hosts: HostRecords, sizes: Sizes, most: int = MOST) -> list[str]:
    """Return a line of headings and one line a host, in columns. Columns without any number are left out."""
    heads = ("host", "workers", "partitions", "rows", "moved", "States", "stored", "hopped", "exchanged", "peak")
    records = plain(hosts, sizes, most)
    columns = [list(records)]
    columns += [[f"{record[key]:,}" for record in records.values()] for key in ("workers", "partitions")]
    for key in ("rows_bytes", "fetched_bytes", "states", "state_bytes", "hop_bytes", "exchanged_bytes", "peak_bytes"):
        shown: Callable[[int], str] = "{:,}".format if key == "states" else words.size
        counts = [record[key] or 0 for record in records.values()]
        columns.append([shown(count) if count else "–" for count in counts] if any(counts) else [])
    lines = [""] * (1 + len(columns[0]))
    for number, (head, column) in enumerate(zip(heads, columns, strict=True)):
        cells = [head, *column]
        width = max(map(len, cells))
        if column:
            lines = [
                f"{line}  {cell.rjust(width)}" if number else cell.ljust(width)
                for line, cell in zip(lines, cells, strict=True)
            ]
    if (more := len(hosts.records) - len(records)) > 0:
        lines.append(f"and {words.count(more, 'more host')}")
    return lines

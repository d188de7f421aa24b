"""What each host of a run holds and has moved: a record for each host, which `Chart` fills in, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
    present: int = 0
    """Its workers now."""
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

    def add_rows(self, kind: str, partitions: Iterable[int]) -> None:
        """Count partitions as stored there."""
        if self.entry:
            return
        bits = self.stored.get(kind, 0)
        for partition in partitions:
            bits |= 1 << partition
        self.stored[kind] = bits

    def add_cost(self, fetched_bytes: int, peak_bytes: int) -> None:
        """Count what one worker took for a unit."""
        self.fetched_bytes += fetched_bytes
        self.peak_bytes = max(self.peak_bytes, peak_bytes)


COLUMNS = {
    "workers": "workers",
    "partitions": "partitions",
    "rows_bytes": "rows",
    "fetched_bytes": "moved",
    "states": "States",
    "state_bytes": "stored",
    "hop_bytes": "hopped",
    "exchanged_bytes": "exchanged",
    "peak_bytes": "peak",
}
"""Name of a plain value → heading of its column in a table."""


def plain(hosts: Mapping[str, HostRecord], sizes: Sizes, most: int | None = None) -> dict[str, dict[str, int | None]]:
    """Return host → its record, as plain values; of the first `most` by name, or all."""
    return {
        name: {key: host.rows_bytes(sizes) if key == "rows_bytes" else getattr(host, key) for key in COLUMNS}
        for name, host in sorted(hosts.items())[:most]
    }


def table(hosts: Mapping[str, HostRecord], sizes: Sizes, most: int = MOST) -> list[str]:
    """Return a line of headings and one line a host, in columns. Columns without any number are left out."""
    records = plain(hosts, sizes, most)
    columns = [["host", *records]]
    for key, head in COLUMNS.items():
        always = key in ("workers", "partitions")
        shown: Callable[[int], str] = words.size if key.endswith("bytes") else "{:,}".format
        counts = [record[key] or 0 for record in records.values()]
        if always or any(counts):
            columns.append([head, *(shown(count) if count or always else "–" for count in counts)])
    lines = words.aligned(list(zip(*columns, strict=True)), left={0})
    if (more := len(hosts) - len(records)) > 0:
        lines.append(f"and {words.count(more, 'more host')}")
    return lines

"""Each row of a feed is delivered once, though Spark may compute a partition again, or twice at a time.

Each block of a partition has a number and a digest. A block that was taken stays taken; a further attempt adds the
missing blocks, and its other blocks must equal those that were taken. An attempt with other rows is an error, as rows
would be doubled or lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopyard.errors import DataError


@dataclass(slots=True)
class _Partition:
    digests: list[bytes] = field(default_factory=list)
    total: int | None = None
    """Blocks of the whole partition, once an attempt came to its end."""


class DeliveryLedger:
    """Owner of the record of which blocks of one feed one worker received, and which worker takes which partition.

    Args:
        feed: its name, for errors.
    """

    __slots__ = ("_claims", "_epoch", "_feed", "_partitions")

    def __init__(self, feed: str) -> None:
        self._feed = feed
        self._epoch = 0
        self._partitions: dict[int, _Partition] = {}
        self._claims: dict[int, int] = {}

    def advance_to(self, epoch: int) -> bool:
        """Whether this is the present epoch. A later epoch ends the earlier ones: their tasks no longer count."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._partitions.clear()
            self._claims.clear()
        return epoch == self._epoch

    def claim(self, partition: int, worker: int) -> int:
        """Return which worker takes a partition: the one that the first attempt named."""
        return self._claims.setdefault(partition, worker)

    def is_duplicate(self, partition: int, number: int, digest: bytes) -> bool:
        """Whether a block was taken already.

        Raises:
            DataError: it differs from the one that was taken, or comes after the partition's end.
        """
        record = self._partitions.get(partition)
        if record is None or (number >= len(record.digests) and record.total is None):
            return False
        if number >= len(record.digests) or record.digests[number] != digest:
            raise self._differs(partition)
        return True

    def record(self, partition: int, digest: bytes) -> None:
        """Record that the next block of a partition was taken."""
        self._partitions.setdefault(partition, _Partition()).digests.append(digest)

    def end_partition(self, partition: int, total: int) -> None:
        """Record that an attempt came to the end of its partition, after `total` blocks.

        Raises:
            DataError: another attempt had more.
        """
        record = self._partitions.setdefault(partition, _Partition())
        if len(record.digests) != total:
            raise self._differs(partition)
        record.total = total

    def _differs(self, partition: int) -> DataError:
        return DataError(
            f"feed {self._feed!r}: partition {partition} was computed twice with different rows (Spark tried it again, "
            "or speculated), so that rows would be doubled or lost; fix their order and values before feeding: cache "
            "or checkpoint the DataFrame, sort it within partitions, give every random function a seed"
        )

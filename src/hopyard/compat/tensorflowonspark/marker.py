"""What stands between items of a queue in the place of an item."""

from __future__ import annotations


class Marker:
    """No item."""


class EndPartition(Marker):
    """The end of a partition: in inference a batch stops there."""

"""Markers, which stand between the items of a queue."""

from __future__ import annotations


class Marker:
    """An entry of a queue that is no item."""


class EndPartition(Marker):
    """The end of a partition: in inference a batch stops there."""

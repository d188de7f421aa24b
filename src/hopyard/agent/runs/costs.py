"""What a worker has cost its host: rows that it brought there, and memory."""

from __future__ import annotations

from hopyard.data.manifest import Manifest
from hopyard.data.partitions.mapped import fetched_bytes
from hopyard.system.processes import peak_memory

GROWTH = 1.01
"""The peak of memory is told anew when it is so many times as large: it would else be in every line for a while."""

Costs = tuple[int, int]
"""Bytes of rows, and the peak of memory where it has grown, as in `core.runs.events.Done`."""


class CostCounter:
    """The costs that the driver does not know yet. Those of a unit that fails go with the next answer.

    Args:
        manifest: the one by which the worker opens partitions.
        own_process: whether the process is the worker's. Else its memory is that of the driver.
    """

    def __init__(self, manifest: Manifest, own_process: bool) -> None:
        self._manifest, self._own_process = manifest, own_process
        self._fetched = self._peak = 0
        """What the driver knows."""

    def news(self) -> Costs:
        """Return what the driver does not know."""
        peak = peak_memory() if self._own_process else 0
        return fetched_bytes(self._manifest) - self._fetched, peak if peak > GROWTH * self._peak else 0

    def told(self, costs: Costs) -> None:
        """Record that an answer with these costs goes to the driver."""
        fetched, peak = costs
        self._fetched += fetched
        self._peak = max(self._peak, peak)

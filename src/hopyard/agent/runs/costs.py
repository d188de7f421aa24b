"""Costs of a worker to its host: fetched rows and memory."""

from __future__ import annotations

from hopyard.data.manifest import Manifest
from hopyard.data.partitions.mapped import fetched_bytes
from hopyard.system.processes import peak_memory

GROWTH = 1.01
"""Factor of growth from which on the peak is reported again. Every small rise would be in the journal otherwise."""

Costs = tuple[int, int]
"""Bytes of rows, and the peak of memory where it has grown, as in `core.runs.events.Done`."""


class CostCounter:
    """Counts the costs that no answer has reported yet. The next answer reports those of a failed unit.

    Args:
        manifest: the one by which the worker opens partitions.
        own_process: whether the process is the worker's. Else its memory is that of the driver.
    """

    def __init__(self, manifest: Manifest, own_process: bool) -> None:
        self._manifest, self._own_process = manifest, own_process
        self._fetched = self._peak = 0
        """The costs reported so far."""

    def unreported(self) -> Costs:
        """Return the costs since the last report."""
        peak = peak_memory() if self._own_process else 0
        return fetched_bytes(self._manifest) - self._fetched, peak if peak > GROWTH * self._peak else 0

    def mark_reported(self, costs: Costs) -> None:
        """Record that an answer reports these costs."""
        fetched, peak = costs
        self._fetched += fetched
        self._peak = max(self._peak, peak)

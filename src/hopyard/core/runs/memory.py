"""Where a unit that ran out of memory is tried once more, and which slots rest meanwhile. Pure choices over slots."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.core.runs.records import SlotRecord


def sharers(slot: SlotRecord, slots: Mapping[int, SlotRecord], on_device: bool) -> set[int]:
    """The other slots that share memory with this one: that of its device, or that of its host. A slot that does not
    say which device it has may have any."""
    return {
        number
        for number, other in slots.items()
        if number != slot.id
        and other.host == slot.host
        and not (on_device and slot.device and other.device and slot.device != other.device)
    }


def choose(able: Mapping[int, SlotRecord], new: bool) -> SlotRecord | None:
    """The slot for the unit, of those that can take it: one that has done nothing yet, whose memory holds nothing of
    others; else, unless it must be a `new` one, any, an idle one first."""
    unused = [slot for slot in able.values() if not slot.used]
    if not unused and new:
        return None
    return min(unused or able.values(), key=lambda slot: (bool(slot.busy), slot.id), default=None)

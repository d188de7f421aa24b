"""What a search is asked after each event."""

from __future__ import annotations

from typing import Any

import msgspec

from hopyard.core.runs.records import SlotRecord
from hopyard.core.runs.search import Search
from hopyard.spec import Gang, RunSpec

SPEC = RunSpec(epochs=1, partitions=1, validation=0)


class Untouched(dict[int, Any]):
    """Slots over which nobody may go."""

    def values(self) -> Any:
        raise AssertionError("it went over all slots")


def test_how_many_slots_train_is_known_without_going_over_all_of_them() -> None:
    assert Search(SPEC, {}, Untouched({number: None for number in range(1000)})).slots == 1000


def test_of_gangs_only_whole_ones_count() -> None:
    slots = {number: SlotRecord(number, "here", 1, "", 0.0, trains=number == 0) for number in range(4)}
    spec = msgspec.structs.replace(SPEC, gang=Gang(2))
    assert Search(spec, {}, slots).slots == 1

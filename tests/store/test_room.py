"""Memory for what comes from elsewhere, used again as soon as nobody has it."""

from __future__ import annotations

import numpy as np
import pytest

from hopyard.store import room as rooms
from hopyard.store.room import Room


def place(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_once_nobody_has_a_view_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "LARGE", 1 << 16)
    room = Room()
    first = room(100_000)
    first[:] = bytes([7]) * 100_000
    at = place(first)
    array = np.frombuffer(first, np.uint8)[1:]
    del first
    other = room(100_000)  # there is an array over the first
    assert place(other) != at and array[0] == 7
    at = place(other)
    other = room(100_000)  # this call still had the one before it
    assert place(other) != at
    at = place(other)
    del other
    smaller = room(60_000 + 8_000)
    assert place(smaller) == at and len(smaller) == 68_000
    del smaller
    assert len(room(300_000)) == 300_000
    assert (array == 7).all()


@pytest.mark.parametrize("size", [0, 100, 3_000_000])
def test_small_and_very_large_buffers_are_not_reused(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(rooms, "LARGE", 1 << 16)
    monkeypatch.setattr(rooms, "KEPT", 2_000_000)
    room = Room()
    assert len(room(size)) == size and room._mapping is None

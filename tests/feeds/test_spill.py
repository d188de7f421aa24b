"""The files of a feed shrink as they are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hopyard.feeds.spill import Spill

BODY = np.arange(1000, dtype=np.uint8)


def on_disk() -> int:
    """Bytes of all files without a name that this process has open."""
    sizes = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found = link.stat()
        except OSError:
            continue
        if found.st_nlink == 0:
            sizes.append(found.st_size)
    return sum(sizes)


def test_only_waiting_rows_are_on_disk(tmp_path: Path) -> None:
    before, spill = on_disk(), Spill(tmp_path, segment=10_000)
    waiting = [spill.write(BODY)]
    for _ in range(500):  # one body always waits
        waiting.append(spill.write(BODY))
        assert np.array_equal(spill.read(waiting.pop(0)), BODY)
        assert on_disk() - before == spill.bytes <= 2 * 11_000
    assert np.array_equal(spill.read(waiting.pop()), BODY)
    assert (on_disk() - before, spill.bytes) == (0, 0)


def test_bodies_may_be_read_in_any_order(tmp_path: Path) -> None:
    before, spill = on_disk(), Spill(tmp_path, segment=2000)
    bodies = [np.full(700, number, np.uint8) for number in range(20)]
    spilled = [spill.write(body) for body in bodies]
    for number in (19, 0, 7, 8, 1, *range(2, 7), *range(9, 19)):
        if number % 3:
            assert np.array_equal(spill.read(spilled[number]), bodies[number])
        else:
            spill.free(spilled[number])
    assert (on_disk() - before, spill.bytes) == (0, 0)
    assert np.array_equal(spill.read(spill.write(BODY)), BODY)


def test_a_body_larger_than_a_segment_and_an_empty_one(tmp_path: Path) -> None:
    spill = Spill(tmp_path, segment=100)
    spilled = [spill.write(BODY), spill.write(BODY[:0]), spill.write(BODY)]
    assert [len(spill.read(one)) for one in spilled] == [1000, 0, 1000]


def test_without_room_what_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill(tmp_path, segment=10_000)
    first = spill.write(BODY)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            spill.write(BODY)
    second = spill.write(BODY[::-1].copy())
    assert np.array_equal(spill.read(first), BODY)
    assert np.array_equal(spill.read(second), BODY[::-1])
    assert spill.bytes == 0

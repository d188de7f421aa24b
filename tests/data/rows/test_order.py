"""Rows in the order of their names, in memory and beyond it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.data.manifest import ArrayInfo
from hopyard.data.ragged import Ragged
from hopyard.data.rows import order as row_order
from hopyard.data.rows.order import RowSorter, ordered
from hopyard.formats.arrow import Array

KINDS = [ArrayInfo((3,), "float32"), ArrayInfo((), "int64")]


def words(rows: int, kinds: tuple[int, ...]) -> list[Array]:
    """Words of which each has that many different values; 0: all differ."""
    rng = np.random.default_rng(rows)
    return [rng.integers(0, kind or 2**64 - 1, rows, np.uint64) for kind in kinds]


@pytest.mark.parametrize("step", [50, 1 << 20])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 1000, 5000])
@pytest.mark.parametrize("kinds", [(0, 0), (5, 3), (1, 0), (1, 1), (2, 0, 0), (1, 7, 0, 0)])
def test_words_order_from_the_left(rows: int, kinds: tuple[int, ...], step: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(row_order, "_STEP", step)
    each = words(rows, kinds)
    for shift in (0, 50):
        each[0] <<= np.uint64(shift)  # equal but for high bits, or for low ones
        order = ordered(each)
        assert np.array_equal(np.sort(order), np.arange(rows))
        if len({*zip(*(word.tolist() for word in each), strict=True)}) == rows:  # else equal rows in any order
            assert np.array_equal(order, np.lexsort(each[::-1]))
        found = list(zip(*(word[order].tolist() for word in each), strict=True))
        assert found == sorted(found)


@pytest.mark.parametrize("memory", [1, 5_000, 1 << 30])
@pytest.mark.parametrize("kinds", [(0, 0), (3, 0, 0, 0)])
def test_rows_come_in_order_and_leave_no_file(tmp_path: Path, memory: int, kinds: tuple[int, ...]) -> None:
    rows = 0 if memory == 1 and len(kinds) == 2 else 1500
    names = np.stack(words(rows, kinds), axis=1)
    numbers = np.arange(rows)
    sorter = RowSorter(KINDS, len(kinds), tmp_path / "order", memory)
    for start in range(0, rows, 400):
        mine = numbers[start : start + 400]
        sorter.take([np.stack([mine, mine, -mine], axis=1).astype(np.float32), mine], names[start : start + 400])
    found = list(sorter.blocks())
    assert (tmp_path / "order").exists() == (rows > 0 and memory < 1 << 30)
    sorter.close()
    assert list(tmp_path.iterdir()) == []
    inputs, targets = (np.concatenate(part) for part in zip(*found, strict=True)) if found else (names, numbers)
    wanted = np.lexsort(names.T[::-1])
    assert targets.tolist() == wanted.tolist()
    if found:
        assert np.array_equal(inputs[:, 2], -wanted.astype(np.float32)) and inputs.flags.c_contiguous


@pytest.mark.parametrize("memory", [1, 5_000, 1 << 30])
def test_rows_of_any_length_come_in_order(tmp_path: Path, memory: int) -> None:
    rows = 700
    names, numbers = np.stack(words(rows, (0, 0)), axis=1), np.arange(rows)
    infos = [ArrayInfo((None,), "int64"), ArrayInfo((), "int64"), ArrayInfo((None,), "float32")]
    sorter = RowSorter(infos, 2, tmp_path / "order", memory, step=3_000)
    for start in range(0, rows, 200):
        mine = numbers[start : start + 200]
        ragged = Ragged.of(np.repeat(mine, 1 + mine % 5), 1 + mine % 5)
        sorter.take([ragged, mine, Ragged(ragged.values.astype(np.float32), ragged.starts, ragged.ends)],
                    names[start : start + 200])  # fmt: skip
    found = list(sorter.blocks())
    wanted = np.lexsort(names.T[::-1])
    assert len(found) > 3
    assert np.concatenate([targets for _, targets, _ in found]).tolist() == wanted.tolist()
    for at in (0, 2):
        assert np.array_equal(np.concatenate([block[at].flat() for block in found]), np.repeat(wanted, 1 + wanted % 5))
    sorter.close()
    assert list(tmp_path.iterdir()) == []


LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from hopyard.data.manifest import ArrayInfo
from hopyard.data.rows.order import RowSorter

def anonymous():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))

rows, step, start = 3_000_000, 100_000, anonymous()
sorter = RowSorter([ArrayInfo((20,), "float64")], int(sys.argv[2]), Path(sys.argv[1]))
rng, most, seen, last = np.random.default_rng(0), 0, 0, -1
for at in range(0, rows, step):
    names = rng.integers(0, 2**64 - 1, (step, int(sys.argv[2])), np.uint64)
    if names.shape[1] == 4:
        names[:, :2] = names[:, :2] % np.uint64(3)
    values = np.zeros((step, 20))
    values[:, 0] = names[:, -2] >> np.uint64(11)
    sorter.take([values], names)
    most = max(most, anonymous())
import threading
done = threading.Event()
def watch():
    global most
    while not done.wait(0.005):
        most = max(most, anonymous())
threading.Thread(target=watch, daemon=True).start()
for (block,) in sorter.blocks():
    seen += len(block)
    if names.shape[1] == 2:
        assert block[0, 0] >= last and (np.diff(block[:, 0]) >= 0).all()
        last = block[-1, 0]
done.set()
assert seen == rows
print((most - start - (256 << 20)) / rows)
"""


@pytest.mark.long
@pytest.mark.parametrize("width", [2, 4])
def test_a_row_takes_32_bytes_of_memory(tmp_path: Path, width: int) -> None:
    command = [sys.executable, "-c", LARGE, str(tmp_path / "order"), str(width)]
    took = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert took <= 32

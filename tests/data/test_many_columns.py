"""Tables of thousands of columns: what preparing them takes grows with their number, not with its square."""

from __future__ import annotations

import cProfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.data.manifest import file_names
from hopyard.data.new_rows import apply
from hopyard.data.options import columns

ROWS = 600
FEW, MANY = 300, 1200


def data_set(folder: Path, count: int, how: str) -> hy.Dataset:
    names = [f"c{at}" for at in range(count)]
    values = np.random.default_rng(0).random((count, ROWS))
    arrays: dict[str, Any] = dict(zip(names, values, strict=True)) | {"y": np.arange(ROWS) % 2}
    options: dict[str, Any] = {"features": names, "label": "y", "validation": 0.2, "partitions": 2}
    extra: dict[str, dict[str, Any]] = {
        "standardize": {"standardize": names},
        "impute": {"impute": dict.fromkeys(names, "mean")},
        "key": {"key": "c0"},
        "transform": {"transform": _same},
    }
    options |= extra.get(how, {})
    if how in ("pandas", "impute"):
        import pandas as pd

        return hy.Dataset.pandas(pd.DataFrame(arrays), **options)
    pq.write_table(pa.table(arrays), folder / f"{count}.parquet")
    return hy.Dataset.parquet(folder / f"{count}.parquet", **options)


def _same(batch: Any) -> Any:
    return batch


def calls(run: Any) -> int:
    """Return how many functions of Python and C a call of `run` calls."""
    profile = cProfile.Profile()
    profile.runcall(run)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["parquet", "pandas", "standardize", "impute", "key", "transform"])
def test_calls_grow_with_the_number_of_columns(tmp_path: Path, how: str) -> None:
    counts = [calls(lambda n=n: data_set(tmp_path, n, how).prepare(tmp_path / "cache")) for n in (60, FEW, MANY)]
    assert (counts[2] - counts[1]) / (counts[1] - counts[0]) < 1.5 * (MANY - FEW) / (FEW - 60)


@pytest.mark.slow
def test_calls_of_predict_grow_with_the_number_of_columns(tmp_path: Path) -> None:
    counts = []
    for count in (60, FEW, MANY):
        data = data_set(tmp_path, count, "standardize")
        manifest = data.prepare(tmp_path / "cache")
        counts.append(calls(lambda m=manifest, d=data: apply(m, d, targets=False, drop_invalid=True)))
    assert (counts[2] - counts[1]) / (counts[1] - counts[0]) < 1.5 * (MANY - FEW) / (FEW - 60)


class Name(str):
    """Text that counts how often it is compared with other text, as a search through a list does."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_names_are_looked_up_and_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.data.options.column_name", lambda name: Name(name) if isinstance(name, str) else name)
    counts = []
    for count in (100, 400):
        names = [f"c{at}" for at in range(count)]
        Name.compared = 0
        spec = columns(
            features=names, label=names, weight=None, validation=None, encode=dict.fromkeys(names[::2], "index"),
            standardize=names[1::2], impute=dict.fromkeys(names, ("constant", 1)), key=names,
        )  # fmt: skip
        counts.append(Name.compared)
        assert len(spec.names) == count
    assert counts[1] <= 5 * counts[0]


def test_names_of_files_are_those_of_each_role() -> None:
    from hopyard.data.manifest import Column, Field

    column = Column("x", "double:float64", ())
    roles: list[Any] = ["inputs", "inputs", "targets", "inputs", "weights"]
    fields = [Field(role, role, False, [column], "float64", "float32") for role in roles]
    assert file_names(fields) == ["inputs-0.npy", "inputs-1.npy", "targets-0.npy", "inputs-2.npy", "weights-0.npy"]

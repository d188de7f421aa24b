"""The digest of rows: of values, types, names and order, and of nothing else."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hopyard.data.rows.content import Content
from hopyard.data.sources.memory import Arrays, Table


def of(table: pa.Table, step: int | None = None) -> str:
    content = Content(table.schema)
    for batch in table.to_batches(max_chunksize=step):
        content.update(batch)
    return content.hexdigest()


def arrays() -> dict[str, Any]:
    """One array of 40 rows of each kind, with nulls where there can be some."""
    n = np.arange(40)
    some = n % 7 == 3
    times = pa.array(n * 1_000_003, pa.timestamp("us", "Europe/Berlin"), mask=some)
    lists = [None if i % 5 == 0 else [[i, None], [], None, list(range(i % 4))] for i in range(40)]
    return {
        "int": pa.array(n, pa.int16(), mask=some),
        "float": pa.array(n / 7, mask=some),
        "half": pa.array((n / 7).astype(np.float16)),
        "bool": pa.array(n % 3 == 0, mask=some),
        "time": times,
        "date": pa.array(n.astype("M8[D]")),
        "decimal": pa.array(n).cast(pa.decimal128(30, 3)),
        "text": pa.array([None if i % 6 == 0 else "ä" * (i % 5) for i in range(40)]),
        "large": pa.array(["x" * (i % 3) for i in range(40)], pa.large_string()),
        "view": pa.array([None if i % 6 == 0 else "beyond the view" * (i % 3) for i in range(40)], pa.string_view()),
        "bytes": pa.array([bytes([i]) * (i % 4) for i in range(40)]),
        "fixed": pa.array([bytes([i, i + 1]) for i in range(40)], pa.binary(2)),
        "lists": pa.array(lists, pa.list_(pa.list_(pa.int64()))),
        "pairs": pa.array([None if i % 5 == 0 else [i, None] for i in range(40)], pa.list_(pa.float32(), 2)),
        "struct": pa.array([None if i % 5 == 0 else {"a": i, "b": None if i % 2 else "x"} for i in range(40)]),
        "map": pa.array([[("k", i)] for i in range(40)], pa.map_(pa.string(), pa.int64())),
        "coded": pa.array(["UA", None, "AA", "DL"] * 10).dictionary_encode(),
        "null": pa.nulls(40),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int64(), (2, 3)), pa.FixedSizeListArray.from_arrays(pa.array(np.arange(240)), 6)
        ),
        "period": pa.array(pd.period_range("2020-01", periods=40, freq="M").to_series(index=range(40))),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(arrays()))
def test_batches_and_slices_do_not_matter_and_each_value_does(name: str) -> None:
    array = arrays()[name]
    whole = of(pa.table({"x": array}))
    table = pa.table({"x": pa.concat_arrays([array, array]).slice(40)})  # another offset
    assert {of(table, step) for step in (1, 7, 39, None)} == {whole}
    assert of(pa.table({"y": array})) != whole
    assert of(pa.table({"x": array.slice(1)})) != whole
    assert of(pa.table({"x": array.slice(0, 39)})) != whole
    if name != "null":
        turned = pa.concat_arrays([array.slice(1, 2), array.slice(0, 1), array.slice(3)])
        assert of(pa.table({"x": turned})) != whole
        assert of(pa.table({"x": pa.concat_arrays([array.slice(0, 39), pa.nulls(1, array.type)])})) != whole


def test_bytes_under_a_null_do_not_matter() -> None:
    def made(value: int) -> pa.Table:
        valid = pa.array([True, False, True]).buffers()[1]
        return pa.table({"x": pa.Array.from_buffers(pa.int64(), 3, [valid, pa.array([1, value, 3]).buffers()[1]])})

    assert made(2).equals(made(9))
    assert of(made(2)) == of(made(9)) != of(pa.table({"x": [1, 0, 3]}))


def test_types_that_print_alike_are_distinguished() -> None:
    n = pa.array(range(5))
    kinds = [
        n, n.cast(pa.int32()), n.cast(pa.uint64()), n.cast(pa.float64()), n.cast(pa.timestamp("us")),
        n.cast(pa.timestamp("ms")), n.cast(pa.timestamp("us", "UTC")), n.cast(pa.timestamp("us", "Europe/Berlin")),
        n.cast(pa.string()), n.cast(pa.large_string()), n.cast(pa.string()).dictionary_encode(),
        n.cast(pa.duration("s")), *(pd.Series(pd.period_range("2020", periods=5, freq=freq)) for freq in ("Y", "M")),
    ]  # fmt: skip
    assert len({of(pa.table({"x": kind})) for kind in kinds}) == len(kinds)


def test_columns_keep_to_themselves() -> None:
    a, b = pa.array(["a", "bc"]), pa.array(["ab", "c"])
    assert len({of(pa.table({"x": x, "y": y})) for x in (a, b) for y in (a, b)}) == 4
    assert of(pa.table({"x": a, "y": b})) != of(pa.table({"y": b, "x": a}))
    nested = [[[1], [2, 3]], [[1, 2], [3]], [[1, 2, 3]], [[1], [2], [3]]]
    assert len({of(pa.table({"x": pa.array([rows])})) for rows in nested}) == 4


def test_codes_of_a_dictionary_count_as_a_transform_sees_them() -> None:
    def made(*values: str) -> pa.Table:
        codes = pa.array([values.index("a"), values.index("b")] * 9, pa.int32())
        return pa.table({"x": pa.DictionaryArray.from_arrays(codes, list(values))})

    assert of(made("a", "b")) == of(made("a", "b"), 5)
    assert len({of(made("a", "b")), of(made("b", "a")), of(made("a", "b", "c"))}) == 3


def test_metadata_does_not_matter() -> None:
    table = pa.table({"x": [1.0]})
    assert of(table.replace_schema_metadata({"pandas": "{}"})) == of(table)
    marked = pa.schema([table.schema.field(0).with_metadata({"PARQUET:field_id": "1"})])
    assert of(table.cast(marked)) == of(table)


def test_batches_of_another_schema_count_from_their_row_on() -> None:
    one, two = pa.record_batch({"x": [1]}), pa.record_batch({"x": [1.0]})
    said = set()
    for batches in ([one, two], [two, one], [one, one, two], [one, two, two], [one, one]):
        content = Content()
        for batch in batches:
            content.update(batch)
        said.add(content.hexdigest())
    assert len(said) == 5


def test_arrays_count_by_value_whatever_their_memory() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3, 2))
    same = [x, np.asfortranarray(x), x.astype(">f8"), np.repeat(x, 2, 0)[::2]]
    assert len({Arrays({"x": one}, "").identity() for one in same}) == 1
    others: list[Any] = [
        x.astype(np.float32),
        x.reshape(50, 2, 3),
        x.reshape(50, 6),
        x.view(np.int64),
        x[::-1],
        x[:49],
        -x,
    ]
    assert len({Arrays({"x": one}, "").identity() for one in [x, *others]}) == 8
    assert Table(pa.table({"n": [1, 2]}), "").identity() == Arrays({"n": np.array([1, 2])}, "").identity()


def test_object_columns_count_with_all_their_values() -> None:
    """NumPy prints long arrays with dots, and eight digits of a float."""

    def key(value: float) -> str:
        images = np.empty(3, object)
        for number in range(3):
            images[number] = np.full(2000, float(number))
        images[1][1000] += value
        return Arrays({"x": images}, "").identity()

    assert len({key(0.0), key(1.0), key(1e-12)}) == 3
    words = [np.array(["a", None, "b"], object), np.array(["a", "None", "b"], object)]
    days = [np.array([datetime.date(2020, 1, day)], object) for day in (1, 2)]
    assert len({Arrays({"x": one}, "").identity() for one in [*words, *days]}) == 4

"""Rows of other libraries, by Arrow: equal rows are equal data, whatever their layout."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.data.sources.of import from_arrow
from jobs import classes

COLUMNS: dict[str, Any] = {
    "features": ["age", "many"],
    "label": "left",
    "key": "id",
    "impute": {"age": "mean"},
    "validation": 0.2,
    "partitions": 3,
}
NAMED: dict[str, Any] = {
    **COLUMNS,
    "features": {"numbers": ["age", "many"], "city": "city"},
    "encode": {"city": hy.Categories("index")},
    "impute": {"age": "mean", "city": "most_frequent"},
}


def views(table: pa.Table) -> pa.Table:
    """As Polars lays text out."""
    return table.set_column(3, "city", table["city"].cast(pa.string_view()))


def coded(table: pa.Table) -> pa.Table:
    """As Polars lays categories out."""
    array = table["city"].combine_chunks().dictionary_encode()
    values = array.dictionary.cast(pa.string_view())
    return table.set_column(3, "city", pa.DictionaryArray.from_arrays(array.indices.cast(pa.uint32()), values))


class Exported:
    """A table of some library: all that is known of it is Arrow's interface."""

    def __init__(self, table: pa.Table, step: int = 77) -> None:
        self._table, self._step = table, step

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.to_reader(max_chunksize=self._step).__arrow_c_stream__()


def polars(table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


def polars_categories(table: pa.Table) -> Any:
    frame = pytest.importorskip("polars")
    return polars(table).with_columns(frame.col("city").cast(frame.Categorical))


def duckdb(table: pa.Table) -> Any:
    connection = pytest.importorskip("duckdb").connect()
    connection.register("rows", table)
    return connection.sql("SELECT * FROM rows")


def ibis(table: pa.Table) -> Any:
    frame = polars(table)
    return pytest.importorskip("ibis").polars.connect({"rows": frame}).table("rows")


LIBRARIES: dict[str, Callable[[pa.Table], Any]] = {
    "batches": lambda table: table.to_batches(max_chunksize=50),
    "reader": lambda table: table.to_reader(max_chunksize=50),
    "tables": lambda table: (table.slice(start, 200) for start in range(0, 600, 200)),
    "exported": Exported,
    "exported parts": lambda table: (Exported(table.slice(start, 200)) for start in range(0, 600, 200)),
    "dataset": ds.dataset,
    "scanner": lambda table: ds.dataset(table).scanner(batch_size=90),
    "large": lambda table: table.set_column(3, "city", table["city"].cast(pa.large_string())),
    "views": views,
    "coded": coded,
    "runs": lambda table: table.set_column(2, "many", pc.run_end_encode(table["many"].combine_chunks())),
    "pandas": lambda table: table.to_pandas(),
    "pandas categories": lambda table: table.to_pandas().astype({"city": "category"}),
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=__import__("pandas").ArrowDtype),
    "Polars": polars,
    "Polars categories": polars_categories,
    "DuckDB": duckdb,
    "Ibis": ibis,
    "Daft": lambda table: pytest.importorskip("daft").from_arrow(table),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_equal_rows_are_the_same_data(cache: Path, rows: pa.Table, library: str) -> None:
    expected = hy.Dataset.arrow(rows, **NAMED)
    data = hy.Dataset.arrow(LIBRARIES[library](rows), **NAMED)
    assert data.prepare(cache).digest == expected.prepare(cache).digest
    assert data.prepare(cache).key == expected.prepare(cache).key, "rows of another layout are found in the cache"


@pytest.mark.parametrize("library", ["large", "views", "exported", "Polars", "DuckDB"])
def test_a_transform_is_given_plain_text(cache: Path, rows: pa.Table, library: str) -> None:
    def named(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch.schema.field("city").type == pa.string()
        return batch.filter(pc.is_valid(batch["city"]))

    data, expected = (
        hy.Dataset.arrow(each, **{**NAMED, "impute": {"age": "mean"}}, transform=named)
        for each in (LIBRARIES[library](rows), rows)
    )
    assert data.prepare(cache).digest == expected.prepare(cache).digest


def test_a_transform_is_given_dictionaries_which_count_then(cache: Path, rows: pa.Table) -> None:
    seen = set()

    def codes(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(batch.schema.field("city").type)
        return batch

    column = rows["city"].combine_chunks().dictionary_encode()
    turned = pa.DictionaryArray.from_arrays(pc.subtract(2, column.indices).cast(pa.int32()), column.dictionary[::-1])
    first, second = (rows.set_column(3, "city", array) for array in (column, turned))
    assert first["city"].cast(pa.string()).equals(second["city"].cast(pa.string()))
    plain = [hy.Dataset.arrow(table, **NAMED).prepare(cache) for table in (first, second)]
    coded = [hy.Dataset.arrow(table, **NAMED, transform=codes).prepare(cache) for table in (first, second)]
    assert plain[0].key == plain[1].key
    assert coded[0].key != coded[1].key
    assert seen == {column.type}
    assert len({manifest.digest for manifest in (*plain, *coded)}) == 1


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("dataset", "reader", "pandas", "Polars", "DuckDB")]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["exported", "views", "coded", *LONG])
def test_a_model_predicts_for_rows_of_any_library(tmp_path: Path, rows: pa.Table, library: str) -> None:
    data = hy.Dataset.arrow(rows, **{**COLUMNS, "features": ["age", "many", "id"]})
    run = hy.fit(classes, {"lr": 0.1}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
    expected = run.best.predict(rows)
    assert np.array_equal(run.best.predict(LIBRARIES[library](rows)), expected)
    assert run.best.evaluate(LIBRARIES[library](rows)) == run.best.evaluate(rows)


def test_a_stream_is_read_anew_where_it_can_be(cache: Path, rows: pa.Table) -> None:
    data = hy.Dataset.arrow(Exported(rows), **COLUMNS)
    first = data.prepare(cache).digest
    other = cache.with_name("other")
    assert data.prepare(other).digest == first


def test_a_stream_that_gives_other_rows_when_read_again_is_refused(cache: Path, rows: pa.Table) -> None:
    exported = Exported(rows)
    data = hy.Dataset.arrow(exported, **COLUMNS)
    data.prepare(cache)
    exported._table = rows.slice(1)
    with pytest.raises(hy.DataError, match="Exported gave other rows"):
        data.prepare(cache.with_name("other"))


def test_a_stream_that_was_read_is_small_in_a_pickle_and_found_by_it(cache: Path, rows: pa.Table) -> None:
    for source in (Exported(rows), rows.to_reader(), polars(rows)):
        data = hy.Dataset.arrow(source, **COLUMNS)
        key = data.prepare(cache).key
        assert len(pickled := pickle.dumps(data)) < 3_000
        assert pickle.loads(pickled).prepare(cache).key == key


@pytest.mark.parametrize("make", [Exported, lambda rows: rows.to_reader(max_chunksize=50)])
def test_a_run_on_a_stream_goes_on_without_it(tmp_path: Path, rows: pa.Table, make: Callable[[pa.Table], Any]) -> None:
    columns = {**COLUMNS, "features": ["age", "many", "id"]}
    how: dict[str, Any] = {"engine": hy.Inline()}
    hy.fit(classes, {"lr": 0.1}, hy.Dataset.arrow(make(rows), **columns), epochs=1, directory=tmp_path / "a", **how)
    resumed = hy.resume(tmp_path / "a", epochs=2, **how)
    whole = hy.fit(classes, {"lr": 0.1}, hy.Dataset.arrow(rows, **columns), epochs=2, directory=tmp_path / "b", **how)
    assert resumed.trials[0].digest == whole.trials[0].digest


def test_few_batches_of_a_stream_are_in_memory(cache: Path) -> None:
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for start in range(0, 1_000_000, 50_000):
            n = np.arange(start, start + 50_000)
            before = pa.total_allocated_bytes()
            yield pa.record_batch({"x": pa.array(n / 7), "id": pa.array(n), "y": pa.array(n % 2)})
            most = max(most, pa.total_allocated_bytes() - before)

    class Query(Exported):
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            schema = pa.schema([("x", pa.float64()), ("id", pa.int64()), ("y", pa.int64())])
            return pa.RecordBatchReader.from_batches(schema, batches()).__arrow_c_stream__()

    data = hy.Dataset.arrow(Query(pa.table({})), features=["x"], label="y", partitions=2)
    assert data.prepare(cache).rows == 1_000_000
    assert 0 < most < 8_000_000, "of 24 MB"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda: pa.chunked_array([[1.0]]), "a DoubleScalar"),
        (lambda: polars(pa.table({"x": [1.0]}))["x"], "a float"),
        (lambda: polars(pa.table({"x": [1.0]})).lazy(), "got LazyFrame"),
        (lambda: duckdb(pa.table({"x": [1]})).project("error('no such row')"), "no such row"),
    ],
)
def test_what_has_no_rows_is_refused(cache: Path, rows: Callable[[], Any], words: str) -> None:
    with pytest.raises(hy.HopyardError, match=words):
        hy.Dataset.arrow(rows(), features=["x"]).prepare(cache)


def test_parquet_files_of_several_layouts_are_one_table(cache: Path, tmp_path: Path, rows: pa.Table) -> None:
    """A column with large text, read as dictionaries, was null in all rows."""
    layouts = [rows, LIBRARIES["large"](rows), views(rows)]
    for number, table in enumerate(layouts):
        pq.write_table(table.slice(200 * number, 200), tmp_path / f"{number}.parquet")
    expected = hy.Dataset.arrow(rows, **NAMED).prepare(cache).digest
    assert hy.Dataset.parquet(tmp_path / "*.parquet", **NAMED).prepare(cache).digest == expected
    assert hy.Dataset.parquet(tmp_path / "*.parquet", **NAMED, transform=lambda b: b).prepare(cache).digest == expected
    pq.write_table(layouts[1], tmp_path / "large")
    assert hy.Dataset.parquet(tmp_path / "large", **NAMED).prepare(cache).digest == expected


def test_lists_and_bytes_of_any_layout_are_the_same_rows() -> None:
    table = pa.table({"lists": [[1, 2], None, []], "bytes": [b"a", None, b"b" * 20], "texts": [["a"], [None], None]})
    kinds = {
        "lists": [pa.large_list(pa.int64()), pa.list_(pa.field("element", pa.int64()))],
        "bytes": [pa.large_binary(), pa.binary_view()],
        "texts": [pa.list_(pa.string_view()), pa.large_list(pa.large_string())],
    }
    expected = from_arrow(table)[0].identity()
    for name, each in kinds.items():
        for kind in each:
            array = table[name].combine_chunks()
            other = pa.array(array.to_pylist(), kind)
            at = table.column_names.index(name)
            assert from_arrow(table.set_column(at, pa.field(name, kind), other))[0].identity() == expected, kind

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.data.assignment import validates
from hopyard.data.dataset import Dataset
from hopyard.data.from_spark.source import DataFrameSource, MaterializedSource
from hopyard.data.manifest import Manifest
from hopyard.data.options import BuildOptions, columns
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.sources.parquet import ParquetFiles
from hopyard.errors import DataError, SpecError

FEATURES = ["a", "b", "flag"]


def expected(table: pa.Table, column: str, partitions: int, chosen: Any) -> tuple[list[Any], list[Any]]:
    """The values of `column` per training and per validation partition, the plain way."""
    values = np.asarray(table[column].to_numpy())
    chosen = np.asarray(chosen, bool)
    train, validate = values[~chosen], values[chosen]
    return [train[p::partitions] for p in range(partitions)], [validate[p::partitions] for p in range(partitions)]


def same(parts: list[Any], wanted: list[Any]) -> None:
    assert [part.rows for part in parts] == [len(values) for values in wanted]
    for part, values in zip(parts, wanted, strict=True):
        assert np.array_equal(part.targets, values)


def test_numpy(cache: Path, read: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1003, 3, 2)), rng.integers(0, 5, 1003).astype(np.int8)
    manifest = Dataset.numpy(x, y, partitions=4).prepare(cache)
    assert [part.rows for part in manifest.train] == [251, 251, 251, 250]
    assert manifest.validate == []
    assert (manifest.inputs["inputs"].shape, manifest.inputs["inputs"].dtype) == ((3, 2), "float32")
    assert (manifest.targets["targets"].shape, manifest.targets["targets"].dtype) == ((), "int64")
    assert (manifest.classes, manifest.label_range, manifest.weighted) == (5, (0.0, 4.0), False)
    assert manifest.rows == manifest.train_rows == 1003
    for number, part in enumerate(read(manifest)):
        assert np.array_equal(part.inputs, x[number::4].astype(np.float32))
        assert np.array_equal(part.targets, y[number::4])
        assert part.weights is None
        assert manifest.train[number].bytes == part.inputs.nbytes + part.targets.nbytes


def test_numpy_named_inputs_targets_and_weight(cache: Path, read: Any) -> None:
    x: dict[str, Any] = {"image": np.arange(40, dtype=np.uint8).reshape(10, 2, 2), "ids": np.arange(20).reshape(10, 2)}
    y = {"image": np.arange(10.0), "kind": np.arange(10) % 2 == 0}
    manifest = Dataset.numpy(x, y, weight=np.arange(10), partitions=2).prepare(cache)
    assert {name: info.dtype for name, info in manifest.inputs.items()} == {"image": "uint8", "ids": "int64"}
    assert {name: info.dtype for name, info in manifest.targets.items()} == {"image": "float32", "kind": "int64"}
    assert manifest.classes is None
    part = read(manifest)[1]
    assert np.array_equal(part.inputs["image"], x["image"][1::2])
    assert np.array_equal(part.targets["kind"], [0, 0, 0, 0, 0])
    assert part.weights.tolist() == [1, 3, 5, 7, 9]
    assert part.weights.dtype == np.float32


@pytest.mark.parametrize("name", ["weight", "targets", "inputs", "targets.a", "weight.weight"])
def test_a_label_or_a_weight_never_takes_the_place_of_an_input(cache: Path, read: Any, name: str) -> None:
    """Whatever an input is called, and by each way that names columns itself."""
    n = np.arange(6.0)
    dicts: list[Any] = [{name: n, "a": n + 10}, {"a": n + 20, name: n + 30}, n + 40]
    single: list[Any] = [{name: n, "a": n + 10}, n + 20, n + 40]
    for x, y, weight in (dicts, single):
        items = [
            tuple({key: part[key][i] for key in part} if isinstance(part, dict) else part[i] for part in (x, y, weight))
            for i in range(6)
        ]
        for data in (Dataset.numpy(x, y, weight=weight, partitions=1), Dataset.torch(items, partitions=1)):
            (part,) = read(data.prepare(cache))
            assert {key: values.tolist() for key, values in part.inputs.items()} == {
                key: values.tolist() for key, values in x.items()
            }
            targets = part.targets if isinstance(y, dict) else {"": part.targets}
            for key, values in (y if isinstance(y, dict) else {"": y}).items():
                assert targets[key].tolist() == values.tolist()
            assert part.weights.tolist() == weight.tolist()


def test_a_column_may_be_label_and_weight_as_well(cache: Path, read: Any) -> None:
    table = pa.table({"targets": [1.0, 2.0], "weight": [3.0, 4.0]})
    for data in (Dataset.arrow, Dataset.pandas):
        rows = table if data == Dataset.arrow else table.to_pandas()
        made = data(rows, features={"weight": "targets"}, label="weight", weight="targets", partitions=1)
        (part,) = read(made.prepare(cache))
        assert [part.inputs["weight"].tolist(), part.targets.tolist()] == [[1, 2], [3, 4]]
        assert part.weights.tolist() == [1, 2]


def test_names_that_are_equal_as_text_are_refused() -> None:
    with pytest.raises(SpecError, match=r"inputs .* '1'"):
        Dataset.numpy({1: np.zeros(2), "1": np.ones(2)})
    with pytest.raises(SpecError, match=r"items .* '1'"):
        Dataset.torch([{1: 0.0, "1": 1.0}], features=["1"])
    with pytest.raises(DataError, match="has 2 columns named '1'"):
        Dataset.pandas(pd.DataFrame([[0.0, 1.0]], columns=["1", 1]), features=["1"])


def test_no_arrays_and_names_that_no_column_can_have() -> None:
    with pytest.raises(SpecError, match="features names no column"):
        Dataset.numpy({}, {})
    with pytest.raises(DataError, match=r"has no column '\\ud800'"):
        Dataset.numpy(np.zeros((4, 1)), np.zeros(4), validation="\ud800")


def test_numpy_without_label(cache: Path, read: Any) -> None:
    manifest = Dataset.numpy(np.ones((4, 2), np.float16), partitions=2).prepare(cache)
    assert manifest.targets == {}
    assert read(manifest)[0].targets is None
    assert read(manifest)[0].inputs.dtype == np.float16


def test_parquet_matrix(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    data = Dataset.parquet(files, features=FEATURES, label="n", weight="weight", validation=0.3, partitions=3, seed=9)
    manifest = data.prepare(cache)
    chosen = validates(9, 0.3, 0, 300)
    train, validate = expected(table, "n", 3, chosen)
    same(read(manifest), train)
    same(read(manifest, "validate"), validate)
    matrix = np.column_stack([table[name].to_numpy().astype(np.float32) for name in FEATURES])
    for part in read(manifest) + read(manifest, "validate"):
        assert np.array_equal(part.inputs, matrix[part.targets])
        assert np.array_equal(part.weights, table["weight"].to_numpy()[part.targets].astype(np.float32))
    assert manifest.names == [*FEATURES, "n", "weight"]
    assert [(Path(source.name).name, source.row_group, source.rows) for source in manifest.sources][:4] == [
        ("part-0.parquet", 0, 37),
        ("part-0.parquet", 1, 37),
        ("part-0.parquet", 2, 26),
        ("part-1.parquet", 0, 37),
    ]


def test_single_columns_keep_their_type(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    data = Dataset.parquet(
        files,
        features={"image": "image", "words": "words", "rest": ["a", "words"], "small": "late"},
        label={"one": "b", "two": ["delay", "n"], "three": ["n", "flag"]},
        partitions=2,
    )
    manifest = data.prepare(cache)
    assert {name: (info.shape, info.dtype) for name, info in manifest.inputs.items()} == {
        "image": ((4,), "uint8"),
        "words": ((2,), "int64"),
        "rest": ((3,), "float32"),
        "small": ((), "int16"),
    }
    assert {name: (info.shape, info.dtype) for name, info in manifest.targets.items()} == {
        "one": ((), "int64"),
        "two": ((2,), "float32"),
        "three": ((2,), "int64"),
    }
    part = read(manifest)[1]
    n = part.targets["three"][:, 0]
    assert np.array_equal(n, np.arange(1, 300, 2))
    assert np.array_equal(part.inputs["words"], np.column_stack([n, n + 1]))
    assert np.array_equal(part.inputs["rest"][:, 2], n + 1)
    assert part.inputs["image"].tolist() == table["image"].take(pa.array(n)).to_pylist()


def test_binary_columns_are_bytes(cache: Path, read: Any) -> None:
    fixed = pa.array([bytes([i, i + 1]) for i in range(6)], pa.binary(2))
    loose = pa.array([bytes([i] * 3) for i in range(6)], pa.binary())
    batch = pa.table({"fixed": fixed, "loose": loose, "y": [0.5] * 6}).slice(1)
    manifest = Dataset.arrow(batch, features={"f": "fixed", "l": "loose"}, label="y", partitions=1).prepare(cache)
    (part,) = read(manifest)
    assert part.inputs["f"].tolist() == [[i, i + 1] for i in range(1, 6)]
    assert part.inputs["l"].tolist() == [[i] * 3 for i in range(1, 6)]
    assert manifest.label_range == (0.5, 0.5)


def test_encodings(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    data = Dataset.parquet(
        files,
        features=["a", "b"],
        label="carrier",
        encode={"carrier": "index"},
        partitions=2,
    )
    manifest = data.prepare(cache)
    assert manifest.vocabularies == {"carrier": ["AA", "DL", "UA"]}
    assert (manifest.classes, manifest.label_range) == (3, (0.0, 2.0))
    ranks = np.array([2, 0, 1])[np.arange(300) % 3]
    assert np.array_equal(read(manifest)[1].targets, ranks[1::2])

    data = Dataset.parquet(files, features=["a", "carrier", "b"], encode={"carrier": "index"}, partitions=2)
    assert np.array_equal(read(data.prepare(cache))[1].inputs[:, 1], ranks[1::2])

    data = Dataset.parquet(
        files, features=["a", "carrier", "b"], label="n", encode={"carrier": "one-hot"}, partitions=2
    )
    manifest = data.prepare(cache)
    assert manifest.inputs["inputs"].shape == (5,)
    part = read(manifest)[0]
    assert np.array_equal(part.inputs[:, 1:4], np.eye(3)[ranks[::2]])
    assert np.array_equal(part.inputs[:, 4], table["b"].to_numpy()[::2])

    listed = {"carrier": ["UA", "XX", "DL", "AA"], "b": ("index", list(range(8, -1, -1)))}
    data = Dataset.parquet(files, features={"c": "carrier", "b": "b"}, label="n", encode=listed, partitions=2)
    part = read(data.prepare(cache))[0]
    assert part.inputs["c"].dtype == np.float32
    assert np.array_equal(part.inputs["c"], np.eye(4)[np.array([0, 3, 2])[np.arange(0, 300, 2) % 3]])
    assert np.array_equal(part.inputs["b"], 8 - table["b"].to_numpy()[::2])


def test_standardize_uses_the_training_rows(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    big = table.append_column("when", pc.add(pc.cast(table["n"], pa.float64()), 1.7e9))
    data = Dataset.arrow(
        big,
        features=["a", "when", "carrier", "flag"],
        label="n",
        encode={"carrier": "one-hot"},
        standardize=True,
        validation="held",
        partitions=3,
    )
    manifest = data.prepare(cache)
    train = ~table["held"].to_numpy()
    for name, at in (("a", 0), ("when", 1)):
        values = big[name].to_numpy()
        mean, deviation = values[train].mean(), values[train].std()
        assert manifest.standardize[name].means[0] == pytest.approx(mean, rel=1e-12)
        assert manifest.standardize[name].deviations[0] == pytest.approx(deviation, rel=1e-9)
        for part in read(manifest) + read(manifest, "validate"):
            assert part.inputs[:, at] == pytest.approx((values[part.targets] - mean) / deviation, abs=1e-6)
            assert set(np.unique(part.inputs[:, 2:])) == {0, 1}
    assert sorted(manifest.standardize) == ["a", "when"]


def test_standardize_of_a_constant_divides_by_one(cache: Path, read: Any) -> None:
    x = np.column_stack([np.full(64, 0.1), np.arange(64.0)])
    manifest = Dataset.numpy(x, np.zeros(64), standardize=True, partitions=3).prepare(cache)
    assert manifest.standardize["inputs"].deviations[0] == 1
    assert np.abs(np.concatenate([part.inputs for part in read(manifest)])[:, 0]).max() < 1e-6
    assert np.concatenate([part.inputs for part in read(manifest)])[:, 1].std() == pytest.approx(1, rel=1e-5)


def test_standardize_some(cache: Path, files: Path) -> None:
    data = Dataset.parquet(files, features=["a", "b"], label="n", standardize=["b"])
    assert list(data.prepare(cache).standardize) == ["b"]
    data = Dataset.parquet(files, features={"i": "image", "a": "a"}, label="n", standardize=True)
    manifest = data.prepare(cache)
    assert list(manifest.standardize) == ["a"]
    assert manifest.inputs["i"].dtype == "uint8"


def test_a_boolean_column_or_a_second_dataset_validates(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    held = table["held"].to_numpy()
    train, validate = expected(table, "n", 4, held)
    manifest = Dataset.parquet(files, features=["a"], label="n", validation="held", partitions=4).prepare(cache)
    same(read(manifest), train)
    same(read(manifest, "validate"), validate)

    second = Dataset.arrow(table.filter(held), features=["a"], label="n")
    first = Dataset.arrow(table.filter(~held), features=["a"], label="n", validation=second, partitions=4)
    other = first.prepare(cache)
    same(read(other), train)
    same(read(other, "validate"), validate)
    assert other.digest == manifest.digest
    assert other.key != manifest.key
    assert [source.rows for source in other.sources] == [240, 60]


def test_the_vocabulary_is_over_all_rows(cache: Path) -> None:
    second = Dataset.arrow(pa.table({"c": ["z", "a"]}), features="c", encode={"c": "one-hot"})
    first = Dataset.arrow(
        pa.table({"c": ["k", "a"]}), features="c", encode={"c": "one-hot"}, validation=second, partitions=2
    )
    assert first.prepare(cache).vocabularies == {"c": ["a", "k", "z"]}


def test_contiguous_partitions_keep_ranges(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    data = Dataset.parquet(
        files, features=FEATURES, label="n", validation=0.2, partitions=7, assign="contiguous", seed=1
    )
    manifest = data.prepare(cache)
    chosen = validates(1, 0.2, 0, 300)
    for kind, mine in (("train", ~chosen), ("validate", chosen)):
        parts = read(manifest, kind)
        assert np.array_equal(np.concatenate([part.targets for part in parts]), np.flatnonzero(mine))
        assert max(part.rows for part in parts) - min(part.rows for part in parts) <= 1
    assert sorted(path.name for path in Path(manifest.path).iterdir() if "stage" in path.name) == []


@pytest.mark.slow
@settings(max_examples=25)
@given(
    rows=st.integers(30, 400),
    cuts=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    partitions=st.integers(1, 5),
    fraction=st.sampled_from([0.0, 0.4]),
    assign=st.sampled_from(["round_robin", "contiguous"]),
    standardize=st.booleans(),
)
def test_content_does_not_depend_on_batches(
    tmp_path_factory: Any, rows: int, cuts: list[int], partitions: int, fraction: float, assign: Any, standardize: bool
) -> None:
    """The same rows in the same partition, and the same bits, whatever the batch sizes and files."""
    rng = np.random.default_rng(rows)
    table = pa.table({"x": rng.normal(size=rows), "c": rng.integers(0, 5, rows).astype(str), "n": np.arange(rows)})
    batches, start, turn = [], 0, 0
    while start < rows:
        batches.append(table.slice(start, cuts[turn % len(cuts)]).combine_chunks().to_batches()[0])
        start, turn = start + cuts[turn % len(cuts)], turn + 1
    folder = tmp_path_factory.mktemp("split")
    for number, batch in enumerate(batches):
        pq.write_table(pa.Table.from_batches([batch]), folder / f"{number:03d}.parquet", row_group_size=41)
    options: Any = dict(features=["x", "c"], label="n", encode={"c": "one-hot"}, partitions=partitions, seed=4)
    options |= dict(validation=fraction, assign=assign, standardize=standardize)
    sources = [
        Dataset.arrow(table, **options),
        Dataset.arrow(iter(batches), **options),
        Dataset.parquet(folder, **options),
    ]
    whole = [data.prepare(folder / "cache") for data in sources]
    assert len({manifest.digest for manifest in whole}) == 1
    assert len({manifest.key for manifest in whole}) == 2  # the table and the stream hold the same; files are files
    assert whole[0].rows == rows


def test_a_reader_is_read_once_and_found_again(cache: Path, table: pa.Table) -> None:
    data = Dataset.arrow(iter(table.to_batches(max_chunksize=11)), features=FEATURES, label="n")
    manifest = data.prepare(cache)
    assert manifest.rows == 300
    assert data.prepare(cache).key == manifest.key
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=11))
    assert Dataset.arrow(reader, features=FEATURES, label="n").prepare(cache).key == manifest.key
    assert len(list(cache.glob("*/manifest.json"))) == 1
    assert list(cache.glob(".tmp-*")) == []
    with pytest.raises(DataError, match="read only once"):
        data.prepare(cache.with_name("other"))


def test_pandas(cache: Path, table: pa.Table, read: Any) -> None:
    frame = table.to_pandas()
    frame["carrier"] = pd.Categorical(frame["carrier"], categories=["ZZ", "UA", "AA", "DL"])
    data = Dataset.pandas(frame, features=["a", "carrier"], label="late", encode={"carrier": "one-hot"}, partitions=2)
    manifest = data.prepare(cache)
    assert manifest.vocabularies == {"carrier": ["AA", "DL", "UA"]}  # values that are there, not categories
    assert np.array_equal(read(manifest)[0].inputs[:, 0], table["a"].to_numpy()[::2].astype(np.float32))


def test_torch(cache: Path, read: Any) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3
    manifest = Dataset.torch(torch.utils.data.TensorDataset(x, y), partitions=2).prepare(cache)
    assert manifest.classes == 3
    assert np.array_equal(read(manifest)[1].inputs, x[1::2].numpy())


class Items:
    """Counts how often an item is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        self.reads += 1
        return self.items[number]


def test_map_style_items(cache: Path, read: Any) -> None:
    named = Items([{"x": np.full(3, i), "c": "ab"[i % 2], "w": 0.5} for i in range(10)])
    data = Dataset.torch(named, features="x", label="c", weight="w", encode={"c": "index"}, partitions=2)
    part = read(data.prepare(cache))[1]
    assert part.inputs[:, 0].tolist() == [1, 3, 5, 7, 9]
    assert part.targets.tolist() == [1] * 5
    assert data.prepare(cache).weighted
    assert named.reads == 10  # once
    dicts = Items([({"p": i, "q": np.zeros(2)}, {"p": i}, 1.0) for i in range(4)])
    manifest = Dataset.torch(dicts, partitions=1).prepare(cache)
    assert list(manifest.inputs) == ["p", "q"]
    assert list(manifest.targets) == ["p"]
    assert read(manifest)[0].targets["p"].tolist() == [0, 1, 2, 3]
    assert list(Dataset.torch(Items([np.zeros(2)] * 3), partitions=1).prepare(cache).targets) == []


def test_transform_runs_once_and_counts_its_rows(cache: Path, files: Path, table: pa.Table, read: Any) -> None:
    seen: list[int] = []

    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        kept = batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 1))
        return kept.append_column("double", pc.multiply(kept["n"], 2))

    data = Dataset.parquet(files, features=["double"], label="n", validation=0.3, transform=odd, partitions=3)
    manifest = data.prepare(cache)
    data.prepare(cache)
    assert sum(seen) == 300
    train, validate = expected(table.filter(np.arange(300) % 2 == 1), "n", 3, validates(0, 0.3, 0, 150))
    same(read(manifest), train)
    same(read(manifest, "validate"), validate)
    assert np.array_equal(read(manifest)[0].inputs[:, 0], 2 * train[0])


def test_a_transform_of_arrays_sees_tensors(cache: Path, read: Any) -> None:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.greater(batch["targets"], 4))

    x = np.arange(40.0).reshape(10, 2, 2)
    manifest = Dataset.numpy(x, np.arange(10), transform=keep, partitions=1).prepare(cache)
    assert np.array_equal(read(manifest)[0].inputs, x[5:])


def test_many_partitions_do_not_need_many_open_files(cache: Path, read: Any) -> None:
    x = np.arange(3000.0).reshape(1500, 2)
    manifest = Dataset.numpy(x, np.arange(1500), partitions=700, validation=0.49).prepare(cache)
    assert len(manifest.train) == len(manifest.validate) == 700
    assert sorted(np.concatenate([p.targets for p in read(manifest)[:5]]).tolist())[0] == 0


def test_more_rows_than_a_block(cache: Path, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups too large to decode at once, and several blocks of everything."""
    monkeypatch.setattr("hopyard.data.sources.parquet.GROUP_BYTES", 1000)
    monkeypatch.setattr("hopyard.data.sources.parquet.BYTES", 4096)
    monkeypatch.setattr("hopyard.data.encoding.finalize._BLOCK_BYTES", 512)
    monkeypatch.setattr("hopyard.data.columns.COLUMN_BYTES", 8)
    rng = np.random.default_rng(0)
    table = pa.table(
        {"x": rng.normal(size=20_000), "c": rng.integers(0, 50, 20_000).astype(str), "n": np.arange(20_000)}
    )
    pq.write_table(table, tmp_path / "one.parquet")
    options: Any = dict(features=["x", "c"], label="n", encode={"c": "index"}, standardize=True, validation=0.1)
    manifest = Dataset.parquet(tmp_path / "one.parquet", **options).prepare(cache)
    train, _ = expected(table, "n", 8, validates(0, 0.1, 0, 20_000))
    same(read(manifest), train)
    monkeypatch.undo()
    whole = Dataset.arrow(table, **options).prepare(cache)
    assert [part.rows for part in whole.train] == [part.rows for part in manifest.train]
    assert whole.standardize["x"].means[0] == pytest.approx(manifest.standardize["x"].means[0], abs=1e-12)


def test_fsspec_url(files: Path, cache: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in files.iterdir():
        memory.pipe(f"/flights/{path.name}", path.read_bytes())
    for source in ("memory://flights/*.parquet", "memory://flights", "memory://flights/part-0.parquet"):
        manifest = Dataset.parquet(source, features=FEATURES, label="n").prepare(cache)
        assert manifest.rows == (100 if "part-0" in source else 300)


def test_sources_are_found(files: Path) -> None:
    (files / "_temporary").mkdir()
    (files / "_temporary" / "x.parquet").touch()
    (files / "_SUCCESS").touch()
    names = [f"part-{n}.parquet" for n in range(3)]
    for source in (files, str(files), f"{files}/*.parquet", [files / name for name in names]):
        data = Dataset.parquet(source, features=FEATURES, label="n")
        assert isinstance(data.rows.source, ParquetFiles)
        assert [Path(file.path).name for file in data.rows.source.files] == names


def hive(folder: Path, table: pa.Table, names: list[str]) -> Path:
    """The table in Hive's folders, as pyarrow writes them."""
    schema = pa.schema([table.schema.field(name) for name in names])
    ds.write_dataset(table, folder, format="parquet", partitioning=ds.partitioning(schema, flavor="hive"))
    return folder


def everything(data: Dataset, cache: Path) -> dict[int, list[Any]]:
    """All rows that a model sees, by their label."""
    found: dict[int, list[Any]] = {}
    manifest = data.prepare(cache)
    for part in range(len(manifest.train)):
        columns = open_partition(manifest, "train", part)
        inputs = columns.inputs if isinstance(columns.inputs, dict) else {"": columns.inputs}
        for row, label in enumerate(columns.targets.tolist()):
            found[label] = [array[row].tolist() for array in inputs.values()]
    return found


def test_folders_give_their_column(tmp_path: Path, cache: Path, table: pa.Table) -> None:
    """As Hive's, pyarrow's and Spark's writers make them; rows are those of one file with these columns."""
    years = pa.array((2011 + np.arange(300) % 3).tolist())
    words = pa.array(["a b", "c/d", None, "é=1"] * 75)
    whole = table.select(["n", "a"]).append_column("year", years).append_column("kind", words)
    folder = hive(tmp_path / "hive", whole, ["year", "kind"])
    assert (folder / "year=2011" / "kind=__HIVE_DEFAULT_PARTITION__").is_dir()

    def known(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch.schema.names == ["n", "a", "year", "kind"]
        assert batch.schema.types == [pa.int64(), pa.float64(), pa.int32(), pa.string()]
        return batch.set_column(3, "kind", batch["kind"].fill_null("none"))

    options: Any = {"features": {"year": "year", "x": ["a", "kind"]}, "label": "n", "encode": {"kind": "one-hot"}}
    each = dict(zip(range(300), zip(years.to_pylist(), words.to_pylist(), strict=True), strict=True))
    made = Dataset.parquet(folder, transform=known, **options)
    rows = everything(made, cache)
    vocabulary = made.prepare(cache).vocabularies["kind"]
    assert vocabulary == ["a b", "c/d", "none", "é=1"]
    for n, (year, x) in rows.items():
        assert (year, vocabulary[x[1:].index(1.0)]) == (each[n][0], each[n][1] or "none")
    assert len(rows) == 300
    with pytest.raises(DataError, match=r"column 'kind': 75 of its rows .*year=2011/kind=__HIVE_DEFAULT"):
        Dataset.parquet(folder, **options).prepare(cache)


def test_folders_below_a_directory_or_a_wildcard(tmp_path: Path, cache: Path, table: pa.Table) -> None:
    whole = table.select(["n", "a"]).append_column("year", pa.array((2011 + np.arange(300) % 3).tolist()))
    folder = hive(tmp_path / "run=7" / "hive", whole, ["year"])
    options: Any = {"features": ["a", "year"], "label": "n", "partitions": 2}
    plain = [(n, [[a, year]]) for n, a, year in zip(*whole.to_pydict().values(), strict=True)]
    wanted = {n: np.array(x[0], np.float32).tolist() for n, x in plain}
    for source, years in ((folder, 3), (f"{folder}/year=*", 3), (f"{folder}/*/*.parquet", 3), (f"{folder}/year=*3", 1)):
        rows = everything(Dataset.parquet(source, **options), cache)
        assert rows == {n: [x] for n, x in wanted.items() if years == 3 or x[1] == 2013}
        seen: Any = Dataset.parquet(source, **options).rows.source
        assert seen.schema().names == ["n", "a", "year"]  # of `run=7`, which is above, nothing
    inside = folder / "year=2011"
    for source in (inside, f"{inside}/*.parquet", next(inside.iterdir())):
        with pytest.raises(DataError, match="no column 'year'"):
            Dataset.parquet(source, **options)
    memory = fsspec.filesystem("memory")
    for path in folder.rglob("*.parquet"):
        memory.pipe(f"/folders/{path.relative_to(folder)}", path.read_bytes())
    assert everything(Dataset.parquet("memory://folders", **options), cache) == {n: [x] for n, x in wanted.items()}


def test_the_columns_of_folders_are_part_of_what_names_an_entry(tmp_path: Path, table: pa.Table, cache: Path) -> None:
    folder = hive(tmp_path / "hive", table.select(["n", "a", "b"]), ["b"])
    files = sorted(folder.rglob("*.parquet"))
    one, other = (Dataset.parquet(source, features=["a"], label="n") for source in (folder, files))
    assert one.prepare(cache).key != other.prepare(cache).key
    assert one.prepare(cache).digest == other.prepare(cache).digest  # `b` is not read
    copy = pickle.loads(pickle.dumps(one))
    assert copy.prepare(cache).key == one.prepare(cache).key


def test_a_column_of_the_file_comes_before_one_of_its_folder(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), tmp_path / "x=5" / "a.parquet")
    rows = everything(Dataset.parquet(tmp_path, features=["x"], label="y", partitions=1), cache)
    assert rows == {0: [[1.0]], 1: [[2.0]]}


def test_files_that_lack_a_column(tmp_path: Path, cache: Path) -> None:
    """With a transform they may: it sees null. In whatever file a column comes first, and in whatever order."""
    tables = [
        pa.table({"y": [0, 1], "none": pa.nulls(2)}), pa.table({"a": [1.5, 2.5], "y": [2, 3], "none": ["x", "y"]}),
        pa.table({"y": [4], "b": [7], "a": [3.5]}),
    ]  # fmt: skip
    for number, each in enumerate(tables):
        pq.write_table(each, tmp_path / f"{number}.parquet")
    seen = []

    def filled(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        a, b = (batch[name].fill_null(-1) for name in "ab")
        return pa.RecordBatch.from_arrays([a, b, batch["y"]], names=["a", "b", "y"])

    options: Any = {"features": ["a", "b"], "label": "y", "partitions": 1}
    rows = everything(Dataset.parquet(tmp_path, transform=filled, **options), cache)
    assert rows == {0: [[-1, -1]], 1: [[-1, -1]], 2: [[1.5, -1]], 3: [[2.5, -1]], 4: [[3.5, 7]]}
    columns = pa.schema({"y": pa.int64(), "none": pa.string(), "a": pa.float64(), "b": pa.int64()})
    assert all(schema.equals(columns) for schema in seen)
    with pytest.raises(DataError, match=r"0\.parquet .*columns 'a', 'b'"):
        Dataset.parquet(tmp_path, **options)
    for encode in ({}, {"none": "one-hot"}):
        with pytest.raises(DataError, match=r"2\.parquet has no column 'none'"):
            mine: Any = {"features": ["none"], "label": "y", "encode": encode or {"none": ["x", "y"]}}
            Dataset.parquet([tmp_path / "1.parquet", tmp_path / "2.parquet"], **mine).prepare(cache)
    with pytest.raises(DataError, match=r"0\.parquet has no column 'a'"):
        Dataset.parquet([tmp_path / "1.parquet", tmp_path / "0.parquet"], features="a", label="y").prepare(cache)
    strict = pa.schema([pa.field("a", pa.float64(), nullable=False), pa.field("y", pa.int64())])
    pq.write_table(pa.table({"a": [1.5], "y": [9]}, schema=strict), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"0\.parquet has no column 'a'"):
        Dataset.parquet(tmp_path, transform=filled, **options).prepare(cache)


def test_the_manifest_is_json_that_can_be_copied(cache: Path, files: Path, tmp_path: Path) -> None:
    manifest = Dataset.parquet(files, features=FEATURES, label="n", standardize=True, validation=0.2).prepare(cache)
    manifest.save(tmp_path / "copy.json")
    assert Manifest.load(tmp_path / "copy.json") == manifest
    assert Manifest.load(Path(manifest.path) / "manifest.json") == manifest


def test_the_digest_is_of_the_content(cache: Path, table: pa.Table) -> None:
    def digest(data: pa.Table, **options: Any) -> str:
        return Dataset.arrow(data, **({"features": FEATURES, "label": "n"} | options)).prepare(cache).digest

    same_rows = digest(pa.concat_tables([table.slice(0, 7), table.slice(7)]))
    assert digest(table) == same_rows
    others = [
        digest(table.slice(1)),
        digest(table, features=["b", "a", "flag"]),
        digest(table, partitions=4),
        digest(table, validation=0.3),
        digest(table, validation=0.3, seed=1),
        digest(table, standardize=True),
        digest(table, assign="contiguous"),
    ]
    assert len({same_rows, *others}) == 8


def test_a_notebook_shows_the_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a<b": [1.0, None], "city": ["x", "y"], "late": [0, 1], "test": [True, False], "id": [3, 4]})
    frame.to_parquet(tmp_path / "rows.parquet")
    options: dict[str, Any] = {"features": ["a<b", "city"], "label": "late", "validation": "test", "key": "id"}
    options |= {"encode": {"city": "one-hot"}, "impute": {"a<b": "mean"}, "standardize": True, "partitions": 2}
    data = Dataset.parquet(tmp_path / "rows.parquet", **options)
    expected = [
        *("column", "use", "type", "encoding"),
        *("a&lt;b", "feature", "float64", "standardized, missing: mean"),
        *("city", "feature", "string", "one-hot"),
        *("late", "label", "int64", ""),
        *("test", "validation", "", ""),
        *("id", "key", "", ""),
    ]
    title = f"<p>Dataset of {tmp_path}/rows.parquet, partitions=2, with validation</p>"
    assert data._repr_html_().startswith(title) and cells(data) == expected
    (tmp_path / "rows.parquet").unlink()
    assert cells(data) == expected, "no file is read"
    assert cells(pickle.loads(pickle.dumps(Dataset.pandas(frame, **options))))[::4] == expected[::4]


def test_a_notebook_shows_arrays_and_many_columns() -> None:
    data = Dataset.numpy(np.zeros((8, 3, 4), np.float32), np.zeros(8, np.int64), validation=0.25)
    assert "arrays in memory of 8 rows, partitions=8, with validation of 0.25 of the rows" in data._repr_html_()
    assert cells(data)[4:] == ["inputs", "feature", "float32 [3, 4]", "", "targets", "label", "int64", ""]
    wide = Dataset.numpy({f"x{n}": np.zeros(8) for n in range(40)}, transform=lambda batch: batch)
    assert "without validation" in wide._repr_html_()
    assert cells(wide)[-8:] == ["x29", "feature", "", "", "… and 10 more", "", "", ""]


def test_a_notebook_shows_a_data_frame_of_spark(tmp_path: Path) -> None:
    there = MaterializedSource(str(tmp_path))
    options = BuildOptions(columns(features=["a"], label=None, weight=None, validation=None))
    data = Dataset(DataFrameSource((), options, None, there, ({"a": "array<double>"},), None))
    assert f"Dataset of Spark DataFrame for {tmp_path}, partitions=8" in data._repr_html_()
    assert cells(data)[4:] == ["a", "feature", "array&lt;double&gt;", ""]
    assert Dataset(there)._repr_html_().startswith(f"<p>Dataset at {tmp_path}</p>")


def cells(data: Dataset) -> list[str]:
    return re.findall(r"<t[hd]>(.*?)</t[hd]>", data._repr_html_())

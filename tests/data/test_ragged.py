"""ragged=: rows of any length, from every source to the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopyard as hy
from hopyard.core.runs.order import shard
from hopyard.data.manifest import Manifest
from hopyard.data.new_rows import apply
from hopyard.data.partitions.cache import find_or_make
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.partitions.supply import serve, supply
from hopyard.data.ragged import Ragged, joined
from hopyard.errors import DataError, SpecError
from hopyard.feeds.local_rows import blocks_of
from rows import is_aligned

ROWS = 60
OPTIONS: dict[str, Any] = {
    "features": {"ids": "ids", "age": ["age"]}, "label": "n", "ragged": ["ids"], "partitions": 2, "validation": 0.3,
}  # fmt: skip


def tokens(n: int) -> list[int]:
    """The tokens of row n: from 1 to 7 of them, none of them 0."""
    return [1 + (n * 31 + at) % 97 for at in range(1 + n * 3 % 7)]


@pytest.fixture
def table() -> pa.Table:
    n = list(range(ROWS))
    return pa.table({
        "n": n, "ids": [tokens(row) for row in n], "age": [row * 0.5 for row in n],
        "scores": [[float(token) for token in tokens(row)] for row in n], "user": [f"user {row}" for row in n],
        "text": [" ".join(map(str, tokens(row))) for row in n],
    })  # fmt: skip


def batches(manifest: Manifest, size: int = 8, shuffle: int | None = 3, **more: Any) -> list[Any]:
    parts = [("train", at) for at in range(len(manifest.train))]
    parts += [("validate", at) for at in range(len(manifest.validate))]
    found = []
    for kind, at in parts:
        for batch in PartitionLoader(open_partition(manifest, kind, at), size, shuffle, **more):  # type: ignore[arg-type]
            found.append(replace(batch, targets=batch.targets.copy()))  # its memory is used again
    return found


def check(batch: Any, name: str = "ids", mask: str = "ids_mask", longest: int = 99) -> list[int]:
    """Compare the rows of a batch with their numbers, which are its labels. Return the numbers."""
    numbers: list[int] = batch.targets.tolist()
    rows = [tokens(n)[:longest] for n in numbers]
    width = max(map(len, rows))
    assert batch.inputs[name].tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert batch.inputs[mask].tolist() == [[True] * len(row) + [False] * (width - len(row)) for row in rows]
    assert batch.inputs[mask].dtype == bool and is_aligned(batch.inputs[name]) and is_aligned(batch.inputs[mask])
    return numbers


def tokenize(batch: Any) -> Any:
    ids = [[int(word) for word in text.split()] for text in batch["text"].to_pylist()]
    return batch.append_column("ids", pa.array(ids))


@pytest.mark.parametrize(("key", "assign"), [(None, "round_robin"), (None, "contiguous"), ("user", "round_robin")])
@pytest.mark.parametrize("standardize", [False, True], ids=["written once", "staged"])
def test_batches_are_padded_to_their_longest_row(
    table: pa.Table, cache: Path, key: Any, assign: str, standardize: bool
) -> None:
    data = hy.Dataset.arrow(table, **OPTIONS, key=key, assign=assign, standardize=standardize)  # type: ignore[arg-type]
    manifest = data.prepare(cache)
    shapes = {name: (info.shape, info.dtype) for name, info in manifest.inputs.items()}
    assert shapes == {"ids": ((None,), "int64"), "ids_mask": ((None,), "bool"), "age": ((1,), "float32")}
    found = batches(manifest)
    assert sorted(n for batch in found for n in check(batch)) == list(range(ROWS))
    assert len({batch.inputs["ids"].shape[1] for batch in batches(manifest, 1)}) > 3
    assert [check(batch) for batch in batches(manifest)] == [batch.targets.tolist() for batch in batches(manifest)]
    assert manifest.bytes == sum(
        file.stat().st_size - 256 for file in Path(manifest.path).rglob("*.npy")
    )  # 256: the header of a file


def test_equal_rows_of_every_source_are_equal_data(table: pa.Table, tmp_path: Path, cache: Path) -> None:
    for number in range(3):
        pq.write_table(table.slice(number * 20, 20), tmp_path / f"{number}.parquet", row_group_size=7)
    order = np.random.default_rng(0).permutation(ROWS)
    options = {**OPTIONS, "key": "user"}
    frame = table.to_pandas()  # whose lists are arrays of NumPy
    data = [
        hy.Dataset.arrow(table, **options),
        hy.Dataset.arrow(iter(table.take(order).to_batches(max_chunksize=7)), **options),
        hy.Dataset.parquet([str(tmp_path / f"{number}.parquet") for number in (2, 0, 1)], **options),
        hy.Dataset.pandas(frame, **options),
        hy.Dataset.pandas(frame.assign(ids=frame["ids"].map(list)), **options),
        hy.Dataset.arrow(table.drop_columns("ids"), transform=tokenize, **options),
        hy.Dataset.arrow(table.set_column(1, "ids", table["ids"].cast(pa.large_list(pa.int64()))), **options),
    ]
    manifests = [each.prepare(cache) for each in data]
    assert len({manifest.digest for manifest in manifests}) == 1
    first = [batch.inputs["ids"].tobytes() for batch in batches(manifests[0])]
    assert all([batch.inputs["ids"].tobytes() for batch in batches(other)] == first for other in manifests[1:])


def test_tensors_with_an_order_of_their_axes(cache: Path) -> None:
    """As `from_numpy_ndarray` makes them. Bug: PyArrow could not make an empty batch of such a column."""
    ids = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(4, 3))
    manifest = hy.Dataset.arrow(pa.table({"ids": ids}), features="ids", ragged="ids", partitions=1).prepare(cache)
    (batch,) = PartitionLoader(open_partition(manifest, "train", 0), 4)
    assert batch.inputs["ids"].tolist() == np.arange(12).reshape(4, 3).tolist()


def test_items_of_any_length(cache: Path) -> None:
    items = [({"ids": np.array(tokens(n))}, n) for n in range(ROWS)]
    manifest = hy.Dataset.torch(items, ragged="ids", partitions=1).prepare(cache)
    assert [n for batch in batches(manifest, shuffle=None) for n in check(batch)] == list(range(ROWS))


@pytest.mark.parametrize("key", [None, "user"])
def test_rows_are_cut(table: pa.Table, cache: Path, key: Any) -> None:
    def cut(max_length: int | None) -> Manifest:
        return hy.Dataset.arrow(table, **OPTIONS, key=key, max_length=max_length).prepare(cache)

    assert sorted(n for batch in batches(cut(3)) for n in check(batch, longest=3)) == list(range(ROWS))
    assert sorted(n for batch in batches(cut((1 << 64) - 1)) for n in check(batch)) == list(range(ROWS))
    assert len({cut(length).digest for length in (1, 3, None)}) == 3  # also where rows go by the names of whole rows
    (part,) = batches(hy.Dataset.arrow(table, **{**OPTIONS, "partitions": 1, "validation": 0.0}).prepare(cache), 99)
    new = apply(cut(3), table.slice(0, 9))
    assert check(next(iter(PartitionLoader(new, 9))), longest=3) == list(range(9)) and part.inputs["ids"].shape[1] == 7


def test_validation_rows_are_cut_as_training_rows(table: pa.Table) -> None:
    whole = hy.Dataset.arrow(table, **{**OPTIONS, "validation": 0.0})
    with pytest.raises(SpecError, match="with other columns: max_length None, here 3"):
        hy.Dataset.arrow(table, **{**OPTIONS, "validation": whole}, max_length=3)


def test_masks_have_the_names_that_the_model_wants(table: pa.Table, cache: Path) -> None:
    features = {"input_ids": "ids", "scores": "scores"}
    options = {**OPTIONS, "features": features, "ragged": {"ids": "attention_mask", "scores": None}}
    manifest = hy.Dataset.arrow(table, **options).prepare(cache)
    for batch in batches(manifest):
        check(batch, "input_ids", "attention_mask")
        assert list(batch.inputs) == ["input_ids", "attention_mask", "scores"] == list(manifest.inputs)
        assert batch.inputs["scores"].dtype == np.float32
        assert np.array_equal(batch.inputs["scores"], batch.inputs["input_ids"])
    single = hy.Dataset.arrow(table, **{**OPTIONS, "features": "ids"}).prepare(cache)
    assert list(single.inputs) == ["ids", "ids_mask"]
    items = [(np.array(tokens(n)), n) for n in range(9)]
    (batch,) = batches(hy.Dataset.torch(items, ragged={"inputs": None}, partitions=1).prepare(cache), 9)
    assert batch.inputs.shape == (9, 7)
    manifest = hy.Dataset.torch(items, ragged="inputs", partitions=1).prepare(cache)
    (batch,) = batches(manifest, 9)
    assert list(batch.inputs) == list(manifest.inputs) and check(batch, "inputs", "inputs_mask")


def test_members_of_a_gang_pad_their_own_rows(table: pa.Table, cache: Path) -> None:
    manifest = hy.Dataset.arrow(table, **OPTIONS).prepare(cache)
    whole = batches(manifest)
    members = [batches(manifest, member=(rank, 3)) for rank in range(3)]
    for at, batch in enumerate(whole):
        for rank in range(3):
            first, end = shard(batch.rows, 3, rank)
            assert members[rank][at].targets.tolist() == batch.targets.tolist()[first:end]
            if end > first:
                check(members[rank][at])


def test_loops_over_a_whole_partition_get_one_array(table: pa.Table, cache: Path) -> None:
    """As Keras' compiled loops take it."""
    manifest = hy.Dataset.arrow(table, **OPTIONS).prepare(cache)
    loader = PartitionLoader(open_partition(manifest, "train", 0), 8, 3)
    whole = loader.columns.inputs
    assert whole["ids"].shape == whole["ids_mask"].shape == (loader.rows, 7)
    start = 0
    for batch in loader:
        rows = loader.order[start : start + batch.rows]
        width = batch.inputs["ids"].shape[1]
        assert (
            np.array_equal(whole["ids"][rows][:, :width], batch.inputs["ids"])
            and not whole["ids"][rows][:, width:].any()
        )
        start += batch.rows


def test_partitions_are_brought_to_other_hosts(
    table: pa.Table, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = hy.Dataset.arrow(table, **OPTIONS).prepare(cache)
    monkeypatch.setattr("hopyard.data.partitions.mapped.default_root", lambda: tmp_path / "there")
    there = msgspec.structs.replace(manifest, path="/nowhere/" + manifest.key)
    supply(there, lambda name: serve(manifest, name))
    for ours, theirs in zip(batches(manifest), batches(there), strict=True):
        assert ours.inputs["ids"].tobytes() == theirs.inputs["ids"].tobytes()


@pytest.mark.parametrize("name", ["inputs-0.npy", "inputs-0-offsets.npy"])
def test_a_damaged_file_is_found(table: pa.Table, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    data = hy.Dataset.arrow(table, **OPTIONS)
    manifest = data.prepare(cache)
    path = Path(manifest.path) / "train-00001" / name
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr("hopyard.data.npy._VERIFIED", {})  # as in another process
    with pytest.raises(RuntimeError, match="made again"):
        find_or_make(cache, manifest.key, lambda empty: (_ for _ in ()).throw(RuntimeError("made again")), 1 << 30)


def test_programs_read_batches_and_no_feed(table: pa.Table) -> None:
    with pytest.raises(SpecError, match=r"ragged= cannot be fed: .*ctx\.batches"):
        next(iter(blocks_of(hy.Dataset.arrow(table, **OPTIONS))))


def test_new_rows_are_encoded_as_those_before(table: pa.Table, cache: Path) -> None:
    texts = table.drop_columns("ids")
    manifest = hy.Dataset.arrow(texts, transform=tokenize, **OPTIONS).prepare(cache)
    for data in (table, table.to_pandas()):
        assert apply(manifest, data).inputs["ids"].flat().tolist() == [
            token for n in range(ROWS) for token in tokens(n)
        ]
    columns = apply(manifest, texts.to_pandas(), tokenize, targets=False)
    assert columns.inputs["ids"].flat().tolist() == [token for n in range(ROWS) for token in tokens(n)]
    matrix = {"ids": np.arange(1, 7, dtype=np.int32).reshape(2, 3), "age": np.zeros(2)}  # rows that have one length
    assert apply(manifest, matrix, targets=False).inputs["ids"].padded()[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    bad = pa.table({"ids": [[1], [], [2, None], None, [3]], "age": [0.0] * 5})
    with pytest.raises(DataError, match=r"'ids': 3 of its rows are empty, or hold null.*first is row 1"):
        apply(manifest, bad, targets=False)
    kept = apply(manifest, bad, targets=False, drop_invalid=True)
    assert kept.inputs["ids"].flat().tolist() == [1, 3] and kept.places is not None and kept.places.tolist() == [0, 4]
    with pytest.raises(DataError, match=r"'ids' .* must have lists of numbers, has type int64"):
        apply(manifest, pa.table({"ids": [1], "age": [0.0]}), targets=False)


def lists(values: list[Any], kind: Any = None) -> Any:
    return pa.array([[1], [2, 3], *values], kind)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ragged": ["idz"]}, SpecError, "ragged names 'idz', which is no feature; did you mean 'ids'"),
        ({"ragged": ["n"]}, SpecError, "ragged names 'n', a label"),
        ({"ragged": [3.5]}, SpecError, r"ragged\[0\] = 3\.5"),
        ({"ragged": {"ids": 7}}, SpecError, r"ragged\['ids'\] must be the name of its mask, .*got 7"),
        ({"ragged": {"ids": "age"}}, SpecError, "'age' would be two inputs"),
        ({"features": ["ids", "age"]}, SpecError, r"'ids', which is in the list \['ids', 'age'\]"),
        ({"standardize": ["ids"]}, SpecError, "ragged names 'ids', which standardize names too"),
        ({"encode": {"ids": "index"}}, SpecError, "ragged names 'ids', which encode names too"),
        ({"impute": {"ids": 0}}, SpecError, "ragged names 'ids', which impute names too"),
        ({"max_length": 0}, SpecError, "max_length must be an integer >= 1, got 0"),
        ({"ragged": None, "max_length": 3}, SpecError, "max_length = 3 cuts the rows of columns that ragged= names"),
        ({"label": "ids", "features": "age", "ragged": "ids"}, SpecError, "ragged names 'ids', a label"),
    ],
)
def test_wrong_arguments(table: pa.Table, change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        hy.Dataset.arrow(table, **{**OPTIONS, **change})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (pa.array([["a"]] * 4), "'ids' of .* has type list<item: string>: its rows must be lists"),
        (pa.array([[True]] * 4), "has type list<item: bool>"),
        (pa.array([[[1]]] * 4), "has type list<item: list<item: int64>>"),
        (pa.array([1, 2, 3, 4]), "has type int64"),
        (pa.array([[None]] * 4), "all its values are null"),
        (lists([[], [1]]), "'ids': 1 of its rows are empty, .*the first is row 2"),
        (lists([None, [1]]), "'ids': 1 of its rows are empty, .*the first is row 2"),
        (lists([[1], [5, None]]), "'ids': 1 of its rows .*null.*the first is row 3"),
        (lists([[0.5, np.nan], [np.inf]]), "'ids': 2 of its rows .*the first is row 2"),
        (lists([[1e39], [0.5]]), "'ids': 1 of its rows .*the first is row 2"),
    ],
)
def test_bad_rows_are_named(cache: Path, ids: Any, message: str) -> None:
    rows = pa.table({"ids": ids, "age": [0.0] * 4, "n": [0, 1, 0, 1]})
    with pytest.raises(DataError, match=message):
        hy.Dataset.arrow(rows, **{**OPTIONS, "validation": 0.0}).prepare(cache)


def test_the_advice_for_bad_rows_works(cache: Path) -> None:
    rows = pa.table({"ids": lists([[], [5, None], None]), "age": [0.0] * 5, "n": [0] * 5})
    options = {**OPTIONS, "validation": 0.0, "partitions": 1}
    with pytest.raises(DataError) as caught:
        hy.Dataset.arrow(rows, **options).prepare(cache)
    import numpy
    import pyarrow

    advice = str(caught.value).rpartition("transform=")[2]
    transform = eval(advice, {"numpy": numpy, "pyarrow": pyarrow})
    manifest = hy.Dataset.arrow(rows, transform=transform, **options).prepare(cache)
    assert manifest.rows == 2


def test_a_transform_keeps_one_type(table: pa.Table, cache: Path) -> None:
    """Bug of others: the width was that of the first batch, or the type that of its first row."""

    def whole_first(batch: Any) -> Any:
        ids = [[float(token) for token in row] for row in batch["ids"].to_pylist()]
        kind = pa.list_(pa.int64()) if batch["n"][0].as_py() < 20 else pa.list_(pa.float64())
        return batch.set_column(1, "ids", pa.array(ids, pa.list_(pa.float64())).cast(kind))

    reader = hy.Dataset.arrow(iter(table.to_batches(max_chunksize=20)), transform=whole_first, **OPTIONS)
    with pytest.raises(DataError, match=r"'ids' .*list<item: double>, before it had list<item: int64>"):
        reader.prepare(cache)


numbers = st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=6), max_size=12)


@settings(max_examples=30)
@given(numbers, st.data())
def test_ragged_rows_are_chosen_as_those_of_a_list(rows: list[list[int]], data: Any) -> None:
    lengths = np.array([len(row) for row in rows], np.int64)
    made = Ragged.of(np.array([value for row in rows for value in row], np.int64), lengths)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    chosen = made.take(np.array(order, np.int64))[1:]
    wanted = [rows[at] for at in order][1:]
    assert chosen.flat().tolist() == [value for row in wanted for value in row]
    assert len(chosen) == len(wanted) and chosen.nbytes == 8 * (sum(map(len, wanted)) + len(wanted))
    padded, mask = chosen.padded()
    assert [row[keep].tolist() for row, keep in zip(padded, mask, strict=True)] == wanted and not padded[~mask].any()
    both = joined([chosen, made.cut(2)], "int64")
    assert [both[at : at + 1].flat().tolist() for at in range(len(both))] == wanted + [row[:2] for row in rows]

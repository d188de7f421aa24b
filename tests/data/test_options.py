"""Names and values of NumPy and pandas, wherever Python's may stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.partitions.prepare import LocalRows
from hopyard.errors import SpecError

FRAME = pd.DataFrame({"a": np.arange(40.0), "b": ["x", "y"] * 20, "c": [1, 2] * 20, "y": [0, 1] * 20})
PLAIN: dict[str, Any] = {"features": ["a", "c"], "label": "y", "partitions": 2}


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"features": np.array(["a", "c"])}, {}),
        ({"features": FRAME.columns.difference(["b", "y"])}, {}),
        ({"features": [np.str_("a"), np.str_("c")], "label": np.str_("y")}, {}),
        ({"features": {np.str_("inputs"): pd.Series(["a", "c"])}, "label": {np.str_("targets"): "y"}}, {}),
        ({"weight": np.str_("c"), "key": np.array(["a"])}, {"weight": "c", "key": ["a"]}),
        ({"partitions": np.int64(2), "seed": np.int32(0), "cache_bytes": np.int64(1 << 30)}, {}),
        ({"standardize": pd.Index(["a"])}, {"standardize": ["a"]}),
        ({"standardize": np.True_}, {"standardize": True}),
        ({"assign": np.str_("contiguous"), "validation": np.float32(0.5)}, {"assign": "contiguous", "validation": 0.5}),
        ({"encode": {np.str_("c"): np.array([1, 2])}}, {"encode": {"c": [1, 2]}}),
        ({"encode": {"c": pd.Index([1, 2])}}, {"encode": {"c": [1, 2]}}),
        ({"encode": {"c": [np.int64(1), np.int64(2)]}}, {"encode": {"c": [1, 2]}}),
        ({"encode": {"c": ("index", np.array([2, 1]))}}, {"encode": {"c": ("index", [2, 1])}}),
        ({"encode": {"c": np.str_("one-hot")}}, {"encode": {"c": "one-hot"}}),
    ],
)
def test_values_of_numpy_and_pandas_are_as_python_s(tmp_path: Path, given: Any, plain: Any) -> None:
    one, other = (Dataset.pandas(FRAME, **{**PLAIN, **options}) for options in (given, plain))
    assert isinstance(one.rows, LocalRows) and isinstance(other.rows, LocalRows)
    assert one.rows.options == other.rows.options
    first, second = one.prepare(tmp_path), other.prepare(tmp_path)
    assert (first.key, first.digest) == (second.key, second.digest)


def test_the_columns_of_a_frame_may_have_numbers_for_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((20, 4)))
    named = frame.rename(columns=str)
    one = Dataset.pandas(frame, features=range(3), label=3, standardize=[np.int64(1)], partitions=2)
    other = Dataset.pandas(named, features=["0", "1", "2"], label="3", standardize=["1"], partitions=2)
    assert one.prepare(tmp_path).digest == other.prepare(tmp_path).digest
    kinds = pd.DataFrame({0: ["x", "y"] * 10, 1: rng.standard_normal(20)})
    encoded = Dataset.pandas(kinds, features=kinds.columns, encode={0: "one-hot"}, partitions=2).prepare(tmp_path)
    assert encoded.vocabularies == {"0": ["x", "y"]}


def test_validation_names_a_column_by_its_number_where_there_is_one(tmp_path: Path) -> None:
    frame = pd.DataFrame({0: np.arange(8.0), 1: [True, False] * 4, 4: [True] + [False] * 7})
    named = frame.rename(columns=str)
    for number in (1, 4):
        one = Dataset.pandas(frame, features=[0], validation=np.int64(number), partitions=1).prepare(tmp_path)
        other = Dataset.pandas(named, features=["0"], validation=str(number), partitions=1).prepare(tmp_path)
        assert one.digest == other.digest and one.validate
    assert not Dataset.pandas(frame, features=[1], validation=0, partitions=1).prepare(tmp_path).validate
    for wrong in (2, -1, True, np.True_):
        with pytest.raises(SpecError, match="validation must be a fraction in"):
            Dataset.pandas(frame, features=[0], validation=wrong)


def test_files_may_be_named_by_an_array(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path in paths:
        pq.write_table(pa.Table.from_pandas(FRAME), path)
    for source in (np.array([str(path) for path in paths]), pd.Series(paths), np.str_(tmp_path)):
        assert Dataset.parquet(source, **PLAIN).prepare(tmp_path / "cache").rows == 80


def test_a_tuple_of_two_texts_is_no_pair() -> None:
    with pytest.raises(SpecError, match=r'encode\[\'b\'\] must be "one-hot", "index", a list of values'):
        Dataset.pandas(FRAME, features=["b"], encode={"b": ("index", "x")})


def test_a_label_is_no_feature_unless_all_features_are_labels(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="label names 'y'"):
        Dataset.pandas(FRAME, features=["a", "c", "y"], label="y")
    with pytest.raises(SpecError, match="label names 'c'"):
        Dataset.pandas(FRAME, features=["a", "c"], label=["y", "c"])
    Dataset.pandas(FRAME, features={"x": ["a"], "z": "c"}, label=["y", "c"])  # a decoder
    same = Dataset.pandas(FRAME, features=["a", "c"], label=["c", "a"], partitions=2).prepare(
        tmp_path
    )  # an autoencoder
    assert same.inputs["inputs"].shape == same.targets["targets"].shape == (2,)


@pytest.mark.parametrize("name", ["features", "label", "key"])
@pytest.mark.parametrize("given", [FRAME["a"], FRAME["b"], FRAME["y"], FRAME[["a", "c"]], FRAME["a"].to_numpy()])
def test_values_are_no_names(name: str, given: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be .*got values, a "):
        Dataset.pandas(FRAME, **{**PLAIN, name: given})
    with pytest.raises(SpecError, match=rf"^{name}\[0\] must be the name"):
        Dataset.pandas(FRAME, **{**PLAIN, name: [given]})

"""Missing values that are filled, and the category of other values: what training sees, and what predicting sees."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hopyard as hy
from holed_rows import OPTIONS, ROWS, frame
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.new_rows import apply
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import DataError, SpecError


def rows_of(manifest: Manifest) -> dict[int, Any]:
    """Label → the row's inputs, of all partitions."""
    found = {}
    for kind, parts in (("train", manifest.train), ("validate", manifest.validate)):
        for number in range(len(parts)):
            columns = open_partition(manifest, kind, number)  # type: ignore[arg-type]
            inputs = columns.inputs
            found.update({label: np.array(inputs[row]) for row, label in enumerate(columns.targets.tolist())})
    return found


def by_hand(rows: pd.DataFrame, fitted: pd.DataFrame) -> Any:
    """What scikit-learn's SimpleImputer and OneHotEncoder would make of `rows`, fitted on `fitted`, written with
    pandas."""
    counts = fitted["city"].value_counts()
    city = rows["city"].fillna(counts.index[0])
    kept = sorted(counts.index[counts >= 10])
    one_hot = [(city == name).to_numpy(float) for name in kept]
    age = rows["age"].fillna(math.fsum(fitted["age"].dropna()) / fitted["age"].count()).to_numpy()
    kids = rows["kids"].fillna(1).to_numpy(float)
    return np.stack([age, kids, *one_hot, 1 - np.sum(one_hot, axis=0)], axis=1).astype(np.float32)


def test_they_are_what_pandas_gives_when_fitted_on_training_rows(tmp_path: Path) -> None:
    rows = frame()
    manifest = Dataset.pandas(rows, **OPTIONS).prepare(tmp_path)
    wanted = by_hand(rows, rows[~rows["held"]])
    found = rows_of(manifest)
    np.testing.assert_allclose(np.stack([found[n] for n in range(ROWS)]), wanted, rtol=1e-6)
    assert manifest.vocabularies == {"city": ["bern", "oslo", "rome"]}
    assert manifest.inputs["inputs"].shape == (6,)
    assert manifest.fills["city"] == "oslo" and manifest.fills["kids"] == 1
    mean = rows.loc[~rows["held"], "age"].mean()
    assert manifest.fills["age"] == pytest.approx(mean) != pytest.approx(rows["age"].mean())


def test_they_are_the_same_in_predict(tmp_path: Path) -> None:
    rows, more = frame(), frame(60, seed=7)
    manifest = Dataset.pandas(rows, **OPTIONS).prepare(tmp_path)
    again = Manifest.load(Path(manifest.path) / "manifest.json")  # from JSON, as a saved model has it
    trained = rows_of(manifest)
    np.testing.assert_array_equal(apply(again, rows).inputs, np.stack([trained[n] for n in range(ROWS)]))
    wanted = by_hand(more, rows[~rows["held"]])
    np.testing.assert_allclose(apply(again, more).inputs, wanted, rtol=1e-6)
    alone = [{"age": None, "kids": None, "city": None}]
    mean = manifest.fills["age"]
    for nothing in (
        alone,
        pd.DataFrame({"age": [np.nan], "kids": [np.nan], "city": [None]}),
        pa.Table.from_pylist(alone),
    ):
        np.testing.assert_array_equal(apply(again, nothing).inputs, np.array([[mean, 1, 0, 1, 0, 0]], np.float32))
    new = [{"age": 1.0, "kids": 2, "city": "atlantis"}, {"age": 1.0, "kids": 2, "city": "village 0"}]
    np.testing.assert_array_equal(apply(again, new).inputs, np.array([[1, 2, 0, 0, 0, 1]] * 2, np.float32))


def test_rows_and_batches_do_not_matter(tmp_path: Path) -> None:
    rows = pa.Table.from_pandas(frame(), preserve_index=False)
    whole = Dataset.arrow(rows, **OPTIONS).prepare(tmp_path)
    cut = Dataset.arrow(rows.to_batches(max_chunksize=7), **OPTIONS).prepare(tmp_path / "other")
    assert cut.digest == whole.digest and cut.path != whole.path
    shuffled = rows.take(np.random.default_rng(1).permutation(ROWS))
    keyed = [Dataset.arrow(table, key="n", **OPTIONS).prepare(tmp_path) for table in (rows, shuffled)]
    assert keyed[0].digest == keyed[1].digest
    assert keyed[0].fills == whole.fills


def test_single_columns_and_indexes(tmp_path: Path) -> None:
    rows = frame()
    options = {
        **OPTIONS,
        "features": {"age": "age", "city": "city"},
        "impute": {"age": "mean", "city": ("constant", "?")},
    }
    options["encode"] = {"city": hy.Categories("index")}
    manifest = Dataset.pandas(rows, **options, standardize=["age"]).prepare(tmp_path)
    columns = apply(manifest, rows)
    train = rows[~rows["held"]]
    values = sorted({"?", *train["city"].dropna()})
    assert manifest.vocabularies["city"] == values and "paris" not in values
    codes = [values.index(city) if city in values else len(values) for city in rows["city"].fillna("?")]
    assert columns.inputs["city"].tolist() == codes and len(values) in codes
    ages = (rows["age"] - train["age"].mean()) / train["age"].std(ddof=0)
    np.testing.assert_allclose(columns.inputs["age"], ages.fillna(0.0), rtol=1e-5, atol=1e-6)
    assert columns.inputs["age"].dtype == np.float32


def test_other_values_without_missing_ones_and_missing_ones_without_others(tmp_path: Path) -> None:
    rows = frame()
    full = rows.dropna(subset=["city"])
    options = {**OPTIONS, "features": ["city"], "impute": None}
    listed = {**options, "encode": {"city": hy.Categories(values=["rome", "oslo"])}}
    found = apply(Dataset.pandas(full, **listed).prepare(tmp_path), full).inputs
    np.testing.assert_array_equal(found[:, 2], (~full["city"].isin(["rome", "oslo"])).astype(np.float32))
    np.testing.assert_array_equal(found[:, 0], (full["city"] == "rome").astype(np.float32))
    strict = {**options, "encode": {"city": "one-hot"}, "impute": {"city": ("constant", "nowhere")}}
    manifest = Dataset.pandas(full, **strict).prepare(tmp_path)
    assert {"nowhere", "paris"} < set(manifest.vocabularies["city"])  # no row lacks its city, one may when predicting
    place = manifest.vocabularies["city"].index("nowhere")
    assert apply(manifest, [{"city": None}]).inputs[0].tolist().index(1.0) == place
    with pytest.raises(DataError, match=r"'atlantis' is not among .*hy\.Categories\(…\)"):
        apply(manifest, [{"city": "atlantis"}])


def test_the_fill_of_a_rare_value_is_the_other_category(tmp_path: Path) -> None:
    rows = pd.DataFrame({"c": ["a"] * 5 + ["b"] * 2 + [None] * 2, "y": range(9)})
    options: Any = {"features": "c", "label": "y", "partitions": 1, "impute": {"c": ("constant", "z")}}
    for frequency, values in ((1, ["a", "b", "z"]), (2, ["a", "b", "z"]), (3, ["a"])):
        encode = {"c": hy.Categories("index", min_frequency=frequency)}
        manifest = Dataset.pandas(rows, **options, encode=encode).prepare(tmp_path)
        assert manifest.vocabularies["c"] == values
        codes = [values.index(each) if each in values else len(values) for each in rows["c"].fillna("z")]
        assert apply(manifest, rows).inputs.tolist() == codes


def test_the_most_frequent_of_listed_values(tmp_path: Path) -> None:
    """Others are not counted, though one partition has some and the other none."""
    rows = pd.DataFrame({"c": ["x", "b", "x", "a", "x", "a", None, "b", "x"], "y": range(9)})
    encode = {"c": hy.Categories("index", values=["b", "a"])}
    manifest = Dataset.pandas(
        rows, features="c", label="y", partitions=2, encode=encode, impute={"c": "most_frequent"}
    ).prepare(tmp_path)
    assert manifest.fills == {"c": "a"}  # of equals the least
    assert apply(manifest, rows).inputs.tolist() == [2, 0, 2, 1, 2, 1, 1, 0, 2]


def test_infinity_is_no_missing_value(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[3, "age"] = math.inf
    with pytest.raises(DataError, match=r"(?s)column 'age': 1 of its rows (?!.*impute=).*fill such .* with transform="):
        Dataset.pandas(rows, **OPTIONS).prepare(tmp_path)
    numbers = pd.DataFrame({"c": [1.0, np.nan, math.inf, 2.0], "y": range(4)})
    with pytest.raises(DataError, match=r"column 'c': 1 of its rows"):
        Dataset.pandas(numbers, features="c", encode={"c": "index"}, impute={"c": ("constant", 1.0)}, label="y",
                       partitions=1).prepare(tmp_path)  # fmt: skip


def test_training_rows_without_any_value(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": [np.nan, np.nan, 1.0], "c": [None, None, "x"], "held": [False, False, True]})
    options: Any = {"validation": "held", "partitions": 1}
    for named, said in (
        (
            {"features": ["a"], "impute": {"a": "mean"}},
            "column 'a': .*every training row",
        ),
        (
            {"features": ["a"], "impute": {"a": 3}, "standardize": True},
            "column 'a': .*every training row",
        ),
        ({"features": "c", "impute": {"c": "most_frequent"}, "encode": {"c": "index"}}, "column 'c': .*most frequent"),
    ):
        with pytest.raises(DataError, match=said):
            Dataset.pandas(rows, **options, **named).prepare(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"impute": "mean"}, "impute must be .*, got 'mean'"),
        ({"impute": {"q": 0}}, "impute names 'q', .*: 'age', 'kids', 'city'"),
        ({"impute": {"n": 0}}, "impute names 'n', a label"),
        ({"impute": {"age": "median"}}, r"impute\['age'\] must be .*, got 'median'"),
        ({"impute": {"age": math.nan}}, r"impute\['age'\] must be .*, got nan"),
        ({"impute": {"age": "most_frequent"}}, r"impute\['age'\] = 'most_frequent'"),
        ({"impute": {"city": "mean"}}, r"impute\['city'\] = 'mean'"),
        ({"impute": {"age": ("constant", "x")}}, r"impute\['age'\] must be"),
        (
            {"impute": {"city": "oslo"}},
            r"impute\['city'\] = 'oslo': .*\(\"constant\", 'oslo'\)",
        ),
        (
            {"impute": {"city": ("constant", "x")}, "encode": {"city": ["oslo"]}},
            r"impute\['city'\] = 'x' .*encode=",
        ),
        ({"features": ["age"], "label": "city"}, r"encode\['city'\] .* 'city' is a label"),
    ],
)
def test_refusals_of_impute_and_encode(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Dataset.pandas(frame(16), **{**OPTIONS, **options})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hy.Categories("onehot"), r"Categories\(kind=\) must be .*, got 'onehot'"),  # type: ignore[arg-type]
        (lambda: hy.Categories(values=[]), r"Categories\(values=\) must be .*, got \[\]"),
        (lambda: hy.Categories(values=["a", "a"]), r"Categories\(values=\) = \['a', 'a'\]"),
        (lambda: hy.Categories(values=[1.5, math.nan]), r"Categories\(values=\) = \[1.5, nan\]: nan is"),
        (lambda: hy.Categories(values=[-math.inf]), r"Categories\(values=\) = \[-inf\]"),
        (lambda: hy.Categories(values=["1", 1]), r"Categories\(values=\) = \['1', 1\]"),
        (lambda: hy.Categories(handle_unknown="ignore"), r"Categories\(handle_unknown=\) must be .*, got 'ignore'"),  # type: ignore[arg-type]
        (lambda: hy.Categories(min_frequency=0), r"Categories\(min_frequency=\) must be .*, got 0"),
        (lambda: hy.Categories(min_frequency=2, values=["a"]), r"Categories\(min_frequency=2\).* values="),
        (
            lambda: hy.Categories(min_frequency=2, handle_unknown="error"),
            r"Categories\(min_frequency=2\).*handle_unknown=",
        ),
    ],
)
def test_categories_that_are_none(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_columns_that_cannot_be_filled(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, None], "l": [[1.0], None], "y": [0, 1]})
    with pytest.raises(DataError, match=r"impute names 'n' .* int64 and keeps it"):
        Dataset.arrow(rows, features="n", label="y", impute={"n": 0})
    with pytest.raises(DataError, match=r"impute\['n'\] = '\?', and column 'n' of .* has type int64: give a value of"):
        Dataset.arrow(rows, features="n", label="y", encode={"n": "index"}, impute={"n": ("constant", "?")})
    with pytest.raises(DataError, match=r"impute names 'l' .*list<"):
        Dataset.arrow(rows, features=["l"], label="y", impute={"l": 0})
    filled = Dataset.arrow(rows, features=["n"], label="y", impute={"n": 7}, partitions=1).prepare(tmp_path)
    assert apply(filled, rows).inputs.tolist() == [[1.0], [7.0]]


def test_a_label_is_never_filled(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": [1.0, np.nan]})
    with pytest.raises(DataError, match="column 'a': 1 of its rows") as caught:
        Dataset.pandas(rows, features=["a"], label="a", impute={"a": 0}, partitions=1).prepare(tmp_path)
    assert "impute=" not in str(caught.value)


def test_bad_values_are_reported_with_what_fills_them(tmp_path: Path) -> None:
    rows = pa.table(
        {"a": [1.0, None], "n": [None, 2], "b": ["x", None], "c": [None, 3], "k": [1, None], "y": [0.0, None]}
    )
    options: dict[str, Any] = {"encode": {"b": "index", "c": "one-hot"}, "label": "y", "partitions": 1}
    columns = {"m": ["a", "n", "b", "c"], "k": "k"}
    with pytest.raises(DataError, match="cannot be trained on") as caught:
        Dataset.arrow(rows, features=columns, **options).prepare(tmp_path)
    advice = (
        "fill null and NaN of features by impute={'a': \"mean\" or 0, 'n': \"mean\" or 0, "
        '\'b\': "most_frequent" or ("constant", "?"), \'c\': "most_frequent" or ("constant", 0)}, or drop'
    )
    assert advice in str(caught.value)
    impute = {"a": "mean", "n": 0, "b": ("constant", "?"), "c": ("constant", 0)}
    whole = rows.drop_columns(["k", "y"]).append_column("y", pa.array([0, 1]))
    Dataset.arrow(whole, features=columns["m"], impute=impute, **options).prepare(tmp_path)


NUMBERS = pa.table({"kind": [1, 2, 3, 1], "y": [0, 1, 0, 1]})
TEXTS = pa.table({"kind": ["1", "2", "3", "1"], "y": [0, 1, 0, 1]})


@pytest.mark.parametrize(("rows", "values"), [(NUMBERS, ["1", "2"]), (TEXTS, [1, 2])], ids=["numbers", "texts"])
@pytest.mark.parametrize("unknown", ["other", "error"])
def test_text_is_never_a_number(tmp_path: Path, rows: Any, values: Any, unknown: Any) -> None:
    first, listed = rows["kind"][0].as_py(), ", ".join(map(repr, values))
    data = Dataset.arrow(
        rows, features=["kind"], label="y", encode={"kind": hy.Categories(values=values, handle_unknown=unknown)}
    )
    with pytest.raises(
        DataError, match=rf"column 'kind', row 0 of .*: {first!r} is .*text.* \({listed}\): such .* cast"
    ):
        data.prepare(tmp_path)


@pytest.mark.parametrize(("rows", "others"), [(NUMBERS, TEXTS), (TEXTS, NUMBERS)], ids=["numbers", "texts"])
def test_text_is_never_a_number_in_predict(tmp_path: Path, rows: Any, others: Any) -> None:
    options: dict[str, Any] = {"encode": {"kind": hy.Categories()}, "partitions": 1}
    manifest = Dataset.arrow(rows, features=["kind"], label="y", **options).prepare(tmp_path)
    assert apply(manifest, rows).inputs.shape == (4, 4)
    with pytest.raises(DataError, match=r"'kind', row 0 of .* never equal"):
        apply(manifest, others, targets=False)


def test_an_unknown_label_does_not_mention_categories(tmp_path: Path) -> None:
    options: dict[str, Any] = {"encode": {"kind": "index"}, "partitions": 1}
    manifest = Dataset.arrow(TEXTS, features=["y"], label="kind", **options).prepare(tmp_path)
    with pytest.raises(DataError, match="'9' is not among the 3 values") as caught:
        apply(manifest, pa.table({"kind": ["9"], "y": [0]}))
    assert "Categories" not in str(caught.value)

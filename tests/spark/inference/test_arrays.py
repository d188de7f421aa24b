"""Arrow columns as Spark has them, and NumPy arrays."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hopyard.errors import DataError
from hopyard.formats.vectors import column_to_numpy
from hopyard.spark.inference.arrays import LazyColumns, to_column, to_vectors


def column(array: Any) -> Any:
    return column_to_numpy(array, "x", "the block", "or read others")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.zeros(2, np.float32), "float"),
        (np.zeros((2, 3)), "list<item: double>"),
        (np.zeros((2, 3, 1), np.int8), "list<item: list<item: int8>>"),
        (np.zeros(2, np.uint8), "int16"),
        (np.zeros(2, np.float16), "float"),
        (np.zeros(2, np.bool_), "bool"),
        (np.zeros((2, 0)), "list<item: double>"),
        (np.zeros((0, 4)), "list<item: double>"),
        (["a", "bc"], "string"),
        (np.array(["2020-01-01"], "datetime64[D]"), "date32[day]"),
        (np.array(["2020-01-01T00:00"], "datetime64[ns]"), "timestamp[us]"),
        ({"a": np.zeros(2), "b": np.zeros((2, 1))}, "struct<a: double, b: list<item: double>>"),
    ],
)
def test_types(values: Any, kind: str) -> None:
    made = to_column(values, "x")
    assert str(made.type) == kind
    if not isinstance(values, dict) and not pa.types.is_timestamp(made.type):
        assert made.to_pylist() == pa.array(list(np.asarray(values).tolist()), made.type).to_pylist()


def test_bfloat16_is_float() -> None:
    kind = pytest.importorskip("ml_dtypes").bfloat16
    made = to_column(np.array([[1.5, -2.0]], kind), "x")
    assert str(made.type) == "list<item: float>"
    assert made.to_pylist() == [[1.5, -2.0]]


def test_there_and_back() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(column(to_column(values, "x")), values)
    np.testing.assert_array_equal(column(to_column(values, "x")[1:]), values[1:])
    np.testing.assert_array_equal(column(to_vectors(values[0])), values[0])
    assert column(pa.array(["a", "b", None])).tolist() == ["a", "b", None]
    assert column(pa.array([b"a", None, b"bcd"])).tolist() == [b"a", None, b"bcd"]
    assert column(pa.array([Decimal("1.25")])).tolist() == [1.25]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.float64(1), "'x' must be .*single value .*float64"),
        ([[1.0], [1.0, 2.0]], "'x' is no array of shape"),
        (np.zeros(2, np.complex64), "'x' has dtype complex64, which Spark lacks"),
        (np.zeros(2, np.uint64), "'x' has dtype uint64, which Spark lacks"),
        (np.array([["a"]]), r"'x' has shape \(1, 1\) and dtype <U1"),
    ],
)
def test_types_that_spark_lacks(values: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        to_column(values, "x")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (pa.array([1, None]), "column 'x' .*1 of 2 rows .*row 1"),
        (pa.array([[1.0, None], [1.0, 2.0]]), "column 'x' .*1 of 2 rows .*row 0"),
        (pa.array([{"a": 1}]), "column 'x' .*type struct"),
        (pa.array([[1], [1, 2]]), "column 'x' .*length"),
    ],
)
def test_columns_that_are_no_arrays(array: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        column(array)


class TestLazyColumns:
    @pytest.fixture
    def made(self) -> list[str]:
        """Columns that were asked for, in order."""
        return []

    @pytest.fixture
    def lazy(self, made: list[str]) -> LazyColumns:
        def maker(name: str, value: Any) -> Any:
            def make() -> Any:
                made.append(name)
                if value is None:
                    raise DataError(f"column {name!r} has nulls")
                return np.array(value)

            return make

        return LazyColumns({"a": maker("a", [1, 2]), "b": maker("b", [3, 4]), "bad": maker("bad", None)})

    def test_an_array_is_made_once_and_only_if_it_is_read(self, lazy: LazyColumns, made: list[str]) -> None:
        assert (list(lazy), len(lazy), "bad" in lazy, bool(lazy), "c" in lazy) == (
            ["a", "b", "bad"],
            3,
            True,
            True,
            False,
        )
        assert repr(lazy) == "<columns 'a', 'b', 'bad'>" and list(reversed(lazy)) == ["bad", "b", "a"]
        assert made == []
        assert lazy["a"] is lazy["a"] is lazy.get("a")
        assert made == ["a"]
        with pytest.raises(DataError, match="column 'bad' has nulls"):
            lazy["bad"]
        with pytest.raises(KeyError):
            lazy["c"]

    def test_a_row_may_be_changed_like_a_dict(self, lazy: LazyColumns, made: list[str]) -> None:
        del lazy["bad"]
        assert lazy.pop("a").tolist() == [1, 2]
        lazy["c"] = np.array([5])
        lazy |= {"d": np.array([6])}
        assert {name: array.tolist() for name, array in lazy.items()} == {"b": [3, 4], "c": [5], "d": [6]}
        assert made == ["a", "b"]

    def test_a_plain_dict_of_it_has_the_arrays(self, lazy: LazyColumns) -> None:
        def keywords(**columns: Any) -> Any:
            return columns

        del lazy["bad"]
        for plain in (
            dict(lazy), {**lazy}, keywords(**lazy), lazy.copy(), lazy | {}, {} | lazy, copy.copy(lazy),
            pickle.loads(pickle.dumps(lazy)),
        ):  # fmt: skip
            assert type(plain) is dict
            assert {name: array.tolist() for name, array in plain.items()} == {"a": [1, 2], "b": [3, 4]}

    def test_pandas_takes_it(self, lazy: LazyColumns) -> None:
        pandas = pytest.importorskip("pandas")
        del lazy["bad"]
        assert pandas.DataFrame(lazy).to_dict("list") == {"a": [1, 2], "b": [3, 4]}

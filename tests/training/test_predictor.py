"""One answer for each row that went in: types, shapes, and what has no NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopyard.data.columns import Columns
from hopyard.errors import DataError, HopyardError
from hopyard.spec import Batch
from hopyard.training.predictor import answers


class Echo:
    """Answers with its inputs, changed."""

    def __init__(self, change: Any = lambda inputs: inputs) -> None:
        self.change = change

    def predict(self, batch: Batch) -> Any:
        return self.change(batch.inputs.copy())


def columns(places: list[int] | None, source_rows: int = 5) -> Columns:
    rows = source_rows if places is None else len(places)
    inputs = np.arange(rows, dtype=np.float32) + 10
    return Columns(inputs, None, None, rows, None, source_rows, None if places is None else np.array(places, np.int64))


NAN = np.nan


@pytest.mark.parametrize("size", [1, 2, 100])
def test_places(size: int) -> None:
    assert answers(Echo(), columns(None), size).tolist() == [10, 11, 12, 13, 14]
    assert answers(Echo(), columns([4, 3, 2, 1, 0]), size).tolist() == [14, 13, 12, 11, 10]
    made = answers(Echo(), columns([3, 1]), size)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, [NAN, 11, NAN, 10, NAN])
    both = answers(Echo(lambda x: {"one": x, "two": np.stack([x, -x], 1)}), columns([3, 1]), size)
    np.testing.assert_array_equal(both["one"], made)
    np.testing.assert_array_equal(both["two"], np.stack([made, -made], 1))


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int8", "int64", "uint64", "bool"])
def test_types(dtype: str) -> None:
    echo = Echo(lambda x: x.astype(dtype))
    assert answers(echo, columns(None), 2).dtype == dtype
    assert answers(echo, columns([1, 0, 2, 4, 3]), 2).dtype == dtype
    made = answers(echo, columns([3, 1]), 2)
    assert made.dtype == (dtype if np.dtype(dtype).kind in "fc" else np.float64)
    assert np.isnan(made[[0, 2, 4]]).all() and not np.isnan(made[[1, 3]]).any()
    assert answers(echo, columns([]), 2).shape == (5,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.astype(str), "answers of type <U.* have no NaN"),
        (lambda x: x.astype(np.int64) + (1 << 53), "answers of type int64 have no NaN"),
        (lambda x: x.astype("datetime64[s]"), "answers of type datetime64.* have no NaN"),
    ],
)
def test_outputs_without_nan_are_refused_only_for_dropped_rows(change: Any, said: str) -> None:
    assert len(answers(Echo(change), columns([1, 0, 2, 4, 3]), 2)) == 5
    with pytest.raises(DataError, match=said):
        answers(Echo(change), columns([3, 1]), 2)


def test_a_type_that_may_not_change() -> None:
    lists = Echo(lambda x: np.stack([x, x], 1).astype(np.int64))
    assert answers(lists, columns([3, 1]), 2).dtype == np.float64
    with pytest.raises(DataError, match="answers of type int64 have no NaN"):
        answers(lists, columns([3, 1]), 2, same_type=True)


def test_all_rows_dropped() -> None:
    made = answers(Echo(lambda x: np.stack([x] * 3, 1)), columns([]), 2)
    assert made.shape == (5, 3) and made.dtype == np.float32 and np.isnan(made).all()


def test_an_error_of_the_model_names_its_rows() -> None:
    def beyond(inputs: Any) -> Any:
        return np.arange(13)[inputs.astype(int)]  # the last two rows are 13 and 14

    with pytest.raises(IndexError, match="13 is out of bounds") as caught:
        answers(Echo(beyond), columns(None), 3)
    assert caught.value.__notes__[0].startswith("The model raised this for rows 3 to 4 of the encoded data.")


def test_fewer_answers_than_rows_are_refused() -> None:
    with pytest.raises(HopyardError, match=r"predict\(batch\) must .* 2 for 5 rows"):
        answers(Echo(lambda x: x[:1]), columns(None), 2)

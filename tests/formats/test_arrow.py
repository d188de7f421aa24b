"""Arrow arrays as NumPy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hopyard.formats.arrow import to_numpy


@pytest.mark.parametrize("kind", [pa.binary(3), pa.binary()])
def test_bytes_in_a_tensor_are_its_last_axis(kind: pa.DataType) -> None:
    """Bug: it was a ValueError of NumPy."""
    rows = [[b"abc", b"def"], [b"ghi", b"jkl"]]
    if kind == pa.binary(3):
        storage = pa.FixedSizeListArray.from_arrays(pa.array([item for row in rows for item in row], kind), 2)
        array = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(kind, (2,)), storage)
    else:
        array = pa.array(rows, pa.list_(kind))
    found = to_numpy(array, "a", "rows")
    assert found.tolist() == np.frombuffer(b"abcdefghijkl", np.uint8).reshape(2, 2, 3).tolist()

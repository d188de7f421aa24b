"""Arrow arrays as NumPy arrays."""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest

from hopyard.formats.arrow import plain_batch, to_numpy


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


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.large_list(pa.int8())], ids=str)
def test_rows_behind_two_gibibytes_of_others(kind: pa.DataType) -> None:
    """Bug: offsets of a slice did not fit into 32 bits. The pages before its rows are never touched."""
    far = 1 << 31
    pages = mmap.mmap(-1, far + 5)
    pages[far:] = b"abcde"
    data, offsets = pa.py_buffer(pages), pa.py_buffer(np.array([0, far, far + 5]))
    if pa.types.is_large_list(kind):
        values = pa.Array.from_buffers(pa.int8(), far + 5, [None, data])
        array = pa.Array.from_buffers(kind, 2, [None, offsets], children=[values])
    else:
        array = pa.Array.from_buffers(kind, 2, [None, offsets, data])
    batch = plain_batch(pa.record_batch({"a": array, "n": pa.array([1, 2])}).slice(1))
    (row,) = batch.to_pylist()
    assert row == {"a": {"large_string": "abcde", "large_binary": b"abcde"}.get(str(kind), [*b"abcde"]), "n": 2}

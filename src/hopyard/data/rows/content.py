"""The digest of rows: of their columns' names, types, order and values, however the rows are cut into batches.

Arrow's buffers cannot be hashed as they are: the bytes of a null are arbitrary, a slice has an offset, and the text of
a batch may begin anywhere in a buffer. So three things of each column are hashed, one after the other: the numbers of
the rows that are null, the lengths of values that have one, and the bytes of the values, zero where there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from hopyard.code.digest import digest
from hopyard.formats.arrow import Array


class Content:
    """Computes the digest of batches. Where their schema changes, the row at which it does so counts too.

    Args:
        schema: that of the first batches, if it is known; else the first batch has it.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._hasher = blake3()
        self._rows = 0
        self._schema: pa.Schema | None = None
        self._columns: list[_Column] = []
        if schema is not None:
            self._begin(schema)

    def update(self, batch: Any) -> None:
        """Adds the rows of a record batch."""
        if self._schema is None or (batch.num_rows and not self._schema.equals(batch.schema)):
            self._begin(batch.schema)
        for column, array in zip(self._columns, batch.columns if batch.num_rows else [], strict=False):
            column.update(array)
        self._rows += batch.num_rows

    def hexdigest(self) -> str:
        """Return 64 digits. To be called once, at the end."""
        self._end()
        return self._hasher.hexdigest()

    def _begin(self, schema: pa.Schema) -> None:
        self._end()
        fields = [pa.field(field.name, field.type, field.nullable) for field in schema]  # without metadata
        serialized = bytes(pa.schema(fields).serialize())
        self._hasher.update(len(serialized).to_bytes(8, "little") + serialized)
        self._schema, self._columns = schema, [_Column() for _ in schema]

    def _end(self) -> None:
        self._hasher.update(self._rows.to_bytes(8, "little"))
        for column in self._columns:
            self._hasher.update(column.digest())


class _Column:
    """Computes the digest of one column, or of the values in its lists. It does not depend on where batches end."""

    def __init__(self) -> None:
        self._nulls, self._lengths, self._values = blake3(), blake3(), blake3()
        self._inner: dict[int, _Column] = {}
        self._rows = 0
        self._dictionary: Any = None

    def update(self, array: Any) -> None:
        if not len(array):
            return
        nulls = np.zeros(0, np.int64)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update((nulls + self._rows).astype("<i8").tobytes())
        self._update_values(array, array.type, nulls)
        self._rows += len(array)

    def digest(self) -> bytes:
        parts = [self._nulls.digest(), self._lengths.digest(), self._values.digest()]
        parts += [self._inner[number].digest() for number in sorted(self._inner)]
        return bytes(blake3(b"".join(parts)).digest())

    def _update_values(self, array: Any, kind: Any, nulls: Array) -> None:
        test = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            self._column(0).update(array.storage)
        elif test.is_dictionary(kind):
            self._update_dictionary(array.dictionary)
            self._column(0).update(array.indices)
        elif test.is_boolean(kind):
            self._column(0).update(array.cast(pa.uint8()))
        elif test.is_struct(kind):
            for number, part in enumerate(array.flatten()):  # null where the row is
                self._column(number).update(part)
        elif test.is_list(kind) or test.is_large_list(kind):
            self._lengths.update(np.asarray(array.value_lengths().fill_null(0)).astype("<i8").tobytes())
            self._column(0).update(array.flatten())
        elif test.is_fixed_size_list(kind):
            self._column(0).update(array.flatten())
        elif test.is_string_view(kind) or test.is_binary_view(kind):
            self._column(0).update(array.cast(pa.large_string() if test.is_string_view(kind) else pa.large_binary()))
        elif test.is_string(kind) or test.is_binary(kind) or test.is_large_string(kind) or test.is_large_binary(kind):
            self._text(array.fill_null("" if test.is_string(kind) or test.is_large_string(kind) else b""))
        elif test.is_run_end_encoded(kind):
            self._column(0).update(pc.run_end_decode(array))
        elif test.is_primitive(kind) or test.is_decimal(kind) or test.is_fixed_size_binary(kind):
            self._bytes(array, kind.bit_width // 8, nulls)
        elif not test.is_null(kind):  # maps, unions and what comes later
            for value in array.to_pylist():
                self._values.update(digest(value).encode())

    def _column(self, number: int) -> _Column:
        return self._inner.setdefault(number, _Column())

    def _bytes(self, array: Any, width: int, nulls: Array) -> None:
        data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        if len(nulls):
            data = data.copy()
            data.reshape(len(array), width)[nulls] = 0
        self._values.update(data.data)

    def _text(self, array: Any) -> None:
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        width = np.dtype(np.int64 if large else np.int32)
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)
        self._lengths.update(np.diff(ends).astype("<i8").tobytes())
        if data is not None:
            self._values.update(np.frombuffer(data, np.uint8)[int(ends[0]) : int(ends[-1])].data)

    def _update_dictionary(self, dictionary: Any) -> None:
        """Hashes a new dictionary, and the row from which it is used, because a transform sees its codes."""
        previous, self._dictionary = self._dictionary, dictionary
        if previous is not None and (_same_memory(previous, dictionary) or previous.equals(dictionary)):
            return
        column = _Column()
        column.update(dictionary)
        self._values.update(f"{self._rows} {len(dictionary)} ".encode() + column.digest())


def _same_memory(first: Any, second: Any) -> bool:
    addresses = [[None if part is None else part.address for part in array.buffers()] for array in (first, second)]
    return addresses[0] == addresses[1] and (first.offset, len(first)) == (second.offset, len(second))

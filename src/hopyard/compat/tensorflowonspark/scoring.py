"""Applies a SavedModel to the Arrow batches of Spark: one of its signatures, opened once in each Python worker."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hopyard.compat.tensorflowonspark import util
from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import to_lists


class Kinds(msgspec.Struct, frozen=True):
    """What a task reports of the outputs: of each its dtype, and its number of dimensions, −1 where that is open."""

    outputs: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which columns go in as which tensors, and which tensors come out as which columns."""

    export_dir: str
    tags: tuple[str, ...]
    key: str
    inputs: tuple[tuple[str, str], ...]
    """(column, tensor), by column."""
    outputs: tuple[tuple[str, str], ...]
    """(tensor, column), by tensor."""
    batch_size: int
    num_gpus: int = 1

    def kinds(self, partition: int, batches: Iterable[Any], look: bool) -> Kinds:
        """Return the Kinds of the signature, or (`look`) of the model's outputs for the first rows. All rows are read:
        Spark uses a worker again, with its TensorFlow and its model, only if it has read them."""
        kinds: dict[str, tuple[Any, int | None]] = {}
        specs = _signature(self).structured_outputs
        for tensor, _ in self.outputs:
            if tensor not in specs:
                raise self._unknown(tensor, "output", specs)
            rank = specs[tensor].shape.rank
            kinds[tensor] = (specs[tensor].dtype.as_numpy_dtype, rank)
        if look:
            for outputs in self._scores(batches):
                kinds = {tensor: (array.dtype, array.ndim) for tensor, array in outputs.items()}
                break
        for _ in batches:
            pass
        return Kinds([(np.dtype(kind).str, -1 if rank is None else rank) for kind, rank in kinds.values()])

    def rows(self, batches: Iterator[Any], schema: pa.Schema) -> Iterator[Any]:
        """Yield the new columns, with as many rows as came."""
        for outputs in self._scores(batches):
            columns = [
                _arrow(outputs[tensor], field.type) for (tensor, _), field in zip(self.outputs, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _scores(self, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yield outputs by tensor, for at most `batch_size` rows at a time."""
        import tensorflow as tf

        predict = _signature(self)
        specs = predict.structured_input_signature[1]
        for _, tensor in self.inputs:
            if tensor not in specs:
                raise self._unknown(tensor, "input", specs)
        for batch in batches:
            for start in range(0, batch.num_rows, self.batch_size):
                part = batch.slice(start, self.batch_size)
                tensors = {}
                for at, (column, tensor) in enumerate(self.inputs):
                    spec = specs[tensor]
                    values = _values(part.column(at), column)
                    if spec.dtype != tf.string:
                        values = _cast(values, spec.dtype.as_numpy_dtype, column, tensor)
                    row_shape = spec.shape[1:] if spec.shape.rank else None
                    if row_shape is not None and row_shape.is_fully_defined():
                        values = values.reshape(part.num_rows, *row_shape)
                    tensors[tensor] = tf.constant(values, spec.dtype)
                results = predict(**tensors)
                outputs = {tensor: results[tensor].numpy() for tensor, _ in self.outputs}
                for tensor, array in outputs.items():
                    if array.ndim == 0 or len(array) != part.num_rows:
                        raise DataError(
                            f"output {tensor!r} of {self.export_dir} must have one value for each row, has shape "
                            f"{array.shape} for {part.num_rows} rows"
                        )
                yield outputs

    def _unknown(self, tensor: str, direction: str, specs: Any) -> SpecError:
        return SpecError(
            f"{direction}_mapping names the tensor {tensor!r}, but signature {self.key!r} of {self.export_dir} has "
            f"{', '.join(map(repr, sorted(specs)))}"
        )


def column_type(kind: str, rank: int) -> Any:
    """Return a column's Arrow type: double, bigint, boolean or binary, or arrays of it for each dimension but rows."""
    letter = np.dtype(kind).kind
    arrow_type = {"f": pa.float64(), "i": pa.int64(), "u": pa.int64(), "b": pa.bool_()}.get(letter, pa.binary())
    for _ in range(rank - 1):
        arrow_type = pa.list_(arrow_type)
    return arrow_type


@functools.lru_cache(2)
def _signature(scoring: Scoring) -> Any:
    """Return the signature, with its model as an attribute: a signature alone does not keep its variables alive."""
    util.single_node_env(scoring.num_gpus)
    import tensorflow as tf

    model = tf.saved_model.load(scoring.export_dir, tags=list(scoring.tags))
    if scoring.key not in model.signatures:
        raise SpecError(
            f"{scoring.export_dir} has no signature {scoring.key!r}, only "
            f"{', '.join(map(repr, sorted(model.signatures))) or 'none'}: setSignatureDefKey(…)"
        )
    predict = model.signatures[scoring.key]
    predict.hopyard_model = model
    return predict


def _values(array: Any, name: str) -> Any:
    """Return a column as an array (rows, …): lists of one length become dimensions."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    shape = [len(array)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = np.unique(array.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False))
        if len(lengths) > 1 or array.null_count:
            raise DataError(f"column {name!r}: to be one tensor its arrays must have one length; here: {lengths}")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    if array.null_count:
        raise DataError(f"column {name!r} has nulls; fill them or filter them out before")
    values = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _cast(values: Any, dtype: Any, name: str, tensor: str) -> Any:
    """Return values as the dtype of a tensor. Raises DataError where whole numbers would become others."""
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype, copy=False)
    if cast.dtype.kind in "iu" and values.dtype.kind in "iufO" and not np.array_equal(cast, values):
        at = int(np.argmax((cast != values).reshape(len(values), -1).any(axis=1)))
        raise DataError(
            f"column {name!r} holds {values[at]}, but the tensor {tensor!r} takes {cast.dtype}: cast the column, or "
            "filter such rows out before"
        )
    return cast


def _arrow(values: Any, kind: Any) -> Any:
    """Return an array (rows, …) as a column of the type that `column_type` returned."""
    inner = kind
    for _ in range(values.ndim - 1):
        inner = inner.value_type
    return to_lists(values, inner).cast(kind)

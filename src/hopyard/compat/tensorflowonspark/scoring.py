"""A SavedModel over the Arrow batches of Spark: one of its signatures, opened once in each Python worker."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.compat.tensorflowonspark import util
from hopyard.errors import DataError, SpecError


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

    def kinds(self, batches: Iterator[Any], look: bool) -> Iterator[Any]:
        """One row: for each output its dtype and its number of dimensions, −1 where that is open, as text: as the
        signature says, or (`look`) by what the model makes of the rows."""
        found = {}
        shown = _opened(self).structured_outputs
        for tensor, _ in self.outputs:
            if tensor not in shown:
                raise self._unknown(tensor, "output", shown)
            rank = shown[tensor].shape.rank
            found[tensor] = (shown[tensor].dtype.as_numpy_dtype, rank)
        if look:
            for outputs in self._scores(batches):
                found = {tensor: (array.dtype, array.ndim) for tensor, array in outputs.items()}
                break
        told = [f"{np.dtype(kind).str} {-1 if rank is None else rank}" for kind, rank in found.values()]
        yield pa.RecordBatch.from_arrays([pa.array([told], pa.list_(pa.string()))], ["kinds"])

    def rows(self, batches: Iterator[Any], schema: pa.Schema) -> Iterator[Any]:
        """The new columns, row by row as many as came."""
        for outputs in self._scores(batches):
            columns = [
                _arrow(outputs[tensor], field.type) for (tensor, _), field in zip(self.outputs, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _scores(self, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """Outputs by tensor, for at most `batch_size` rows at a time."""
        import tensorflow as tf

        predict = _opened(self)
        specs = predict.structured_input_signature[1]
        for _, tensor in self.inputs:
            if tensor not in specs:
                raise self._unknown(tensor, "input", specs)
        for batch in batches:
            for start in range(0, batch.num_rows, self.batch_size):
                part = batch.slice(start, self.batch_size)
                given = {}
                for at, (column, tensor) in enumerate(self.inputs):
                    spec = specs[tensor]
                    values = _values(part.column(at), column)
                    if spec.dtype != tf.string:
                        values = _cast(values, spec.dtype.as_numpy_dtype, column, tensor)
                    rest = spec.shape[1:] if spec.shape.rank else None
                    if rest is not None and rest.is_fully_defined():
                        values = values.reshape(part.num_rows, *rest)
                    given[tensor] = tf.constant(values, spec.dtype)
                made = predict(**given)
                outputs = {tensor: made[tensor].numpy() for tensor, _ in self.outputs}
                for tensor, array in outputs.items():
                    if array.ndim == 0 or len(array) != part.num_rows:
                        raise DataError(
                            f"output {tensor!r} of {self.export_dir} must have one value for each row, has shape "
                            f"{array.shape} for {part.num_rows} rows"
                        )
                yield outputs

    def _unknown(self, tensor: str, what: str, known: Any) -> SpecError:
        return SpecError(
            f"{what}_mapping names the tensor {tensor!r}, but signature {self.key!r} of {self.export_dir} has "
            f"{', '.join(map(repr, sorted(known)))}"
        )


def column_type(kind: str, rank: int) -> Any:
    """The Arrow type of a column: double, bigint, boolean, binary, or arrays of these for each dimension but rows."""
    letter = np.dtype(kind).kind
    made = {"f": pa.float64(), "i": pa.int64(), "u": pa.int64(), "b": pa.bool_()}.get(letter, pa.binary())
    for _ in range(rank - 1):
        made = pa.list_(made)
    return made


@functools.lru_cache(2)
def _opened(scoring: Scoring) -> Any:
    """The signature. Its model is kept with it: a signature alone lets go of its variables."""
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
    """A column as an array (rows, …): lists of one length become dimensions."""
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
    """Values as the dtype of a tensor. Raises DataError where whole numbers would become others."""
    with np.errstate(invalid="ignore"):
        made = values.astype(dtype, copy=False)
    if made.dtype.kind in "iu" and values.dtype.kind in "iufO" and not np.array_equal(made, values):
        at = int(np.argmax((made != values).reshape(len(values), -1).any(axis=1)))
        raise DataError(
            f"column {name!r} holds {values[at]}, but the tensor {tensor!r} takes {made.dtype}: cast the column, or "
            "filter such rows out before"
        )
    return made


def _arrow(values: Any, kind: Any) -> Any:
    """An array (rows, …) as a column of the type that `column_type` named."""
    inner = kind
    for _ in range(values.ndim - 1):
        inner = inner.value_type
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), inner, from_pandas=False)
    for depth in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:depth]))
        size = values.shape[depth]
        offsets = pa.array(np.arange(0, (count + 1) * size, size) if size else np.zeros(count + 1), pa.int32())
        flat = pa.ListArray.from_arrays(offsets, flat)
    return flat.cast(kind)

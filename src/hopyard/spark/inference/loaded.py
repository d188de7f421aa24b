"""Opens models in a Python worker of Spark: each is opened once and used for every batch.

The state of this module is the few models that this process used last. It knows nothing of DataFrames.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from hopyard.data.columns import Columns, pack
from hopyard.data.manifest import ArrayInfo
from hopyard.driver.saved_model import predictor_of
from hopyard.formats.arrow import Array
from hopyard.formats.vectors import lists
from hopyard.frameworks import environment
from hopyard.spark.inference.bundle import ModelTicket, Portable
from hopyard.spec import Batch
from hopyard.training.build import undisturbed
from hopyard.training.predictor import Predictor, joined

Invalid = Literal["error", "skip", "keep"]
"""What becomes of rows that cannot be encoded: an error, no row, or a row whose prediction is NaN."""

CACHED_MODELS = 4
"""Models that a worker keeps: workers live as long as their executor, and a cross-validation brings many."""
CHUNK_BYTES = 256 << 10
"""Bytes of inputs that a model gets at once, where its own batch size is smaller: calls cost more than rows then."""
PROBES = 64
"""Rows of the data, and as many made-up ones, whose outputs show what outputs mean."""

_cache: OrderedDict[str, Predictor] = OrderedDict()


def cached_model(ticket: ModelTicket) -> Predictor:
    """Return the model of a ticket in this worker. Its first prediction takes as long as the recipe does."""
    if ticket.digest in _cache:
        _cache.move_to_end(ticket.digest)
        return _cache[ticket.digest]
    for name, value in environment(1).items():
        os.environ.setdefault(name, value)
    files = getattr(ticket.files, "value", ticket.files)  # may wait for a broadcast
    model = _cache[ticket.digest] = predictor_of(files, threads=1)
    while len(_cache) > CACHED_MODELS:
        _cache.popitem(last=False)
    return model


def encoded(predictor: Predictor, batch: Any, invalid: Invalid = "error") -> Iterator[Columns]:
    """Yield an Arrow record batch of at least one row as the model sees it; in parts, where it is large.

    Args:
        predictor: the model.
        batch: the rows.
        invalid: "error": rows that cannot be encoded are an error; else they are left out.

    Raises:
        DataError: the rows cannot be encoded as the training rows were; the transform doubles rows, or drops some and
            does not tell which.
    """
    for part in lists(batch):
        yield predictor.encode(part, drop_invalid=invalid != "error")


def predicted(predictor: Predictor, batch: Any, invalid: Invalid = "error") -> tuple[Any, Array | None]:
    """Return the outputs for an Arrow record batch of at least one row.

    Args:
        predictor: the model.
        batch: the rows.
        invalid: as for `encoded`.

    Returns:
        The outputs, an array of shape (rows, …) or a dict of such, with NaN for rows that the transform drops or that
        cannot be encoded; and None. With `invalid` "skip" the outputs for the other rows (None, if there are none), and
        a boolean array of shape (rows,) that says which these are.

    Raises:
        DataError: as `encoded`.
        SpecError: the recipe raised, or what it returned cannot predict.
    """
    infos = predictor.manifest.inputs.values()
    ragged = any(info.is_ragged for info in infos)  # a batch of many rows would be padded to the longest of them
    least = 1 if ragged else CHUNK_BYTES // max(1, sum(info.row_bytes for info in infos))
    outputs, masks = [], []
    for columns in encoded(predictor, batch, invalid):
        if invalid == "skip":
            masks.append(_close_up(columns))
            if not columns.rows:
                continue
        outputs.append(predictor.outputs(columns, least, same_type=True))
    return (joined(outputs) if outputs else None), (np.concatenate(masks) if masks else None)


def probe(model: Portable) -> Any:
    """Return the outputs for two rows of zeros, which every model takes, to see their types. It runs in this process,
    which stays as it was.

    Returns:
        Array of shape (2, …), or a dict of such.
    """
    zeros = {name: info.made_up(2) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        return predictor_of(model.files).net.predict(Batch(pack(zeros, "inputs"), None, None, 2))


def sample_outputs(model: Portable, rows: Sequence[Any]) -> list[Any]:
    """Return outputs that show what they mean. It runs in this process, which stays as it was.

    Args:
        model: the model.
        rows: Arrow record batches of the columns that the model needs.

    Returns:
        Outputs for each of the batches, and for made-up rows if the model takes these (an embedding does not): floating
        inputs are normal deviates from small to large, whole ones 0. Each is an array of shape (rows, …), or a dict.
    """
    rng = np.random.default_rng(0)
    scales = np.logspace(-1, 2, PROBES, dtype=np.float32)

    def made_up(info: ArrayInfo) -> Any:
        zeros = info.made_up(PROBES)
        if zeros.dtype.kind != "f":
            return zeros
        values = rng.standard_normal(zeros.shape, dtype=np.float32)
        return (values * scales.reshape(-1, *[1] * len(info.shape))).astype(info.dtype)

    inputs = {name: made_up(info) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        predictor = predictor_of(model.files)
        outputs = [predicted(predictor, batch)[0] for batch in rows if batch.num_rows]
        with suppress(Exception):  # whatever a framework raises
            outputs.append(predictor.net.predict(Batch(pack(inputs, "inputs"), None, None, PROBES)))
    return outputs


def _close_up(columns: Columns) -> Array:
    """Let rows that are left out have no place in the outputs. Returns a boolean array of shape (source rows,): which
    rows have one."""
    present = np.ones(columns.source_rows or columns.rows, np.bool_)
    if columns.places is not None:
        present[:] = False
        present[columns.places] = True
        columns.places = np.cumsum(present)[columns.places] - 1
    columns.source_rows = columns.rows
    return present

"""Opens models in a Python worker of Spark: each is opened once and used for every batch.

The state of this module is the few models that this process used last. It knows nothing of DataFrames.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal

import cloudpickle
import numpy as np

from hopyard.data.apply import apply
from hopyard.data.columns import Columns
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import ArrayInfo
from hopyard.driver.pickling import unpickle
from hopyard.driver.saved_files import CONFIG, RECIPE, TRANSFORM, parse
from hopyard.driver.saved_model import restore_model
from hopyard.errors import SpecError
from hopyard.formats.arrow import Array
from hopyard.formats.vectors import lists
from hopyard.frameworks import environment, quiet
from hopyard.ports import SupportsPredict
from hopyard.spark.inference.bundle import Portable, Ticket
from hopyard.spec import Batch
from hopyard.training.build import Plan, build, undisturbed
from hopyard.training.predicting import answers

Invalid = Literal["error", "skip", "keep"]
"""What becomes of rows that cannot be encoded: an error, no row, or a row whose prediction is NaN."""

CACHED_MODELS = 4
"""Models that a worker keeps: workers live as long as their executor, and a cross-validation brings many."""
CHUNK_BYTES = 256 << 10
"""Bytes of inputs that a model gets at once, where its own batch size is smaller: calls cost more than rows then."""
PROBES = 64
"""Rows of the data, and as many made-up ones, whose outputs show what outputs mean."""

_cache: OrderedDict[str, LoadedModel] = OrderedDict()


class LoadedModel:
    """A model in memory, and the encoding of its data. The model itself is opened when it first predicts: what is wrong
    with rows is found before its framework is imported.

    Args:
        files: name → content, of a Portable.
        threads: number of threads of its framework; 0: it stays as it is.
    """

    def __init__(self, files: Mapping[str, bytes], threads: int) -> None:
        self._files, self._threads = files, threads
        self._about = parse(files[CONFIG])
        self._tracker = RowTracker(cloudpickle.loads(files[TRANSFORM])) if TRANSFORM in files else None
        """Runs the Dataset's transform, where it had one."""

    def encode(self, batch: Any, invalid: Invalid = "error") -> Iterator[Columns]:
        """Yield an Arrow record batch of at least one row as the model sees it; in parts, where it is large.

        Args:
            batch: the rows.
            invalid: "error": rows that cannot be encoded are an error; else they are left out.

        Raises:
            DataError: the rows cannot be encoded as the training rows were; the transform doubles rows, or drops some
                and does not tell which.
        """
        drop = invalid != "error"
        for part in lists(batch):
            yield apply(self._about.manifest, part, self._tracker, targets=False, drop_invalid=drop)

    def predict(self, batch: Any, invalid: Invalid = "error") -> tuple[Any, Array | None]:
        """Return the outputs for an Arrow record batch of at least one row.

        Args:
            batch: the rows.
            invalid: as for `encode`.

        Returns:
            The outputs, an array of shape (rows, …) or a dict of such, with NaN for rows that the transform drops or
            that cannot be encoded; and None. With `invalid` "skip" the outputs for the other rows (None, if there are
            none), and a boolean array of shape (rows,) that says which these are.

        Raises:
            DataError: as `encode`.
            Exception: whatever the recipe raises.
        """
        outputs, masks = [], []
        for columns in self.encode(batch, invalid):
            if invalid == "skip":
                masks.append(_close_up(columns))
                if not columns.rows:
                    continue
            trainable, batch_size = self._opened
            outputs.append(answers(trainable, columns, batch_size, same_type=True))
        return (_concatenate(outputs) if outputs else None), (np.concatenate(masks) if masks else None)

    @property
    def trainable(self) -> Any:
        """The model."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[Any, int]:
        """The model, and how many rows it gets at once."""
        about, files = self._about, self._files
        quiet(about.backend)
        recipe = unpickle(files[RECIPE], RECIPE, about.python)
        built = build(Plan(recipe, about.manifest, about.spec, threads=self._threads), about.trial, about.config)
        restore_model(built.trainable, about.framework, files)
        if not isinstance(built.trainable, SupportsPredict):
            raise SpecError(f"{type(built.trainable).__name__} has no method predict(batch): give it one")
        self._files = {}
        chunk_rows = max(1, CHUNK_BYTES // max(1, sum(info.row_bytes for info in about.manifest.inputs.values())))
        return built.trainable, max(built.batch_size, chunk_rows)


def cached_model(ticket: Ticket) -> LoadedModel:
    """Return the model of a ticket in this worker. Its first prediction takes as long as the recipe does."""
    if ticket.digest in _cache:
        _cache.move_to_end(ticket.digest)
        return _cache[ticket.digest]
    for name, value in environment(1).items():
        os.environ.setdefault(name, value)
    model = _cache[ticket.digest] = LoadedModel(ticket.fetch(), threads=1)
    while len(_cache) > CACHED_MODELS:
        _cache.popitem(last=False)
    return model


def probe(model: Portable) -> Any:
    """Return the outputs for two rows of zeros, which every model takes, to see their types. It runs in this process,
    which stays as it was.

    Returns:
        Array of shape (2, …), or a dict of such.
    """
    zeros = {name: np.zeros((2, *info.shape), info.dtype) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        return LoadedModel(model.files, threads=0).trainable.predict(_batch(zeros, 2))


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
        if np.dtype(info.dtype).kind != "f":
            return np.zeros((PROBES, *info.shape), info.dtype)
        values = rng.standard_normal((PROBES, *info.shape), dtype=np.float32)
        return (values * scales.reshape(-1, *[1] * len(info.shape))).astype(info.dtype)

    inputs = {name: made_up(info) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        loaded = LoadedModel(model.files, threads=0)
        outputs = [loaded.predict(batch)[0] for batch in rows if batch.num_rows]
        with suppress(Exception):  # whatever a framework raises
            outputs.append(loaded.trainable.predict(_batch(inputs, PROBES)))
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


def _batch(inputs: dict[str, Any], rows: int) -> Batch:
    return Batch(inputs["inputs"] if list(inputs) == ["inputs"] else inputs, None, None, rows)


def _concatenate(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

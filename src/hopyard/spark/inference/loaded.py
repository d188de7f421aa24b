"""Opens models in a Python worker of Spark: each is opened once and used for every batch.

The state of this module is the few models that this process used last. It knows nothing of DataFrames.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from hopyard.data.apply import apply
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import ArrayInfo, Manifest
from hopyard.driver.pickling import load
from hopyard.driver.runs.saved_model import CONFIG, RECIPE, TRANSFORM, parse, restore_weights
from hopyard.errors import SpecError
from hopyard.formats.vectors import lists
from hopyard.frameworks import environment, quiet
from hopyard.ports import SupportsPredict
from hopyard.spark.inference.bundle import Portable, Ticket
from hopyard.spec import Batch
from hopyard.system.scratch import scratch_folder
from hopyard.training.build import Plan, build, undisturbed
from hopyard.training.predicting import answers

CACHED_MODELS = 4
"""Models that a worker keeps: workers live as long as their executor, and a cross-validation brings many."""
CHUNK_BYTES = 256 << 10
"""Bytes of inputs that a model gets at once, where its own batch size is smaller: calls cost more than rows then."""
PROBES = 64
"""Rows of the data, and as many made-up ones, whose outputs show what outputs mean."""

_cache: OrderedDict[str, LoadedModel] = OrderedDict()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    trainable: Any
    manifest: Manifest
    tracker: RowTracker | None
    """Runs the Dataset's transform, where it had one."""
    batch_size: int
    """Rows that the model gets at once."""

    def __call__(self, batch: Any) -> Any:
        """Return the outputs for an Arrow record batch of at least one row: an array of shape (rows, …) or a dict of
        such; NaN for rows that the transform drops.

        Raises:
            DataError: the rows cannot be encoded as the training rows were; the transform doubles rows, or drops some
                and does not tell which.
        """
        outputs = []
        for part in lists(batch):
            columns = apply(self.manifest, part, self.tracker, targets=False)
            outputs.append(answers(self.trainable, columns, self.batch_size, same_type=True))
        return _concatenate(outputs)


def cached_model(ticket: Ticket) -> LoadedModel:
    """Return the model of a ticket in this worker; the first call opens it, and takes as long as the recipe does."""
    if ticket.digest in _cache:
        _cache.move_to_end(ticket.digest)
        return _cache[ticket.digest]
    for name, value in environment(1).items():
        os.environ.setdefault(name, value)
    model = open_model(ticket.fetch(), threads=1)
    _cache[ticket.digest] = model
    while len(_cache) > CACHED_MODELS:
        _cache.popitem(last=False)
    return model


def open_model(files: Mapping[str, bytes], threads: int) -> LoadedModel:
    """Return the model in the files of a Portable.

    Args:
        files: name → content.
        threads: number of threads of its framework; 0: it stays as it is.

    Raises:
        SpecError: the model cannot predict.
        RunDirectoryError: another Python version wrote it.
        Exception: whatever the recipe raises.
    """
    about = parse(files[CONFIG])
    quiet(about.backend)
    with scratch_folder("model") as root:
        for name, content in files.items():
            (root / name).write_bytes(content)
        plan = Plan(load(root / RECIPE, about.python, trust=True), about.manifest, about.spec, threads=threads)
        built = build(plan, about.trial, about.config)
        restore_weights(built.trainable, about.framework, root)
    if not isinstance(built.trainable, SupportsPredict):
        raise SpecError(f"{type(built.trainable).__name__} has no method predict(batch): give it one")
    tracker = RowTracker(cloudpickle.loads(files[TRANSFORM])) if TRANSFORM in files else None
    chunk_rows = max(1, CHUNK_BYTES // max(1, sum(info.row_bytes for info in about.manifest.inputs.values())))
    return LoadedModel(built.trainable, about.manifest, tracker, max(built.batch_size, chunk_rows))


def probe(model: Portable) -> Any:
    """Return the outputs for two rows of zeros, which every model takes, to see their types. It runs in this process,
    which stays as it was.

    Returns:
        Array of shape (2, …), or a dict of such.
    """
    zeros = {name: np.zeros((2, *info.shape), info.dtype) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        return open_model(model.files, threads=0).trainable.predict(_batch(zeros, 2))


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
        loaded = open_model(model.files, threads=0)
        outputs = [loaded(batch) for batch in rows if batch.num_rows]
        with suppress(Exception):  # whatever a framework raises
            outputs.append(loaded.trainable.predict(_batch(inputs, PROBES)))
    return outputs


def _batch(inputs: dict[str, Any], rows: int) -> Batch:
    return Batch(inputs["inputs"] if list(inputs) == ["inputs"] else inputs, None, None, rows)


def _concatenate(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

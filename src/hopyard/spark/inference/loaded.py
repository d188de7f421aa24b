"""A model that travelled, as it stands ready in a Python worker of Spark: opened once, used for every batch.

The state of this module is the few models that were used last in this process. It knows nothing of DataFrames.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import msgspec
import numpy as np

from hopyard.data.apply import apply
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import ArrayInfo, Manifest
from hopyard.driver.pickling import load
from hopyard.driver.runs.saved_model import CONFIG, OWN, RECIPE, WEIGHTS, Saved
from hopyard.errors import SpecError
from hopyard.formats.vectors import lists
from hopyard.frameworks import environment, model_file, quiet
from hopyard.frameworks.tree import restore
from hopyard.ports import SupportsPredict
from hopyard.spark.inference.bundle import TRANSFORM, Portable, Ticket
from hopyard.spec import Batch
from hopyard.store.tree import decode
from hopyard.system.scratch import scratch_folder
from hopyard.training.build import Plan, build, undisturbed
from hopyard.training.predicting import answers

KEPT = 4
"""Models that a worker keeps: workers live as long as their executor, and a cross-validation brings many."""
CHUNK_BYTES = 256 << 10
"""Of inputs that a model is given at once, where its own batch size is smaller: calls cost more than rows then."""
PROBES = 64
"""Rows, of the data and made-up ones, from which is told what outputs mean."""

_ready: OrderedDict[str, Opened] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Opened:
    """A model in memory."""

    trainable: Any
    manifest: Manifest
    tracker: RowTracker | None
    """Of the Dataset's transform, where it had one."""
    rows: int
    """That it is given at once."""

    def __call__(self, batch: Any) -> Any:
        """Outputs for an Arrow record batch of at least one row: array of shape (rows, …) or a dict of such; NaN for
        rows that the transform drops.

        Raises:
            DataError: the rows cannot be encoded as the training rows were; the transform doubles rows, or drops some
                and does not tell which.
        """
        made = []
        for part in lists(batch):
            columns = apply(self.manifest, part, self.tracker, targets=False)
            made.append(answers(self.trainable, columns, self.rows, same_type=True))
        return _together(made)


def ready(ticket: Ticket) -> Opened:
    """The model of a ticket in this worker; opened at the first call, which takes as long as the recipe does."""
    if ticket.digest in _ready:
        _ready.move_to_end(ticket.digest)
        return _ready[ticket.digest]
    for name, value in environment(1).items():
        os.environ.setdefault(name, value)
    made = opened(ticket.fetch(), threads=1)
    _ready[ticket.digest] = made
    while len(_ready) > KEPT:
        _ready.popitem(last=False)
    return made


def opened(files: Mapping[str, bytes], threads: int) -> Opened:
    """The model in the files of a Portable.

    Args:
        files: name → content.
        threads: of its framework; 0: as they are.

    Raises:
        SpecError: it cannot predict.
        RunDirectoryError: of another Python version.
        Exception: whatever the recipe raises.
    """
    about = msgspec.json.decode(files[CONFIG], type=Saved)
    quiet(about.backend)
    with scratch_folder("model") as root:
        for name, content in files.items():
            (root / name).write_bytes(content)
        plan = Plan(load(root / RECIPE, about.python), about.manifest, about.spec, threads=threads)
        built = build(plan, about.trial, about.config)
        if about.framework == OWN:
            restore(built.trainable, decode(files[WEIGHTS]))
        else:
            file = model_file(about.framework)
            file.load(file.model(built.trainable), root / file.name)
    if not isinstance(built.trainable, SupportsPredict):
        raise SpecError(f"{type(built.trainable).__name__} has no method predict(batch): give it one")
    tracker = RowTracker(cloudpickle.loads(files[TRANSFORM])) if TRANSFORM in files else None
    least = max(1, CHUNK_BYTES // max(1, sum(info.row_bytes for info in about.manifest.inputs.values())))
    return Opened(built.trainable, about.manifest, tracker, max(built.batch_size, least))


def probe(model: Portable) -> Any:
    """Outputs for two rows of zeros, which every model takes, in this process, which stays as it was: for their types.

    Returns:
        Array of shape (2, …), or a dict of such.
    """
    made = {name: np.zeros((2, *info.shape), info.dtype) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        return opened(model.files, threads=0).trainable.predict(_batch(made, 2))


def tried(model: Portable, rows: Sequence[Any]) -> list[Any]:
    """Outputs that show what they mean, in this process, which stays as it was.

    Args:
        model: whose.
        rows: Arrow record batches of the columns that the model needs.

    Returns:
        Outputs for each of the batches, and for made-up rows if the model takes these (an embedding does not): floating
        inputs are normal deviates from small to large, whole ones 0. Each is an array of shape (rows, …), or a dict.
    """
    rng = np.random.default_rng(0)
    scales = np.logspace(-1, 2, PROBES, dtype=np.float32)

    def invented(info: ArrayInfo) -> Any:
        if np.dtype(info.dtype).kind != "f":
            return np.zeros((PROBES, *info.shape), info.dtype)
        values = rng.standard_normal((PROBES, *info.shape), dtype=np.float32)
        return (values * scales.reshape(-1, *[1] * len(info.shape))).astype(info.dtype)

    made = {name: invented(info) for name, info in model.about.manifest.inputs.items()}
    with undisturbed():
        there = opened(model.files, threads=0)
        outputs = [there(batch) for batch in rows if batch.num_rows]
        with suppress(Exception):  # whatever a framework raises
            outputs.append(there.trainable.predict(_batch(made, PROBES)))
    return outputs


def _batch(inputs: dict[str, Any], rows: int) -> Batch:
    return Batch(inputs["inputs"] if list(inputs) == ["inputs"] else inputs, None, None, rows)


def _together(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

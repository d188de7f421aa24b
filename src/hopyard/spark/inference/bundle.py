"""A trained model as bytes that can be sent: the files that `save` writes.

The driver makes them and sends them to executors once for each model and session; the module `loaded` opens them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from blake3 import blake3

from hopyard.driver.saved_files import CONFIG, Saved, parse, place, read
from hopyard.driver.saved_model import SavedModel
from hopyard.errors import ResourceError, SpecError
from hopyard.frameworks import quiet
from hopyard.sparkapi import is_connect
from hopyard.system.scratch import scratch_folder

CONNECT_BYTES = 100 << 20
"""Largest model in a Connect session, where it is part of the query: servers refuse messages of more than 128 MiB."""


@dataclass(frozen=True, eq=False)
class Portable:
    """A model and the encoding of its data.

    Attributes:
        files: name → content, as in a saved model's directory.
    """

    files: Mapping[str, bytes]
    _broadcasts: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, repr=False)
    """SparkContext → the broadcast of `files` in it."""

    def __post_init__(self) -> None:
        self.about  # noqa: B018 - files that `save` did not write are refused here

    @cached_property
    def about(self) -> Saved:
        """The content of `config.json`."""
        return parse(self.files[CONFIG])

    @property
    def digest(self) -> str:
        """BLAKE3 of all its files."""
        hasher = blake3()
        for name in sorted(self.files):
            hasher.update(f"{name} {len(self.files[name])} ".encode())
            hasher.update(self.files[name])
        return hasher.hexdigest()

    def ticket(self, session: Any) -> ModelTicket:
        """Return what a function sends of the model to executors. A classic session broadcasts the bytes, at the
        first call.

        Raises:
            ResourceError: the model is too large for a Connect session.
        """
        if is_connect(session):
            total = sum(map(len, self.files.values()))
            if total > CONNECT_BYTES:
                raise ResourceError(
                    f"the model has {total:,} bytes, a Connect session takes {CONNECT_BYTES:,} (it travels in the "
                    "query): use a classic session, or keep the file where executors can read it and use "
                    "hy.spark.map_batches with a function that loads it"
                )
            return ModelTicket(self.digest, dict(self.files))
        context = session.sparkContext
        if context not in self._broadcasts:
            self._broadcasts[context] = context.broadcast(dict(self.files))
        return ModelTicket(self.digest, self._broadcasts[context])


@dataclass(frozen=True, slots=True)
class ModelTicket:
    """A model's digest, and its files: a dict, or Spark's Broadcast of one."""

    digest: str
    files: Any


def portable(model: Any, checkpoint: Literal["best", "last"] = "best", trust: bool = False) -> Portable:
    """Return the model of a Run (its best trial), of a Trial, or of a directory that `save` wrote, by path or as a
    SavedModel; a Portable as it is.

    Raises:
        SpecError: `model` is none of these.
        TrialFailed, RunFailed: there is no trained model.
        RunDirectoryError: the directory has no saved model, or others than this user and root may write its pickle.
    """
    from hopyard.driver.runs.run import Run  # here: executors import this module too
    from hopyard.driver.runs.trial import Trial

    if isinstance(model, Portable):
        return model
    if isinstance(model, Run):
        model = model.best
    if isinstance(model, Trial):
        with scratch_folder("model") as folder:
            return Portable(_read(model.save(folder / "model", checkpoint), trust=True))
    if isinstance(model, SavedModel):
        return Portable(model.files())
    if isinstance(model, (str, Path)):
        return Portable(_read(place("model", model), trust))
    raise SpecError(
        "model must be a Run, a Trial, a SavedModel or the directory that run.best.save(…) wrote, got "
        f"{type(model).__name__}; a bare model does not know how its data was encoded"
    )


def _read(root: Path | str, trust: bool) -> dict[str, bytes]:
    about, files = read(root, trust)
    quiet(about.backend)
    return files

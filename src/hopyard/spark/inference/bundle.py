"""A trained model as bytes that can be sent: the files that `save` writes, and the transform that its data had.

The driver makes them and sends them to executors once for each model and session; the module `loaded` opens them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec
from blake3 import blake3

from hopyard.driver.pickling import dump, read_trusted
from hopyard.driver.runs.run import Run
from hopyard.driver.runs.saved_model import CONFIG, OWN, RECIPE, WEIGHTS, Saved
from hopyard.driver.runs.trial import Trial
from hopyard.errors import ResourceError, RunDirectoryError, SpecError
from hopyard.frameworks import model_file, quiet
from hopyard.sparkapi.session import is_connect
from hopyard.system.scratch import scratch_folder

TRANSFORM = "transform.pkl"
"""File with the transform of the training Dataset, where it had one; `save` does not write it."""
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

    @property
    def about(self) -> Saved:
        """The content of `config.json`."""
        try:
            return msgspec.json.decode(self.files[CONFIG], type=Saved)
        except msgspec.MsgspecError as error:
            raise RunDirectoryError(f"{CONFIG} was not written by run.best.save(…): {error}") from error

    @property
    def digest(self) -> str:
        """BLAKE3 of all its files."""
        hasher = blake3()
        for name in sorted(self.files):
            hasher.update(f"{name} {len(self.files[name])} ".encode())
            hasher.update(self.files[name])
        return hasher.hexdigest()

    def ticket(self, session: Any) -> Ticket:
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
                    "hy.map_batches with a function that loads it"
                )
            return Ticket(self.digest, dict(self.files), None)
        context = session.sparkContext
        if context not in self._broadcasts:
            self._broadcasts[context] = context.broadcast(dict(self.files))
        return Ticket(self.digest, None, self._broadcasts[context])


@dataclass(frozen=True, slots=True)
class Ticket:
    """A model's digest, and its files: here, or in a broadcast."""

    digest: str
    files: Mapping[str, bytes] | None
    broadcast: Any

    def fetch(self) -> Mapping[str, bytes]:
        """Return the files; in an executor this may wait for them."""
        files: Mapping[str, bytes] = self.broadcast.value if self.files is None else self.files
        return files


def portable(model: Any, which: Literal["best", "last"] = "best", trust: bool = False) -> Portable:
    """Return the model of a Run (its best trial), of a Trial, or of a directory that `save` wrote.

    Raises:
        SpecError: `model` is none of these.
        TrialFailed, RunFailed: there is no trained model.
        RunDirectoryError: the directory has no saved model, or others than this user and root may write its pickle.
    """
    if isinstance(model, Run):
        model = model.best
    if isinstance(model, Trial):
        with scratch_folder("model") as folder:
            files = _read(model.save(folder / "model", which), trust=True)
        transform = model._models().transform
        return Portable(files if transform is None else {**files, TRANSFORM: dump(transform, "transform")})
    if isinstance(model, (str, Path)):
        return Portable(_read(Path(model), trust))
    raise SpecError(
        f"model must be a Run, a Trial or the directory that run.best.save(…) wrote, got {type(model).__name__}; a "
        "bare model does not know how its data was encoded"
    )


def _read(root: Path, trust: bool) -> dict[str, bytes]:
    try:
        config = (root / CONFIG).read_bytes()
        about = msgspec.json.decode(config, type=Saved)
        quiet(about.backend)
        weights = WEIGHTS if about.framework == OWN else model_file(about.framework).name
        recipe = read_trusted(root / RECIPE, trust)
        return {CONFIG: config, RECIPE: recipe, weights: (root / weights).read_bytes()}
    except OSError as error:
        raise RunDirectoryError(
            f"{root}: {Path(error.filename or root).name} cannot be read ({error.strerror}); it must be a "
            "directory that run.best.save(…) wrote (for a run directory use hy.load(…))"
        ) from error
    except msgspec.MsgspecError as error:
        raise RunDirectoryError(f"{root / CONFIG}: not written by run.best.save(…): {error}") from error

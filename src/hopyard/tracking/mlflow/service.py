"""What the tracker asks of MLflow: the same calls for a server and for a database."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from hopyard.tracking.mlflow.sheets import Batch

MODEL = "model"
"""The name of the best model."""
DIGEST = "hopyard.digest"
"""The tag of models that has the digest of their State."""
MISSING, EXISTS = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
"""Codes of errors."""
PASSING = (408, 409, 425, 429)
STALE = (MISSING, EXISTS, "INVALID_PARAMETER_VALUE", "BAD_REQUEST")
"""Codes that MLflow gives to what somebody else has deleted or made: the next look at its state resolves them."""


class StoredRun(NamedTuple):
    """A run, as MLflow has it. Its `tags` are those that it had when it was read, and what was sent since."""

    id: str
    uri: str
    """Of its artifacts."""
    tags: dict[str, str]
    status: str = "RUNNING"
    end: int | None = None
    """In milliseconds since 1970."""
    deleted: bool = False


class Model(NamedTuple):
    """A logged model, as MLflow has it."""

    id: str
    uri: str
    """Of its artifacts."""
    ready: bool


class Elsewhere(Exception):
    """Artifacts cannot be written from here to where they are kept."""


def final(status: int, code: str) -> bool:
    """Return whether every further try would get this error too.

    Args:
        status: of HTTP.
        code: of MLflow; empty: there is none.
    """
    return 300 <= status < 500 and status not in PASSING and code not in STALE


class Service(Protocol):
    """MLflow. Calls are made inside a `with` block.

    Raises:
        Refused: it accepts nothing from this user, or nothing in this experiment, or not this request.
        OSError: the next try may succeed.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def experiment(self) -> str:
        """Return the id of the experiment that the environment names, which is made where there is none."""
        ...

    def search(self, experiment: str, tag: str, value: str) -> list[StoredRun]:
        """Return all runs with this tag, deleted ones too."""
        ...

    def create(self, experiment: str, name: str, start: int, tags: dict[str, str]) -> StoredRun:
        """Create a run."""
        ...

    def send(self, run: str, batch: Batch) -> None:
        """Add parameters, points and tags, in this order."""
        ...

    def set_status(self, run: str, status: str, end: int | None) -> None:
        """Set its status, and the time of its end."""
        ...

    def set_dataset(self, run: str, dataset: dict[str, str]) -> None:
        """Add the data that it trains on. Once it is there, this does nothing."""
        ...

    def delete(self, run: str) -> None:
        """Delete a run; MLflow can restore it."""
        ...

    def upload(self, run: StoredRun, folder: Path) -> None:
        """Upload the files of a folder as artifacts of a run, in the place of those that it has.

        Raises:
            Elsewhere: they cannot be written from here.
        """
        ...

    def model(self, experiment: str, run: str, digest: str) -> Model:
        """Return the model of this run with this digest; it is created where there is none."""
        ...

    def log_model(self, run: str, model: Model, folder: Path) -> None:
        """Upload the files of a model, add it to the outputs of the run, and make it ready.

        Raises:
            Elsewhere: they cannot be written from here.
        """
        ...

    def register(self, name: str, run: str, model: Model) -> None:
        """Register the model as a version of this name, where it is none yet."""
        ...

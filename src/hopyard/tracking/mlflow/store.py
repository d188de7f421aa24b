"""The same calls through the client of `mlflow-skinny`, for databases (`sqlite:` and what else SQLAlchemy opens) and
Databricks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlflow import MlflowClient, set_tracking_uri
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag, ViewType
from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS, MlflowException
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from hopyard.text import error_line, without_passwords
from hopyard.tracking.follower import Refused
from hopyard.tracking.mlflow.service import DIGEST, EXISTS, MODEL, Elsewhere, Model, StoredRun, final
from hopyard.tracking.mlflow.sheets import Batch


class Store:
    """A database, or what else MLflow's own client opens.

    Args:
        uri: of the database.
        environ: has MLFLOW_EXPERIMENT_ID or MLFLOW_EXPERIMENT_NAME. Credentials are read by the client.
    """

    def __init__(self, uri: str, environ: Mapping[str, str]) -> None:
        self._uri, self._shown = uri, without_passwords(uri)
        self._made: Any = None
        self._id = environ.get("MLFLOW_EXPERIMENT_ID", "")
        self._name = environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"

    @property
    def _client(self) -> Any:
        if self._made is None:  # the first client makes the tables, which may fail
            set_tracking_uri(self._uri)  # where the registry looks for the model of a version
            try:
                self._made = MlflowClient(self._uri)
            except (ImportError, ArgumentError) as error:  # of the database's driver
                raise Refused(f"{self._told(error)}; install its driver, or give another URI") from error
            except MlflowException as error:
                if error.error_code == "INVALID_PARAMETER_VALUE":  # the URI
                    raise Refused(self._told(error)) from error
                raise
        return self._made

    def _told(self, error: Exception) -> str:
        """Return the text of an error, without the password of the URI."""
        return f"{self._shown}: {error_line(error).replace(self._uri, self._shown)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (MlflowException, SQLAlchemyError)):
            code = getattr(error, "error_code", "")
            status = ERROR_CODE_TO_HTTP_STATUS.get(code, 500)
            raise (Refused if final(status, code) else ConnectionError)(self._told(error)) from error

    def experiment(self) -> str:
        """See `Service`."""
        if self._id:
            experiment = self._client.get_experiment(self._id)
        else:
            experiment = self._client.get_experiment_by_name(self._name)
            if experiment is None:
                return str(self._client.create_experiment(self._name))
        if experiment.lifecycle_stage == "deleted":
            raise Refused(
                f"{self._shown}: the experiment {experiment.name!r} was deleted; restore it, or name another by "
                "MLFLOW_EXPERIMENT_NAME"
            )
        return str(experiment.experiment_id)

    def search(self, experiment: str, tag: str, value: str) -> list[StoredRun]:
        """See `Service`."""
        runs, page = list[StoredRun](), None
        while True:
            found = self._client.search_runs(
                [experiment], f"tags.`{tag}` = '{value}'", ViewType.ALL, max_results=1000, page_token=page
            )
            runs += [_run(each) for each in found]
            page = found.token
            if not page:
                return runs

    def create(self, experiment: str, name: str, start: int, tags: dict[str, str]) -> StoredRun:
        """See `Service`."""
        return _run(self._client.create_run(experiment, start, tags, name))

    def send(self, run: str, batch: Batch) -> None:
        """See `Service`."""
        self._client.log_batch(
            run,
            [Metric(point.name, point.value, point.at, point.step) for point in batch.points],
            [Param(*pair) for pair in batch.params.items()],
            [RunTag(*pair) for pair in batch.tags.items()],
            synchronous=True,
        )

    def set_status(self, run: str, status: str, end: int | None) -> None:
        """See `Service`."""
        if end is None:
            self._client.update_run(run, status)
        else:
            self._client.set_terminated(run, status, end)

    def set_dataset(self, run: str, dataset: dict[str, str]) -> None:
        """See `Service`."""
        tag = InputTag("mlflow.data.context", "training")
        self._client.log_inputs(run, [DatasetInput(Dataset(**dataset), [tag])])

    def delete(self, run: str) -> None:
        """See `Service`."""
        self._client.delete_run(run)

    def upload(self, run: StoredRun, folder: Path) -> None:
        """See `Service`."""
        with self._artifacts(run.uri):
            self._client.log_artifacts(run.id, str(folder))

    def model(self, experiment: str, run: str, digest: str) -> Model:
        """See `Service`."""
        query = f"source_run_id = '{run}' AND tags.`{DIGEST}` = '{digest}'"
        if models := self._client.search_logged_models([experiment], query):
            return _model(models[0])
        return _model(self._client.create_logged_model(experiment, MODEL, run, {DIGEST: digest}))

    def log_model(self, run: str, model: Model, folder: Path) -> None:
        """See `Service`."""
        with self._artifacts(model.uri):
            self._client.log_model_artifacts(model.id, str(folder))
        outputs = self._client.get_run(run).outputs
        if model.id not in [each.model_id for each in outputs.model_outputs] if outputs else True:
            self._client.log_outputs(run, [LoggedModelOutput(model.id, step=0)])
        self._client.finalize_logged_model(model.id, "READY")

    def register(self, name: str, run: str, model: Model) -> None:
        """See `Service`."""
        source = f"models:/{model.id}"
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != EXISTS:
                raise
        versions = self._client.search_model_versions(f"run_id = '{run}'")
        if (name, source) not in [(each.name, each.source) for each in versions]:
            self._client.create_model_version(name, source, run, model_id=model.id)

    @contextmanager
    def _artifacts(self, uri: str) -> Iterator[None]:
        """Tell errors of what keeps artifacts, such as a missing boto3, from those of MLflow and of the network."""
        try:
            yield
        except PermissionError as error:
            raise Elsewhere(f"{uri}: {error_line(error)}") from error
        except (OSError, MlflowException, SQLAlchemyError):
            raise
        except Exception as error:
            raise Elsewhere(f"{uri}: {error_line(error)}") from error


def _run(run: Any) -> StoredRun:
    info = run.info
    deleted = info.lifecycle_stage == "deleted"
    return StoredRun(info.run_id, info.artifact_uri, dict(run.data.tags), info.status, info.end_time, deleted)


def _model(model: Any) -> Model:
    return Model(model.model_id, model.artifact_location, str(model.status) == "READY")

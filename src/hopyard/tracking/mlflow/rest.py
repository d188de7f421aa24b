"""MLflow's REST calls over HTTP, without its client.

Source: mlflow.org/docs/latest/rest-api.html, and github.com/mlflow/mlflow at v3.17.2 for what it leaves open. The tests
hold a played server to transcripts of a real one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

from hopyard import __version__
from hopyard.text import one_line, without_passwords
from hopyard.tracking.follower import Refused
from hopyard.tracking.mlflow.service import DIGEST, EXISTS, MISSING, MODEL, Elsewhere, Model, StoredRun, final
from hopyard.tracking.mlflow.sheets import Batch

TIMEOUT = 120.0
"""Seconds for each step of a call: to connect, to send, to receive. A call that is given up may have succeeded, so this
is longer than servers and proxies let one hang."""
IDLE = 1.0
"""Seconds after which a connection is opened anew, as servers close idle ones without a word, after 2 s some."""
PAGE = 200
"""Runs in an answer to a search."""
LARGEST = 64 << 20
"""The most bytes of an answer."""
USER, PASSWORD, TOKEN = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"
"""Variables of the environment."""
ARTIFACTS = "mlflow-artifacts"
"""The scheme of artifacts that go through the server."""


class Rest:
    """A tracking server, with one connection for each `with` block. No proxy and no redirect is followed: either would
    see the credentials.

    Args:
        url: of the server. Its user and password replace those of the environment. A user alone stands in for the
            environment's.
        environ: has MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN;
            MLFLOW_TRACKING_SERVER_CERT_PATH or MLFLOW_TRACKING_INSECURE_TLS; MLFLOW_EXPERIMENT_ID or
            MLFLOW_EXPERIMENT_NAME.

    Raises:
        Refused: the URL or the token is malformed, or the certificates cannot be read.
    """

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(url.rstrip("/"))
            self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
            valid = bool(self._host and re.fullmatch("[!-~]*", self._path))
        except ValueError:  # its text may have the password
            valid = False
        if not valid:
            raise Refused(
                f"{without_passwords(url)} is no URL of a server; it must be http[s]://[USER[:PASSWORD]@]HOST[:PORT]"
                "[/PATH], other characters than ASCII as %XX"
            )
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        user = {} if parts.username is None else {USER: unquote(parts.username)}
        if parts.password is not None:
            environ = {**environ, **user, PASSWORD: unquote(parts.password)}
        elif environ.get(PASSWORD):
            environ = {**user, **environ}
        self._context = _context(environ) if parts.scheme == "https" else None
        self._headers = {"User-Agent": f"hopyard/{__version__}", **_authorization(environ)}
        self._id = environ.get("MLFLOW_EXPERIMENT_ID", "")
        self._name = environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._connection: HTTPConnection | None = None
        self._answered = 0.0

    def __enter__(self) -> Self:
        if self._context is None:
            self._connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        else:
            self._connection = HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def experiment(self) -> str:
        """See `Service`."""
        if self._id:
            answer = self._call("GET", "experiments/get", {"experiment_id": self._id}, MISSING)
            if not answer:
                raise Refused(f"{self.url} has no experiment with MLFLOW_EXPERIMENT_ID = {self._id}")
        else:
            answer = self._call("GET", "experiments/get-by-name", {"experiment_name": self._name}, MISSING)
            if not answer:
                return str(self._call("POST", "experiments/create", {"name": self._name})["experiment_id"])
        experiment = answer["experiment"]
        if experiment.get("lifecycle_stage") == "deleted":
            raise Refused(
                f"{self.url}: the experiment {experiment['name']!r} was deleted; restore it, or name another by "
                "MLFLOW_EXPERIMENT_NAME"
            )
        return str(experiment["experiment_id"])

    def search(self, experiment: str, tag: str, value: str) -> list[StoredRun]:
        """See `Service`."""
        query = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{tag}` = '{value}'",
            "run_view_type": "ALL",
            "max_results": PAGE,
        }
        runs, page = list[StoredRun](), ""
        while True:
            answer = self._call("POST", "runs/search", query | ({"page_token": page} if page else {}))
            runs += [_run(each) for each in answer.get("runs", ())]
            page = answer.get("next_page_token", "")
            if not page:
                return runs

    def create(self, experiment: str, name: str, start: int, tags: dict[str, str]) -> StoredRun:
        """See `Service`."""
        body = {"experiment_id": experiment, "run_name": name, "start_time": start, "tags": _pairs(tags)}
        return _run(self._call("POST", "runs/create", body)["run"])

    def send(self, run: str, batch: Batch) -> None:
        """See `Service`."""
        body: dict[str, Any] = {"run_id": run, "params": _pairs(batch.params), "tags": _pairs(batch.tags)}
        body["metrics"] = [
            {"key": point.name, "value": _number(point.value), "timestamp": point.at, "step": point.step}
            for point in batch.points
        ]
        self._call("POST", "runs/log-batch", body)

    def set_status(self, run: str, status: str, end: int | None) -> None:
        """See `Service`."""
        times = {} if end is None else {"end_time": end}
        self._call("POST", "runs/update", {"run_id": run, "status": status, **times})

    def set_dataset(self, run: str, dataset: dict[str, str]) -> None:
        """See `Service`."""
        tags = _pairs({"mlflow.data.context": "training"})
        self._call("POST", "runs/log-inputs", {"run_id": run, "datasets": [{"tags": tags, "dataset": dataset}]})

    def delete(self, run: str) -> None:
        """See `Service`."""
        self._call("POST", "runs/delete", {"run_id": run})

    def upload(self, run: StoredRun, folder: Path) -> None:
        """See `Service`."""
        self._put(run.uri, folder)

    def model(self, experiment: str, run: str, digest: str) -> Model:
        """See `Service`."""
        query = {
            "experiment_ids": [experiment],
            "filter": f"source_run_id = '{run}' AND tags.`{DIGEST}` = '{digest}'",
        }
        if models := self._call("POST", "logged-models/search", query).get("models"):
            return _model(models[0])
        body = {"experiment_id": experiment, "name": MODEL, "source_run_id": run, "tags": _pairs({DIGEST: digest})}
        return _model(self._call("POST", "logged-models", body)["model"])

    def log_model(self, run: str, model: Model, folder: Path) -> None:
        """See `Service`."""
        self._put(model.uri, folder)
        outputs = self._call("GET", "runs/get", {"run_id": run})["run"].get("outputs", {}).get("model_outputs", ())
        if model.id not in [each["model_id"] for each in outputs]:  # once it is there, a second time is an error
            self._call("POST", "runs/outputs", {"run_id": run, "models": [{"model_id": model.id, "step": 0}]})
        body = {"model_id": model.id, "status": "LOGGED_MODEL_READY"}
        self._call("PATCH", f"logged-models/{quote(model.id)}", body)

    def register(self, name: str, run: str, model: Model) -> None:
        """See `Service`."""
        source = f"models:/{model.id}"
        self._call("POST", "registered-models/create", {"name": name}, EXISTS)
        query = {"filter": f"run_id = '{run}'"}
        versions = self._call("GET", "model-versions/search", query).get("model_versions", ())
        if (name, source) not in [(each["name"], each["source"]) for each in versions]:
            body = {"name": name, "source": source, "run_id": run, "model_id": model.id}
            self._call("POST", "model-versions/create", body)

    def _put(self, uri: str, folder: Path) -> None:
        """Upload the files of a folder through the server.

        Raises:
            Elsewhere: the server keeps none, or refuses one: by its size, or from this user.
        """
        parts = urlsplit(uri)
        if parts.scheme != ARTIFACTS:
            raise Elsewhere(f"{self.url} keeps them at {uri}, and does not pass them on (--serve-artifacts)")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = quote(f"{parts.path.strip('/')}/{path.relative_to(folder).as_posix()}")
                with path.open("rb") as file:
                    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
                    try:
                        self._ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{name}", file, headers)
                    except Refused as error:
                        raise Elsewhere(str(error)) from error

    def _call(self, method: str, name: str, fields: dict[str, Any], expected: str = "") -> dict[str, Any]:
        """Return the answer to a call; {}: it is an error with the code `expected`."""
        path, body, headers = f"/api/2.0/mlflow/{name}", None, {}
        if method == "GET":
            path += f"?{urlencode(fields)}"
        else:
            text = json.dumps(fields, allow_nan=False, ensure_ascii=False)  # shorter: batches are limited in bytes
            body, headers = text.encode(), {"Content-Type": "application/json"}
        content = self._ask(method, path, body, headers, expected)
        try:
            answer = json.loads(content or b"{}")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ConnectionError(f"{self.url}{path} answered no JSON: {_shown(content)}")
        return answer

    def _ask(
        self, method: str, path: str, body: bytes | BinaryIO | None, headers: dict[str, str], expected: str = ""
    ) -> bytes:
        assert self._connection is not None
        if time.monotonic() - self._answered >= IDLE:
            self._connection.close()  # the next request opens it
        where = f"{self.url}{path.partition('?')[0]}"
        try:
            with contextlib.suppress(BrokenPipeError):  # by a server that answers before it has read the whole body
                self._connection.request(method, self._path + path, body, {**self._headers, **headers})
            answer = self._connection.getresponse()
            text = _read(answer)
            self._answered = time.monotonic()
        except HTTPException as error:
            raise ConnectionError(f"{where}: {type(error).__name__}: {error}") from error
        except OSError as error:
            raise ConnectionError(f"{where}: {error or type(error).__name__}") from error
        except ValueError as error:  # its text may have a header
            raise ConnectionError(f"{where}: {type(error).__name__}") from None
        if answer.status == 200:
            return text
        code, message = _error(text)
        if expected and code == expected:
            return b""
        if answer.status in (401, 403):
            raise Refused(
                f"{where} answered {answer.status}: {message}; {USER} and {PASSWORD}, or {TOKEN}, must be those of a "
                "user who may write there"
            )
        if 300 <= answer.status < 400:
            host = re.match(r"(?:\w+:)?//(?:[^/?#]*@)?([^/?#]+)", answer.headers["Location"] or "")
            message = f"redirects to {one_line(host[1]) if host else 'itself'} are not followed; give MLflow's own URL"
        if final(answer.status, code):
            raise Refused(f"{where} answered {answer.status}: {message}")
        raise ConnectionError(f"{where} answered {answer.status}: {message}")


def _read(answer: HTTPResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        HTTPException: it is larger than any of MLflow's, or does not come to its end.
    """
    text, end = bytearray(), time.monotonic() + TIMEOUT
    while piece := answer.read1(1 << 16):
        text += piece
        if len(text) > LARGEST or time.monotonic() > end:
            raise HTTPException(f"no answer of MLflow: {len(text):,} bytes, and more to come")
    answer.close()  # `read1` does not, and the connection waits for it
    return bytes(text)


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return what checks the server's certificate."""
    if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        return ssl._create_unverified_context()  # noqa: S323 - the user asks for it
    authority = environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise Refused(f"MLFLOW_TRACKING_SERVER_CERT_PATH = {authority}: {error}; it must be a PEM file") from error


def _authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header that says who we are. As in MLflow, a user comes before a token."""
    if user := environ.get(USER):
        pair = f"{user}:{environ.get(PASSWORD, '')}".encode(errors="surrogateescape")
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    token = environ.get(TOKEN, "").strip()  # a file that it was read from may end in a newline
    if not re.fullmatch("[!-~]*", token):
        raise Refused(f"{TOKEN} must have printable ASCII characters only, and no space")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _run(fields: dict[str, Any]) -> StoredRun:
    info, data = fields["info"], fields.get("data", {})
    return StoredRun(
        info["run_id"],
        info.get("artifact_uri", ""),
        {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())},
        info["status"],
        info.get("end_time"),
        info.get("lifecycle_stage") == "deleted",
    )


def _model(fields: dict[str, Any]) -> Model:
    info = fields["info"]
    return Model(info["model_id"], info.get("artifact_uri", ""), info.get("status") == "LOGGED_MODEL_READY")


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in values.items()]


def _number(value: float) -> float | str:
    """Return a number as the JSON of protocol buffers has it."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _error(text: bytes) -> tuple[str, str]:
    """Return code and message of an error."""
    with contextlib.suppress(ValueError):
        fields = json.loads(text)
        if isinstance(fields, dict) and "error_code" in fields:
            return str(fields["error_code"]), one_line(str(fields.get("message", "")))[:500]
    return "", _shown(text)


def _shown(text: bytes) -> str:
    return one_line(text[:500].decode(errors="replace"))

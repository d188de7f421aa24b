"""A played tracking server of MLflow 3: the calls that Hopyard makes, with the limits and the errors of the real one.

`tests/tracking/test_mlflow_server.py` holds it to transcripts of the real server, version 3.17.2 on sqlite.
"""

from __future__ import annotations

import base64
import itertools
import math
import posixpath
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api_servers import ApiServer, Handler, tls_server

API, ARTIFACTS = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts/"
LARGEST = 1.7976931348623157e308


class Fault(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def missing(what: str) -> Fault:
    return Fault(404, "RESOURCE_DOES_NOT_EXIST", f"{what} does not exist")


def invalid(what: str) -> Fault:
    return Fault(400, "INVALID_PARAMETER_VALUE", what)


class MlflowServer:
    """Answers as MLflow does.

    Attributes:
        url: of the server.
        experiments, runs, models, versions: id → what is known of them; the versions a list.
        artifacts: path → content.
        accepted: the Authorization that a request must have; "": any.
        page: the most runs in an answer to a search.
        before: called with the number of each request, from 0, before it is carried out; may answer in its place, and
            then returns True.
        after: the same before the answer is sent.
    """

    def __init__(self, folder: Path | None = None) -> None:
        context, self.authority = tls_server(folder) if folder else (None, Path())
        self.server = ApiServer(context=context)
        self.server.default["call"] = self._answer
        self.url = self.server.url
        self.experiments: dict[str, dict[str, Any]] = {"0": {"name": "Default", "stage": "active"}}
        self.runs: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.versions: list[dict[str, Any]] = []
        self.registered: set[str] = set()
        self.artifacts: dict[str, bytes] = {}
        self.accepted, self.page, self.requests = "", 1000, 0
        self.before: Callable[[int, Handler], bool] = lambda number, handler: False
        self.after = self.before
        self._ids = itertools.count(1)

    def accept(self, user: str, password: str) -> None:
        """Let only this user in."""
        self.accepted = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    def called(self) -> list[str]:
        """The names of the calls so far, in their order."""
        return [path.removeprefix(API) for _, path, *_ in self.server.requests]

    def content(self) -> dict[str, Any]:
        """All runs that are not deleted, by name, the same whatever ids and whichever order they have."""
        names = {number: run["name"] for number, run in self.runs.items()}
        runs = {}
        for number, run in self.runs.items():
            if run["stage"] == "deleted":
                continue
            tags = {name: names.get(value, value) for name, value in run["tags"].items()}
            points = [(key, *point) for key, points in run["metrics"].items() for point in points]
            facts = {name: run[name] for name in ("name", "start", "end", "status", "params", "inputs")}
            outputs = [self.models[each]["tags"] for each in run["outputs"]]
            more = {"tags": tags, "points": sorted(points, key=repr), "outputs": outputs}
            assert names[number] not in runs, f"{names[number]} is there twice"
            runs[names[number]] = facts | more
        versions = [(each["name"], self.models[each["model_id"]]["tags"]) for each in self.versions]
        ready = {number: model["status"] for number, model in self.models.items()}
        known = {*self.runs, *self.models}
        files = sorted("/".join(part for part in path.split("/") if part not in known) for path in self.artifacts)
        return {"runs": runs, "files": files, "models": sorted(ready.values()), "versions": versions}

    def _answer(self, handler: Handler) -> None:
        number, self.requests = self.requests, self.requests + 1
        if self.before(number, handler):
            return
        status, body = 200, {}
        try:
            if self.accepted and handler.headers["Authorization"] != self.accepted:
                return handler.send(401, b"You are not authenticated.", {"Content-Type": "text/plain"})
            body = self._handle(handler)
        except Fault as fault:
            status, body = fault.status, {"error_code": fault.code, "message": str(fault)}
        if self.after(number, handler):
            return
        handler.send(status, body)

    def _handle(self, handler: Handler) -> Any:
        path = handler.path.partition("?")[0]
        if handler.command == "PUT" and path.startswith(ARTIFACTS):
            assert isinstance(handler.body, bytes)
            self.artifacts[path.removeprefix(ARTIFACTS)] = handler.body
            return b""
        name = path.removeprefix(API)
        if handler.command == "PATCH" and name.startswith("logged-models/"):
            model = self.models[name.removeprefix("logged-models/")]
            body: Any = handler.body
            model["status"] = body["status"]
            return {"model": self._model(model)}
        method = getattr(self, "_" + re.sub(r"\W", "_", name), None)
        if method is None or handler.command != ("GET" if name in GETS else "POST"):
            raise Fault(404, "ENDPOINT_NOT_FOUND", path)
        return method(handler.query if name in GETS else handler.body)

    def _experiments_get(self, body: Any) -> Any:
        if body["experiment_id"] not in self.experiments:
            raise missing("experiment")
        return self._experiment(body["experiment_id"])

    def _experiments_get_by_name(self, body: Any) -> Any:
        for number, each in self.experiments.items():
            if each["name"] == body["experiment_name"]:
                return self._experiment(number)
        raise missing("experiment")

    def _experiment(self, number: str) -> Any:
        known = self.experiments[number]
        fields = {"experiment_id": number, "name": known["name"], "artifact_location": f"mlflow-artifacts:/{number}"}
        return {"experiment": fields | {"lifecycle_stage": known["stage"]}}

    def _experiments_create(self, body: Any) -> Any:
        if any(each["name"] == body["name"] for each in self.experiments.values()):
            raise Fault(400, "RESOURCE_ALREADY_EXISTS")
        number = str(len(self.experiments))
        self.experiments[number] = {"name": body["name"], "stage": "active"}
        return {"experiment_id": number}

    def _experiments_delete(self, body: Any) -> Any:
        self.experiments[body["experiment_id"]]["stage"] = "deleted"
        return {}

    def _runs_create(self, body: Any) -> Any:
        if body["experiment_id"] not in self.experiments:
            raise missing("experiment")
        if self.experiments[body["experiment_id"]]["stage"] != "active":
            raise invalid("The experiment must be in the 'active' state")
        number = f"{next(self._ids):032x}"
        tags = {tag["key"]: tag["value"] for tag in body["tags"]} | {"mlflow.runName": body["run_name"]}
        run = {"id": number, "experiment": body["experiment_id"], "name": body["run_name"], "stage": "active"}
        run |= {"start": body["start_time"], "end": None, "status": "RUNNING", "tags": tags, "params": {}}
        self.runs[number] = {**run, "metrics": {}, "inputs": [], "outputs": []}
        created = self._run(self.runs[number])
        del created["outputs"]
        return {"run": created}

    def _runs_get(self, body: Any) -> Any:
        return {"run": self._run(self._known(body))}

    def _runs_search(self, body: Any) -> Any:
        match = re.fullmatch(r"tags\.`([^`]+)` = '([^']*)'", body["filter"])
        assert match and body["run_view_type"] == "ALL"
        found = [
            run
            for run in self.runs.values()
            if run["experiment"] in body["experiment_ids"] and run["tags"].get(match[1]) == match[2]
        ]
        first, most = int(body.get("page_token", 0)), min(self.page, body["max_results"])
        part = found[first : first + most]
        answer: dict[str, Any] = {"runs": [self._run(run) for run in part]} if part else {}
        return answer | ({"next_page_token": str(first + most)} if first + most < len(found) else {})

    def _runs_log_batch(self, body: Any) -> Any:
        run = self._active(body)
        metrics, params, tags = (body.get(kind, []) for kind in ("metrics", "params", "tags"))
        if len(metrics) + len(params) + len(tags) > 1000 or max(len(params), len(tags)) > 100:
            raise invalid("A batch logging request can contain at most …")
        for each in (*metrics, *params, *tags):
            key = each["key"]
            norm = posixpath.normpath(key)
            if not re.fullmatch(r"[/\w.\- :]*", key) or norm != key or norm == "." or norm.startswith(("..", "/")):
                raise invalid(f"Invalid value {key!r}")
            if len(key) > 250:
                raise invalid("exceeds the maximum length of 250 characters")
        for each in params:
            if run["params"].get(each["key"], each["value"][:6000]) != each["value"][:6000]:
                raise invalid("Changing param values is not allowed.")
        run["params"] |= {each["key"]: each["value"][:6000] for each in params}
        for each in metrics:
            value = max(-LARGEST, min(LARGEST, number)) if not math.isnan(number := float(each["value"])) else "NaN"
            points = run["metrics"].setdefault(each["key"], [])
            if (point := (each["timestamp"], each["step"], value)) not in points:
                points.append(point)
        run["tags"] |= {each["key"]: each["value"][:8000] for each in tags}
        return {}

    def _metrics_get_history(self, body: Any) -> Any:
        points = self._known(body)["metrics"].get(body["metric_key"], [])
        return {"metrics": [{"key": body["metric_key"], "value": v, "timestamp": t, "step": s} for t, s, v in points]}

    def _runs_update(self, body: Any) -> Any:
        run = self._active(body)
        run["status"] = body["status"]
        run["end"] = body.get("end_time", run["end"])
        return {"run_info": self._run(run)["info"]}

    def _runs_delete(self, body: Any) -> Any:
        self._known(body)["stage"] = "deleted"
        return {}

    def _runs_log_inputs(self, body: Any) -> Any:
        inputs = self._active(body)["inputs"]
        known = [(each["dataset"]["name"], each["dataset"]["digest"]) for each in inputs]
        for each in body["datasets"]:
            if len(each["dataset"]["digest"]) > 36:
                raise invalid("exceeds the maximum length of 36 characters")
            if (each["dataset"]["name"], each["dataset"]["digest"]) not in known:
                inputs.append(each)
        return {}

    def _runs_outputs(self, body: Any) -> Any:
        outputs = self._active(body)["outputs"]
        for each in body["models"]:
            if each["model_id"] in outputs:
                raise Fault(400, "BAD_REQUEST", "UNIQUE constraint failed")
            outputs.append(each["model_id"])
        return {}

    def _logged_models(self, body: Any) -> Any:
        number = f"m-{next(self._ids):032x}"
        tags = {tag["key"]: tag["value"] for tag in body["tags"]}
        known = {name: body[name] for name in ("experiment_id", "name", "source_run_id")}
        self.models[number] = {**known, "model_id": number, "tags": tags, "status": "LOGGED_MODEL_PENDING"}
        return {"model": self._model(self.models[number])}

    def _logged_models_search(self, body: Any) -> Any:
        match = re.fullmatch(r"source_run_id = '(\w+)' AND tags\.`([^`]+)` = '([^']*)'", body["filter"])
        assert match
        found = [
            self._model(model)
            for model in self.models.values()
            if model["source_run_id"] == match[1] and model["tags"].get(match[2]) == match[3]
        ]
        return {"models": found} if found else {}

    def _registered_models_create(self, body: Any) -> Any:
        if body["name"] in self.registered:
            raise Fault(400, "RESOURCE_ALREADY_EXISTS")
        self.registered.add(body["name"])
        return {"registered_model": {"name": body["name"]}}

    def _model_versions_create(self, body: Any) -> Any:
        if body["name"] not in self.registered:
            raise missing("registered model")
        count = sum(each["name"] == body["name"] for each in self.versions)
        self.versions.append({**body, "version": str(count + 1)})
        return {"model_version": self._version(self.versions[-1])}

    def _model_versions_search(self, body: Any) -> Any:
        match = re.fullmatch(r"run_id = '(\w+)'", body["filter"])
        assert match
        found = [self._version(each) for each in self.versions if each["run_id"] == match[1]]
        return {"model_versions": found} if found else {}

    def _known(self, body: Any) -> dict[str, Any]:
        if body["run_id"] not in self.runs:
            raise missing("run")
        return self.runs[body["run_id"]]

    def _active(self, body: Any) -> dict[str, Any]:
        run = self._known(body)
        if run["stage"] != "active":
            raise invalid("The run must be in the 'active' state")
        return run

    def _run(self, run: dict[str, Any]) -> Any:
        info = {"run_uuid": run["id"], "run_id": run["id"], "experiment_id": run["experiment"]}
        info |= {"run_name": run["name"], "status": run["status"], "start_time": run["start"]}
        info["artifact_uri"] = f"mlflow-artifacts:/{run['experiment']}/{run['id']}/artifacts"
        info["lifecycle_stage"] = run["stage"]
        if run["end"] is not None:
            info["end_time"] = run["end"]
        latest = {key: max(points, key=lambda point: point[1]) for key, points in run["metrics"].items()}
        metrics = [{"key": key, "value": v, "timestamp": t, "step": s} for key, (t, s, v) in latest.items()]
        data = {"metrics": metrics, "params": _pairs(run["params"]), "tags": _pairs(run["tags"])}
        fields = {"info": info, "data": {name: values for name, values in data.items() if values}}
        fields["inputs"] = {"dataset_inputs": run["inputs"]} if run["inputs"] else {}
        outputs = [{"model_id": each, "step": 0} for each in run["outputs"]]
        return fields | {"outputs": {"model_outputs": outputs} if outputs else {}}

    def _model(self, model: dict[str, Any]) -> Any:
        uri = f"mlflow-artifacts:/{model['experiment_id']}/models/{model['model_id']}/artifacts"
        info = {**model, "artifact_uri": uri, "tags": _pairs(model["tags"]), "model_type": ""}
        return {"info": info, "data": {}}

    def _version(self, version: dict[str, Any]) -> Any:
        fields = {name: version[name] for name in ("name", "version", "source", "run_id")}
        return fields | {"status": "READY", "current_stage": "None", "description": "", "run_link": ""}


GETS = {"experiments/get", "experiments/get-by-name", "runs/get", "model-versions/search", "metrics/get-history"}
"""The calls whose fields are in the URL."""


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in values.items()]


@contextmanager
def mlflow_server(folder: Path | None = None) -> Iterator[MlflowServer]:
    """Start a server; with a folder, one of HTTPS."""
    played = MlflowServer(folder)
    try:
        yield played
    finally:
        played.server.close()

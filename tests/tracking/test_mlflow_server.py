"""The played server of MLflow answers as a real one has: version 3.17.2, on sqlite.

Each line of the transcript has a call, its fields, and the status and the answer of the real server. Ids are named
where they first occur (`names`). `HOPYARD_MLFLOW_REAL=URL pytest` asks a real server whether it still answers so.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mlflow_server import API, ARTIFACTS, GETS, mlflow_server

TRANSCRIPT = Path(__file__).parent / "transcripts" / "mlflow.jsonl"
OWN = {"message", "sqlstate", "error_class", "workspace", "user_id", "creation_time", "last_update_time"}
OWN |= {f"{kind}_timestamp{unit}" for kind in ("creation", "last_updated") for unit in ("", "_ms")}
"""Fields of answers that say nothing to us."""


def ask(url: str, call: str, fields: Any) -> tuple[int, Any]:
    method, _, name = call.partition(" ")
    path, headers, body = API + name, {"Content-Type": "application/json"}, None
    if method == "PUT":
        path, headers, body = ARTIFACTS + name, {"Content-Type": "application/octet-stream"}, fields.encode()
    elif method == "GET":
        assert name in GETS
        path += f"?{urlencode(fields)}"
    else:
        body = json.dumps(fields).encode()
    request = urllib.request.Request(url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text) if text else {}


def known(value: Any, names: dict[str, str]) -> Any:
    """What an answer says to us, with its ids by their names; lists of pairs and runs in one order."""
    if isinstance(value, dict):
        plain = ("version",)  # which may look like an id
        return {k: each if k in plain else known(each, names) for k, each in value.items() if k not in OWN}
    if isinstance(value, list):
        return sorted((known(each, names) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(value, str):
        for name, text in names.items():
            value = f"${name}" if value == text else value.replace(text, f"${name}") if len(text) > 9 else value
        return re.sub(rf"^mlflow-artifacts:/{names.get('experiment')}\b", "mlflow-artifacts:/$experiment", value)
    return value


def filled(value: Any, names: dict[str, str]) -> Any:
    """Fields of a call, with the ids of this server."""
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"${name}", text)
    return value


def play(url: str, line: dict[str, Any], names: dict[str, str]) -> tuple[int, Any]:
    call, fields = filled(line["call"], names), filled(line["fields"], names)
    status, answer = ask(url, call, fields)
    for name, where in line.get("names", {}).items():
        text = answer
        for key in where.split("."):
            text = text[key]
        names[name] = text
    return status, known(answer, names)


def test_the_played_server_answers_as_the_real_one() -> None:
    names = {"name": os.urandom(8).hex()}
    with mlflow_server() as played:
        url = os.environ.get("HOPYARD_MLFLOW_REAL") or played.url
        for line in map(json.loads, TRANSCRIPT.read_text().splitlines()):
            assert (line["call"], *play(url, line, names)) == (line["call"], line["status"], line["answer"])

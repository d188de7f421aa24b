"""The trackers of runs: their names, what a target may be, and what of it may be written down.

A tracker is named NAME or NAME=TARGET. `hopyard.tracking` brings runs to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from hopyard.checks import expanded, path
from hopyard.errors import SpecError
from hopyard.text import shown, without_passwords

MODULES = {
    "kubeflow": "hopyard.tracking.kubeflow",
    "mlflow": "hopyard.tracking.mlflow.tracker",
    "tensorboard": "hopyard.tracking.tensorboard",
}
"""Name → module with `connect(target, layout, environ) -> Tracker`."""
CHOICES = '"tensorboard", "tensorboard=DIR", "mlflow" or "mlflow=URI"'
"""What `track=` may be. Kubeflow's is named by the environment alone."""
KUBEFLOW, MLFLOW, REGISTER = "KUBEFLOW_TRAINER_SERVER_URL", "MLFLOW_TRACKING_URI", "HOPYARD_MLFLOW_REGISTER"
EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_DATABASE = r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://.+"


def resolved(name: str, value: Any, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the trackers that an argument `name` asks for. Paths are absolute. For MLflow, the environment says what
    is not given, as it does for MLflow itself: the server, and the experiment, which stands behind a "#".

    Raises:
        SpecError: there is no such tracker, or its target is missing or none.
    """
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) and "\0" not in each for each in given):
        raise SpecError(f"{name} must be {CHOICES}, or a list of these, got {shown(value)}")
    trackers = []
    for each in given:
        tracker, equals, target = each.partition("=")
        if tracker not in ("tensorboard", "mlflow") or (equals and not target):
            raise SpecError(f"{name} = {shown(without_passwords(each))}: no such tracker; there are {CHOICES}")
        if tracker == "mlflow":
            target = _mlflow(name, target or environ.get(MLFLOW, ""), environ.get(EXPERIMENT, ""))
        elif "://" in target:
            raise SpecError(f"{name} = {shown(each)}: must be a directory of this host")
        elif target:
            target = str(expanded(path(name, target)))
        trackers.append(f"{tracker}={target}" if target else tracker)
    return tuple(dict.fromkeys(trackers))


def _mlflow(name: str, uri: str, experiment: str) -> str:
    """Return the target for this URI."""
    if not uri:
        raise SpecError(f'{name} = "mlflow": {MLFLOW} is not set; set it, or give "mlflow=https://…"')
    uri, hash_sign, own = uri.partition("#")
    if re.fullmatch(r"https?://[^/?]+.*", uri):
        uri = uri.rstrip("/")
    elif relative := re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?][^?]*)(.*)", uri):
        uri = f"{relative[1]}{os.path.abspath(relative[2])}{relative[3]}"  # noqa: PTH100 - as `Layout` makes it
    elif not re.fullmatch(rf"databricks(-uc)?(://.*)?|{_DATABASE}", uri):
        track = shown(f"mlflow={without_passwords(uri)}")
        raise SpecError(
            f"{name} = {track}: must be the URL of a server (https://…) or database (sqlite:///FILE, postgresql://…), "
            "or databricks; the folder store of MLflow is not written to"
        )
    own = own if hash_sign else quote(experiment, safe=" ")
    return f"{uri}#{own}" if own else uri


def with_password(track: str, environ: Mapping[str, str]) -> str:
    """Return the target of a tracker of MLflow, with the password that the environment's URI has for the same one."""
    target = track.partition("=")[2]
    uri, _, experiment = target.partition("#")
    own = environ.get(MLFLOW, "").partition("#")[0].rstrip("/")
    if own and without_passwords(own) == uri:
        uri = own
    return f"{uri}#{experiment}" if experiment else uri


def requested(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the trackers that an environment asks for: that of a pod of a TrainJob names the server that takes its
    progress."""
    return ("kubeflow",) if environ.get(KUBEFLOW) else ()

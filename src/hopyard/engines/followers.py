"""Followers as plain processes of this host: what brings a run to trackers (`hopyard.tracking`), beside the run.

A run neither waits for its followers nor fails with them, and ends without them. They belong to no worker and to no
group of this process, so that Ctrl-C and the end of the driver leave them alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopyard.engines.local import python_path
from hopyard.errors import SpecError
from hopyard.text import shown

log = logging.getLogger(__name__)

MLFLOW, REGISTER = "MLFLOW_TRACKING_URI", "HOPYARD_MLFLOW_REGISTER"
CHOICES = '"tensorboard", "tensorboard=DIR", "mlflow" or "mlflow=URI"'
LAST_SECONDS = 2.0
"""How long the end of this process waits for followers."""

_running: list[subprocess.Popen[bytes]] = []
"""Followers that this process has started. Owner: `start`."""


def resolved(name: str, value: Any) -> tuple[str, ...]:
    """Return what `track=` means: trackers, each NAME or NAME=TARGET. Paths are made absolute, and `mlflow` alone is
    the server that the environment names, as for MLflow itself.

    Raises:
        SpecError: there is no such tracker, or its target is missing.
    """
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) for each in given):
        raise SpecError(f"{name} must be {CHOICES}, or a list of these, got {shown(value)}")
    return tuple(dict.fromkeys([_resolved(name, each) for each in given]))


def _resolved(name: str, track: str) -> str:
    tracker, given, target = track.partition("=")
    if tracker not in ("tensorboard", "mlflow") or (given and not target):
        raise SpecError(f"{name} = {shown(track)}: no such tracker; there are {CHOICES}")
    if tracker == "tensorboard":
        return f"{tracker}={os.path.abspath(target)}" if target else tracker  # noqa: PTH100 - as `Layout` makes it
    target = target or os.environ.get(MLFLOW, "")
    if not target:
        raise SpecError(f'{name} = "mlflow": {MLFLOW} is not set; set it, or give "mlflow=https://…"')
    return f"{tracker}={target}"


def without_password(track: str) -> str:
    """Return the tracker without a password in its target, for files and command lines."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1@", track)


def requested_trackers() -> tuple[str, ...]:
    """Return the trackers that the environment of this process asks for: that of a pod of a TrainJob names the server
    that takes its progress."""
    return ("kubeflow",) if os.environ.get("KUBEFLOW_TRAINER_SERVER_URL") else ()


def command(track: str, directory: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a follower, and its environment, which has the password of the target if there is one."""
    name, _, target = track.partition("=")
    own = {MLFLOW: target} if name == "mlflow" else {}
    words = [sys.executable, "-P", "-m", "hopyard.tracking", *options, without_password(track), str(directory)]
    return words, {**os.environ, "PYTHONPATH": python_path(), **own}


def start(trackers: Sequence[str], directory: Path, log_of: Callable[[str], Path]) -> None:
    """Start a follower of a run for each tracker. One that cannot be started is warned of.

    The followers of a run in a pod would end with the driver, so the end of this process waits a moment for them: the
    end of the run does not.

    Args:
        trackers: each NAME or NAME=TARGET.
        directory: of the run.
        log_of: tracker → the log of its follower.
    """
    for track in trackers:
        path = log_of(without_password(track))
        words, environment = command(track, directory)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as output:
                follower = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("%s gets nothing of this run, as its follower cannot be started: %s", path.stem, error)
            continue
        _running[:] = [*(each for each in _running if each.poll() is None), follower]
        atexit.unregister(_wait)
        atexit.register(_wait)


def _wait() -> None:
    """Give followers a moment to send how their runs have ended."""
    deadline = time.monotonic() + LAST_SECONDS
    for follower in _running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            follower.wait(max(0.0, deadline - time.monotonic()))

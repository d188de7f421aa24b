"""Followers as plain processes of this host: what brings a run to trackers (`hopyard.tracking`), beside the run.

A run neither waits for its followers nor fails with them, and ends without them. They belong to no worker and to no
group of this process, so that Ctrl-C and the end of the driver leave them alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopyard import trackers
from hopyard.engines.local import python_path
from hopyard.text import without_passwords

log = logging.getLogger(__name__)

LAST_SECONDS = 2.0
"""How long the end of this process waits for followers."""

_running: list[subprocess.Popen[bytes]] = []
"""Followers that this process has started. Owner: `start`."""


def resolved(name: str, value: Any) -> tuple[str, ...]:
    """Return the trackers that `track=` asks for, in the environment of this process."""
    return trackers.resolved(name, value, os.environ)


def requested_trackers() -> tuple[str, ...]:
    """Return the trackers that this environment asks for."""
    return trackers.requested(os.environ)


def command(track: str, directory: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a follower, and its environment, which has the password of the target if there is one."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    if track.startswith("mlflow="):
        environment[trackers.MLFLOW] = trackers.with_password(track, os.environ).partition("#")[0]
    words = [sys.executable, "-P", "-m", "hopyard.tracking", *options, without_passwords(track)]
    return [*words, str(directory)], environment


def start(tracks: Sequence[str], directory: Path, log_of: Callable[[str], Path], *options: str) -> None:
    """Start a follower of a run for each tracker. One that cannot be started is warned of.

    The followers of a run in a pod would end with the driver, so the end of this process waits a moment for them: the
    end of the run does not.

    Args:
        tracks: the trackers, each NAME or NAME=TARGET.
        directory: of the run.
        log_of: tracker → the log of its follower.
        options: of `hopyard.tracking`.
    """
    for track in tracks:
        path = log_of(without_passwords(track))
        words, environment = command(track, directory, *options)
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

"""The progress of a TrainJob of Kubeflow Trainer, 2.2 or newer with the feature gate TrainJobStatus.

Source: github.com/kubeflow/trainer at 8c0f5059, proposals/2779-trainjob-progress/README.md and
docs/user-guides/trainjob-progress.md. "The controller injects KUBEFLOW_TRAINER_SERVER_URL (the HTTPS endpoint),
KUBEFLOW_TRAINER_SERVER_CA_CERT (path to the CA cert file), and KUBEFLOW_TRAINER_SERVER_TOKEN (path to the bearer token
file)." "Ensure your client throttles requests (e.g. at most once every 5 seconds)." "The bearer token is a JWT that
periodically rotates", and so does the certificate: both files are read for each post.

Limits, from pkg/apis/trainer/v1alpha1/trainjob_types.go: a percentage of 0 to 100, 256 metrics, names and values of 64
characters; pkg/statusserver/server.go: 64 KiB for a body. The server answers 200, 403 where the token does not verify,
422 where the status is not valid, 404 where the TrainJob is gone, and 500. A 403 may pass, because an expired token
gets one too (pkg/statusserver/auth.go) and the kubelet replaces the file; only a 404 does not.
"""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from hopyard.core.runs.machine import Machine
from hopyard.store.layout import Layout
from hopyard.store.standing import ENDED
from hopyard.text import one_line
from hopyard.tracking.follower import News, Refused
from hopyard.views import words
from hopyard.views.progress import seconds_left, share

URL, AUTHORITY, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
GAP = 5.0
"""Seconds between two posts."""
TIMEOUT = 5.0
"""Seconds for each step of a post: to connect, to send, to receive."""
METRICS = 128
"""The most metrics in a post: with names of four bytes a character, 256 would not fit into the body."""
CHARACTERS = 64
"""The most characters in the name and in the value of a metric."""
INT32 = 2**31 - 1
ANSWER = 4096
"""The most bytes that are read of an answer."""


class Server(NamedTuple):
    """The server that takes the progress of a TrainJob."""

    url: str
    authority: Path
    token: Path

    @property
    def gap(self) -> float:
        """The least time between two posts."""
        return GAP

    def update(self, news: News) -> None:
        """Post the state of a run over a connection of its own. No proxy and no redirect is followed: either would see
        the token."""
        try:
            parts = urlsplit(self.url)
            context = ssl.create_default_context(cafile=self.authority)
            token = self.token.read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=TIMEOUT, context=context)
            with contextlib.closing(connection):
                connection.request("POST", parts.path, body(news.machine, news.status, news.at), headers)
                answer = connection.getresponse()
                text = one_line(answer.read(ANSWER).decode(errors="replace"))
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"{self.url}: {type(error).__name__}: {error}") from error
        if answer.status == 404:
            raise Refused(f"{self.url} answered 404: {text}")
        if answer.status != 200:
            raise ConnectionError(f"{self.url} answered {answer.status}: {text}")


def connect(target: str, layout: Layout, environ: Mapping[str, str]) -> Server:
    """Return the server that these environment variables name. There is no other target.

    Raises:
        Refused: a variable is missing, or the URL is not one of HTTPS.
    """
    if missing := [name for name in (URL, AUTHORITY, TOKEN) if not environ.get(name)]:
        raise Refused(f"{', '.join(missing)} not set: Kubeflow Trainer sets all three in the pods of a TrainJob")
    try:
        scheme = urlsplit(environ[URL]).scheme
    except ValueError:
        scheme = ""
    if scheme != "https":
        raise Refused(f"{URL} = {environ[URL]!r} must begin with https://, as the post carries a token")
    return Server(environ[URL], Path(environ[AUTHORITY]), Path(environ[TOKEN]))


def body(machine: Machine, status: str, at: float) -> bytes:
    """Return the JSON of a post.

    Its metrics are those of the best trial's last epoch, the best value of the run's metric (`best_val_loss`), and
    which `trial` and `epoch` they are of. The percentage is 100 once the run has completed, and at most 99 before.

    Args:
        machine: the state of the run.
        status: of the run.
        at: when the last line of its journal was written.
    """
    complete = status in ("completed", "partial")
    percent = 100 if complete else min(99, int(100 * share(machine)))
    left = 0.0 if status in ENDED else seconds_left(machine)
    fields: dict[str, object] = {"progressPercentage": percent}
    if left is not None:
        fields["estimatedRemainingSeconds"] = min(math.ceil(left), INT32)
    fields["metrics"] = [
        {"name": name[:CHARACTERS], "value": str(value)[:CHARACTERS]} for name, value in _metrics(machine).items()
    ][:METRICS]
    fields["lastUpdatedTime"] = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return msgspec.json.encode({"trainerStatus": fields})


def _metrics(machine: Machine) -> dict[str, float]:
    best, metric = words.best(machine), machine.spec.metric
    if best is None:
        return {}
    value = best.value(metric)
    own = {} if value is None else {f"best_{metric}": value}
    return {**own, "trial": best.id, "epoch": max(best.history) + 1, **best.metrics}

"""A played status server of Kubeflow Trainer: HTTPS, a bearer token from a file, and the checks of the real one.

Its rules are those of pkg/statusserver and of the schema of TrainJob in github.com/kubeflow/trainer.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api_servers import ApiServer, Handler, failure, tls_server

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/flights/status"


class Trainer:
    """Accepts posts that carry the token `accepted`.

    Attributes:
        statuses: what was accepted, the newest last.
        refused: number of posts with another token.
        answer: answers a post in the place of these rules; None: they hold.
        environ: variables of a pod of the TrainJob.
    """

    def __init__(self, folder: Path) -> None:
        context, authority = tls_server(folder)
        self.server = ApiServer(context=context)
        self.server.default["call"] = self._answer
        self.token = folder / "token"
        self.statuses: list[dict[str, Any]] = []
        self.refused = 0
        self.answer: Callable[[Handler], None] | None = None
        self.environ = {
            "KUBEFLOW_TRAINER_SERVER_URL": self.server.url + PATH,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(authority),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
        }
        self.accepted = ""
        self.write("first")
        self.accepted = "first"

    def write(self, token: str) -> None:
        """Rotate the token in the pod, as a kubelet does: by a rename, with an end of line."""
        new = self.token.with_name("new")
        new.write_text(f"{token}\n")
        new.rename(self.token)

    @property
    def posts(self) -> int:
        return len(self.server.requests)

    def _answer(self, handler: Handler) -> None:
        if self.answer is not None:
            return self.answer(handler)
        if handler.command != "POST" or handler.path != PATH:
            return handler.send(404, failure(404, "NotFound", "Not found"))
        if handler.headers["Authorization"] != f"Bearer {self.accepted}":
            self.refused += 1
            return handler.send(403, failure(403, "Forbidden", "Forbidden"))
        body: Any = handler.body
        if wrong := invalid(body):
            return handler.send(422, failure(422, "Invalid", wrong))
        self.statuses.append(body["trainerStatus"])
        return handler.send(200, handler.body)


def invalid(body: Any) -> str:
    """Return what the schema has against a post; "" where it is valid."""
    status = body["trainerStatus"]
    assert set(body) == {"trainerStatus"}
    known = {"progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime"}
    if set(status) - known:
        return f"unknown: {set(status) - known}"
    if not datetime.datetime.fromisoformat(status.get("lastUpdatedTime", "")).tzinfo:
        return "lastUpdatedTime is required when trainerStatus is present"
    numbers = [status.get("progressPercentage", 0), status.get("estimatedRemainingSeconds", 0)]
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers) or numbers[0] > 100:
        return f"numbers: {numbers}"
    metrics = status.get("metrics", [])
    texts = [metric[key] for metric in metrics for key in ("name", "value")]
    if len(metrics) > 256 or not all(type(text) is str and 1 <= len(text) <= 64 for text in texts):
        return f"metrics: {metrics}"
    return ""


@contextmanager
def trainer(folder: Path) -> Iterator[Trainer]:
    folder.mkdir(exist_ok=True)
    played = Trainer(folder)
    try:
        yield played
    finally:
        played.server.close()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)

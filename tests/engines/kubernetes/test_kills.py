"""Drivers of runs on pods are killed before and after each call to the API server: nothing is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobs import script, until
from kube.api.errors import Cut
from kube.api.routes import Request
from kube.kubelet import missing
from kube.lab import NAMESPACE, USER, Lab
from pods import Gate, joined, joined_now, kill, left

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.usefixtures("settings"),
]
LONG = pytest.mark.long


START = ["GET version", "GET pods", "WATCH pods", "POST jobs 1", "GET jobs 1", "POST secrets"]
LOSS = ["POST jobs 2", "PATCH secrets", "DELETE jobs 1", "DELETE jobs 2", "DELETE jobs 3"]


def call_of(request: Request) -> str:
    """Return what a driver calls, such as "DELETE jobs 1"."""
    method = "WATCH" if "watch" in request.query else request.method
    *_, resource, name = ["", *request.path.rstrip("/").split("/")]
    if resource == NAMESPACE or request.path == "/version":
        resource, name = name, (request.body or {}).get("metadata", {}).get("name", "")
    if "annotations" in (request.body or {}).get("metadata", {}) and method == "PATCH":
        method = "RENEW"
    number = re.fullmatch(r"hopyard-\w+-(\d+)", name)
    return f"{method} {resource}{f' {number[1]}' if number else ''}"


class Drivers:
    """Drivers of a run with one worker, in processes of their own."""

    def __init__(self, lab: Lab, folder: Path, gate: Gate, name: str) -> None:
        self._lab, self._folder, self.calls = lab, folder, set[str]()
        body = (
            f"engine = hy.Kubernetes(1, {name!r}, memory='1Gi', shm='256Mi')\n"
            f"select(Path(sys.argv[1]), troubled, {gate.configs[:1]!r}, epochs=1, engine=engine)"
        )
        self._job = script(folder / "job.py", body)

    def start(self, run: str, kill_at: tuple[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start one. `kill_at`: it is killed before or after this call."""
        process: list[subprocess.Popen[bytes]] = []
        started = threading.Event()

        def look(when: str, request: Request) -> None:
            started.wait(60)
            if request.user != USER:
                return
            self.calls.add(call_of(request))
            if (when, call_of(request)) == kill_at:
                process[0].kill()
                process[0].wait()
                raise Cut

        self._lab.cluster.on_request = look
        with (self._folder / "log").open("ab") as log:
            words = [sys.executable, str(self._job), run]
            process.append(subprocess.Popen(words, cwd=self._folder, stdout=log, stderr=log, start_new_session=True))
        started.set()
        return process[0]

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code, once all that it has asked for is done."""
        code = process.wait(150)
        until(lambda: not self._lab.pods() or code, 60)
        return code


@LONG
@pytest.mark.timeout(1200)
def test_a_driver_killed_at_any_call_of_its_start_leaves_nothing(
    lab: Lab, tmp_path: Path, images: dict[str, Any]
) -> None:
    """The image is late, and the answer to the first Job lost, so that everything is called. Where the Secret never
    came, pods wait for it, and end."""
    drivers = Drivers(lab, tmp_path, Gate(lab, trials=0), "hopyard:late")
    for number, call in enumerate(START):
        for when in ("before", "after"):
            lab.cluster.faults.clear()
            lab.cluster.faults.add("lost", r"POST .*/jobs\?", times=call == "GET jobs 1")
            assert drivers.ended(drivers.start(f"{number} {when}", (when, call))) == -signal.SIGKILL, call
    assert lab.objects("jobs")
    images["hopyard:late"] = images["hopyard:hasty"]
    until(lambda: not left(lab), 150)


@LONG
@pytest.mark.timeout(1200)
def test_a_driver_killed_at_any_call_after_a_loss_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    gate = Gate(lab, trials=1)
    drivers = Drivers(lab, tmp_path, gate, "hopyard:hasty")
    kills = [(when, call) for call in LOSS for when in ("before", "after")]
    for kill_at in [None, *kills[:-1]]:  # there is no third Job, and a refusal ends nothing
        run = tmp_path / ("undisturbed" if kill_at is None else " ".join(kill_at))
        process = drivers.start(str(run), kill_at)
        host, _ = next(iter(joined(run, 1).items()))
        kill(lab, host)
        until(lambda: len(joined_now(run)) == 2 or process.poll() is not None, 90)  # noqa: B023 - called here
        with gate.open():
            assert drivers.ended(process) == (0 if kill_at is None else -signal.SIGKILL), kill_at
    assert drivers.calls - {"GET events", "RENEW secrets"} <= {*START, *LOSS}  # read-only, for slow pods; each 20 s
    assert not set(LOSS) - drivers.calls

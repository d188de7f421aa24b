"""How soon pods end, and all that runs in them, when their driver is gone or cannot be heard any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.engines.kubernetes.manifests import PLACES
from jobs import digests, driver, script, until
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab
from pods import Gate, joined

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.usefixtures("settings"),
]
JOB = """
import subprocess, time
class Helped(Linear):
    def train(self, batch):
        if self.steps == 3:
            subprocess.Popen(["sleep", "601"])
            subprocess.Popen(["sleep", "602"], start_new_session=True)
            subprocess.run(["sh", "-c", "setsid sleep 603 &"], check=True)
            time.sleep(600)
        return super().train(batch)
def helped(config):
    return Helped(WIDTH, 2, lr=config["lr"], batch_size=16)
engine = hy.Kubernetes(1, "hopyard:test", memory="1Gi", shm="256Mi")
select(Path("run"), helped, CONFIGS[:1], engine=engine)
"""
HELPERS = ("sleep 601", "sleep 602", "sleep 603")
"""In the group of the agent, in a session of its own, and in one whose parent has ended."""

PATIENT = """
import socket, time
from hopyard.system.network import parted
def patient(address):
    class Patient(Linear):
        def train(self, batch):
            while self.steps == 3:
                try:
                    socket.create_connection(parted(address), 1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            return super().train(batch)
    return lambda config: Patient(WIDTH, 2, lr=config["lr"], batch_size=16)
"""
"""A recipe that waits until somebody listens at an address."""


def of_agents(lab: Lab, pod: str) -> list[str]:
    """Return the commands that run in a pod, of processes that are no supervisors."""
    try:
        found = lab.kubelet_of(pod).processes(pod).values()
    except (StopIteration, KeyError):  # it is over
        return []
    return [command for command in found if command and "hopyard.engines.supervisors" not in command]


@pytest.fixture
def pod(lab: Lab, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A pod with an agent whose helpers run, and its driver."""
    process = driver([str(script(tmp_path / "job.py", JOB))], tmp_path)
    joined(tmp_path / "run", 1)
    (name,) = lab.pods()
    until(lambda: set(HELPERS) <= set(of_agents(lab, name)))
    yield name, process
    with process:
        process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("what", "agents_seconds", "pod_seconds"), [("ended", 5.0, 45.0), ("fell silent", 25.0, 60.0)])
def test_a_pod_ends_once_its_connection(
    lab: Lab, pod: tuple[str, subprocess.Popen[str]], what: str, agents_seconds: float, pod_seconds: float
) -> None:
    """Its agents, and all that these have started, end long before it: it dials again for half a minute."""
    name, process = pod
    if what == "ended":
        process.kill()
    else:
        lab.kubelet_of(name).link(name, False)
    began = time.monotonic()
    until(lambda: not of_agents(lab, name), agents_seconds)
    agents_took = time.monotonic() - began
    assert name in lab.pods()
    until(lambda: name not in lab.pods(), began + pod_seconds - time.monotonic())
    print(f"its connection {what}: agents {agents_took:.1f} s, pod {time.monotonic() - began:.1f} s")


def doctor(lab: Lab, folder: Path, *words: str) -> dict[str, str]:
    """Run a sweep as somebody who may do all. Return finding → its text."""
    config = lab.cluster.kubeconfig(folder / "admin", namespace=NAMESPACE)
    command = [sys.executable, "-m", "hopyard", "doctor", "--kubernetes", f"namespace={NAMESPACE}", "--sweep", "--json"]
    environ = os.environ | {"KUBECONFIG": str(config)}
    done = subprocess.run([*command, *words], env=environ, capture_output=True, text=True, timeout=180, check=True)
    return {finding["name"]: finding["text"] for finding in json.loads(done.stdout)}


@pytest.mark.timeout(600)
def test_a_sweep_removes_what_a_killed_driver_left_and_the_runs_of_others_complete(
    lab: Lab, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of four drivers two are killed: one whose pods wait for a node, and one whose pod runs. Of the other two one
    waits for the same node, which comes later."""
    gate, late = Gate(lab), {"nodeSelector": {"kubernetes.io/hostname": "late"}}
    address = str(gate.configs[0]["do"]).removeprefix("dial ")
    engine = "hy.Kubernetes(1, 'hopyard:test', memory='1Gi', shm='256Mi'"
    runs: dict[str, tuple[subprocess.Popen[str], str]] = {}
    for name, pod in {"killed": late, "waits": late, "ends": {}, "runs": {}}.items():
        folder = tmp_path / name
        folder.mkdir()
        before = {each["metadata"]["name"] for each in lab.objects("secrets")}
        body = f"{PATIENT}select(Path('run'), patient({address!r}), CONFIGS[:1], engine={engine}, pod={pod}))"
        process = driver([str(script(folder / "job.py", body))], folder)
        request.addfinalizer(process.kill)
        (places,) = until(lambda: {each["metadata"]["name"] for each in lab.objects("secrets")} - before)  # noqa: B023
        runs[name] = process, places
    for name in ("ends", "runs"):
        joined(tmp_path / name / "run", 1)
    for name in ("killed", "ends"):
        with runs[name][0] as process:
            process.kill()
    found = doctor(lab, tmp_path)
    places = {name: of for name, (_, of) in runs.items()}
    assert found[places["killed"]] == "1 Job, 1 Secret, 1 waiting pod; its driver is gone"
    assert found[places["waits"]] == "1 Job, 1 Secret, 1 waiting pod; its driver lives"
    assert found[places["runs"]].startswith("1 Job, 1 Secret, 1 running pod; ")
    assert "is gone" not in found.get(places["ends"], "")
    assert {places["killed"], places["waits"], places["runs"]} <= {job_places(job) for job in lab.objects("jobs")}
    assert doctor(lab, tmp_path, "--yes")[places["killed"]].endswith("; removed")
    until(lambda: {job_places(job) for job in lab.objects("jobs")} <= {places["waits"], places["runs"]}, 120)  # by ttl
    assert {each["metadata"]["name"] for each in lab.objects("secrets")} == {places["waits"], places["runs"]}
    lab.add("late")
    with gate.open():
        for name in ("waits", "runs"):
            with runs[name][0] as process:
                assert process.wait(120) == 0
    assert digests(hy.load(tmp_path / "waits" / "run")) == digests(hy.load(tmp_path / "runs" / "run"))


def job_places(job: Any) -> str:
    """Return the set of places of a Job."""
    return str(job["metadata"]["labels"][PLACES])

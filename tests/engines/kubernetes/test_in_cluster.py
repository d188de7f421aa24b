"""Drivers in pods of the cluster: they go on whatever happens to their pods, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hopyard as hy
from jobs import HEAD, digests, until
from kube.api.access import ADMIN
from kube.client import Object
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab
from pods import Gate, left

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]
PODS = "hopyard:test,workers=2,memory=1Gi,shm=256Mi"
SELECT = f"""{HEAD}
import json
print("the driver of", sys.argv[1])
hy.select(troubled, None, dataset(), search=hy.Configs(json.loads(sys.argv[2])), epochs=3, metric="val_loss",
          mode="min", directory=sys.argv[1])
"""
PROGRAM = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
print(config["task"], len(config["cluster"]["worker"]), len(config["cluster"]["ps"]), flush=True)
while config["task"]["type"] == "ps":
    time.sleep(1)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Its controllers' time runs 20 times as fast. Pods see the folder with claims: it is below no /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        with Lab(Path(folder), speed=20) as made:
            yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of an administrator, and a Python that `hopyard` starts in; at the end nothing is left."""
    config = lab.cluster.kubeconfig(claim(lab).parent / "admin", ADMIN, NAMESPACE)
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield
    for job in lab.objects("jobs"):
        lab.admin.delete(
            f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job['metadata']['name']}?propagationPolicy=Background"
        )
    until(lambda: not left(lab), 90)


def claim(lab: Lab) -> Path:
    """Return the folder of the claim."""
    folder = next(iter(lab.kubelets.values())).directory / "claims" / f"{NAMESPACE}_hopyard"
    folder.parent.mkdir(exist_ok=True)
    return folder


def hopyard(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `hopyard`."""
    command = [sys.executable, "-P", "-m", "hopyard", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def submit(folder: Path, text: str, *words: str, verb: str = "run", options: tuple[str, ...] = ()) -> str:
    """Submit a script, and return the driver's name."""
    pods = PODS.replace(",workers=2", "") if verb == "launch" else PODS
    script = folder / "my job.py"
    script.write_text(text)
    done = hopyard(verb, "--kubernetes", pods, "--in-cluster", *options, str(script), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1].rstrip(":").partition("/")[2]


def job(lab: Lab, name: str) -> Object:
    return lab.admin.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")


def ended(lab: Lab, name: str) -> str | None:
    """Return "Complete" or "Failed"; None: it goes on."""
    conditions = job(lab, name)["status"].get("conditions") or []
    return next((each["type"] for each in conditions if each["type"] in ("Complete", "Failed")), None)


def driver_pods(lab: Lab, name: str) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=batch.kubernetes.io%2Fjob-name%3D{name}"
    return list(lab.admin.get(path)["items"])


def journal_text(run: Path) -> str:
    path = run / "journal.jsonl"
    return path.read_text(errors="replace") if path.exists() else ""


def log(lab: Lab, name: str) -> str:
    """Return what the pods of a driver have printed, for messages."""
    kubelet = next(iter(lab.kubelets.values()))
    return "\n".join(kubelet.log(pod["metadata"]["name"], NAMESPACE) for pod in driver_pods(lab, name))


def kubectl(*words: str) -> None:
    subprocess.run(["kubectl", *words], check=True, capture_output=True, timeout=60)


def evict(lab: Lab, pod: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    lab.admin.post(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}})


def alone(folder: Path, gate: Gate) -> list[str]:
    """Return the digests of the same run on this host."""
    (folder / "alone.py").write_text(SELECT)
    words = [sys.executable, "alone.py", "alone", json.dumps(gate.configs)]
    with gate.open():
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=120)
    return digests(hy.load(folder / "alone"))


@pytest.mark.parametrize("kills", [pytest.param(kills, marks=pytest.mark.long) for kills in (1, 10)])
def test_a_driver_in_the_cluster_goes_on_in_another_pod(lab: Lab, tmp_path: Path, kills: int) -> None:
    """Its pod is killed, deleted or evicted at random. What it was is what a run on this host is."""
    gate, directory = Gate(lab), f"runs/{kills}"
    options = ("--driver-pod", f"restarts=20,name=driver-{kills}")
    name = submit(tmp_path, SELECT, directory, json.dumps(gate.configs), options=options)
    run, driver = claim(lab) / directory, f"{NAMESPACE}/{name}"
    until(lambda: '"Done"' in journal_text(run) or ended(lab, name), 60)
    shown = hopyard("show", directory, "--json", "--driver", driver)
    assert json.loads(shown.stdout)["directory"] == f"/hopyard/{directory}", (shown.stderr, log(lab, name))
    assert "running" in hopyard("ls", "--driver", driver).stdout
    twin = hopyard("run", "--kubernetes", PODS, "--in-cluster", *options, str(tmp_path / "my job.py"))
    assert twin.returncode == 2 and f"has a driver {name} already" in twin.stderr
    owner = driver_pods(lab, name)[0]["metadata"]["uid"]
    (workers,) = [each for each in lab.objects("jobs") if each["metadata"]["name"] != name]
    assert [each["uid"] for each in workers["metadata"]["ownerReferences"]] == [owner]
    chance = random.Random(1)
    ends = {
        "kill": lambda pod: os.kill(lab.kubelet_of(pod).pid(pod), signal.SIGKILL),
        "delete": lambda pod: kubectl("delete", "pod", "-n", NAMESPACE, pod, "--wait=false"),
        "evict": lambda pod: evict(lab, pod),
    }
    for number in range(kills):
        pod = until(lambda: [pod for pod in lab.pods() if pod.startswith(f"{name}-0-")], 60)[0]
        time.sleep(chance.uniform(0, 6) if number else 0)
        ends[chance.choice(list(ends)) if number else "kill"](pod)
        until(lambda: pod not in lab.pods(), 60)  # noqa: B023 - called here
    with gate.open():
        until(lambda: ended(lab, name), 120)
    assert ended(lab, name) == "Complete", log(lab, name)
    assert hy.load(run).status == "completed"
    assert digests(hy.load(run)) == alone(tmp_path, gate)
    assert len(driver_pods(lab, name)) > 1
    if kills == 1:  # the logs of pods that are deleted go with them
        assert hopyard("logs", "--driver", driver).stdout.count(f"the driver of {directory}") == 2
    after = hopyard("show", directory, "--driver", driver)
    assert after.returncode == 4 and "its runs are on its claim" in after.stderr


@pytest.mark.long
@pytest.mark.parametrize("kills", [0, 10])
def test_a_program_is_launched_from_the_cluster(lab: Lab, tmp_path: Path, kills: int) -> None:
    """Two workers and a parameter server, which begin anew whenever the driver does."""
    options = ("--roles", "worker=2,ps=1", "--until", "workers", "--driver-pod", "restarts=20")
    name = submit(tmp_path, PROGRAM, "0" if not kills else "12", verb="launch", options=options)
    chance = random.Random(2)
    for _ in range(kills):
        pod = until(lambda: [pod for pod in lab.pods() if pod.startswith(f"{name}-0-")], 60)[0]
        time.sleep(chance.uniform(0, 4))
        with contextlib.suppress(KeyError, ProcessLookupError, StopIteration):  # the program is over
            os.kill(lab.kubelet_of(pod).pid(pod), signal.SIGKILL)
        until(lambda: pod not in lab.pods(), 60)  # noqa: B023 - called here
    until(lambda: ended(lab, name), 120)
    assert ended(lab, name) == "Complete", log(lab, name)
    directory = claim(lab) / "runs" / name
    assert len([line for line in (directory / "program.jsonl").read_text().splitlines() if '"Launched"' in line]) == 1
    assert "--- ps 0, attempt 0" in "".join(path.read_text() for path in (directory / "logs").glob("*.log"))


def test_deleting_its_job_ends_a_driver_as_ctrl_c_does(lab: Lab, tmp_path: Path) -> None:
    gate = Gate(lab)
    name = submit(tmp_path, SELECT, "runs/deleted", json.dumps(gate.configs))
    run = claim(lab) / "runs/deleted"
    until(lambda: '"Done"' in journal_text(run) or ended(lab, name), 60)
    kubectl("delete", "job", "-n", NAMESPACE, name)
    until(lambda: not left(lab), 60)
    assert hy.load(run).status == "interrupted"


@pytest.mark.long
def test_a_driver_that_is_deleted_while_it_starts_ends_at_once(lab: Lab, tmp_path: Path) -> None:
    """Process 1 of a pod ignores SIGTERM before it has a handler."""
    name = submit(tmp_path, SELECT, "runs/early", json.dumps(Gate(lab).configs))
    until(lambda: any(pod.startswith(f"{name}-0-") for pod in lab.pods()), 60)
    time.sleep(0.15)
    kubectl("delete", "job", "-n", NAMESPACE, name, "--wait=false")
    until(lambda: not left(lab), 20)


def test_a_driver_is_not_started_again_where_it_would_end_the_same_way(lab: Lab, tmp_path: Path) -> None:
    name = submit(tmp_path, "raise ValueError('no such table')")
    until(lambda: ended(lab, name), 60)
    assert ended(lab, name) == "Failed" and len(driver_pods(lab, name)) == 1
    assert "ValueError: no such table" in hopyard("logs", "--driver", name, "--tail", "5").stdout


def test_what_the_cluster_lacks_is_said_before_anything_is_created(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")

    def refused(*options: str) -> str:
        done = hopyard("run", "--kubernetes", PODS, "--in-cluster", *options, str(script))
        assert done.returncode == 2 and not lab.objects("jobs") and not lab.objects("configmaps")
        return done.stderr

    assert "has no persistentvolumeclaim other: docs/kubernetes.md" in refused("--driver-pod", "claim=other")
    assert "has no serviceaccount other: docs/kubernetes.md" in refused("--driver-pod", "account=other")
    script.write_text("#" * (1 << 20) + "\n")
    assert "image:/path/to/script.py" in refused()

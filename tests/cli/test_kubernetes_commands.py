"""`hopyard doctor | run | launch | resume --kubernetes` on a cluster whose pods run: what they find and leave."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.doctor import Finding, examine_cluster
from hopyard.engines.kubernetes import probe
from jobs import digests, script, select, until
from kube.client import MERGE
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab, role

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]
OTHER = "__version__ = '0.0.9'\n"
PODS = "hopyard:test,workers=2,memory=1Gi,shm=256Mi"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/hopyard"
RIGHTS = [tuple(right) for right in probe.RIGHTS]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as other:  # pods have a /tmp of their own
        Path(other).chmod(0o755)
        (Path(other) / "hopyard").mkdir()
        (Path(other) / "hopyard" / "__init__.py").write_text(OTHER)
        images = {"hopyard:test": {}, "hopyard:other": Path(other), "hopyard:bare": {"PATH": "/nowhere"}}
        with Lab(tmp_path_factory.mktemp("lab"), images=images, speed=20) as made:
            yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    monkeypatch.setattr(probe, "WHY_SECONDS", 2.0)
    yield
    until(lambda: not lab.left() and not lab.pods(), 90)


def faults(findings: list[Finding]) -> dict[str, str]:
    """Name → text of what is not well."""
    return {finding.name: finding.text for finding in findings if not finding.ok}


@pytest.mark.parametrize("port", [0, 7700])
def test_a_cluster_that_has_all(lab: Lab, port: int) -> None:
    findings = examine_cluster(lab.engine(workers=1, port=port))
    assert not faults(findings)
    texts = {finding.name: finding.text for finding in findings}
    assert texts == {
        "api": f"{lab.cluster.url}, Kubernetes 1.36",
        "rights": "all that are needed in namespace lab",
        "image": texts["image"],
        "reach": f"a pod dials this process at {lab.network.gateway}",
    }
    assert texts["image"].startswith(f"Hopyard {hy.__version__}, Python {sys.version_info[0]}.{sys.version_info[1]}; ")


@pytest.mark.parametrize(("verb", "resource"), RIGHTS)
def test_a_right_that_is_missing(lab: Lab, verb: str, resource: str) -> None:
    rules = [
        {"apiGroups": rule["apiGroups"], "resources": [each], "verbs": [one]}
        for rule in role()["rules"]
        for each in rule["resources"]
        for one in rule["verbs"]
        if (one, each) != (verb, resource)
    ]
    lab.admin.call("PATCH", ROLE, {"rules": rules}, MERGE)
    try:
        found = faults(examine_cluster(lab.engine(workers=1)))
    finally:
        lab.admin.call("PATCH", ROLE, {"rules": role()["rules"]}, MERGE)
    why = probe.RIGHTS[verb, resource]
    assert found == {"right": f"{verb} {resource} is not allowed in namespace lab: {why}"}


def test_the_role_of_the_page_has_the_rights_that_are_checked() -> None:
    """But for one that only newer clusters have, and that a driver can do without."""
    assert {*RIGHTS, ("create", "podgroups")} == {
        (verb, resource) for rule in role()["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("hopyard:other", f"the image has no Hopyard {hy.__version__} but 0.0.9"),
        ("hopyard:bare", "the image has no command `python`"),
        ("hopyard:none", "image hopyard:none cannot be pulled"),
    ],
)
def test_an_image_that_lacks_something(lab: Lab, image: str, sentence: str) -> None:
    found = faults(examine_cluster(lab.engine(workers=1, image=image)))
    assert list(found) == ["image"] and sentence in found["image"]


def test_an_address_that_pods_cannot_dial(lab: Lab) -> None:
    found = faults(examine_cluster(lab.engine(workers=1, address="127.0.0.1")))
    assert list(found) == ["reach"] and "Connection refused" in found["reach"]


def test_no_room_for_the_pod(lab: Lab) -> None:
    found = faults(examine_cluster(lab.engine(workers=1, gpus=1)))
    assert list(found) == ["image"] and "Insufficient nvidia.com/gpu" in found["image"]


def test_a_namespace_that_is_missing_or_of_others(lab: Lab) -> None:
    assert "namespace nowhere" in faults(examine_cluster(lab.engine(workers=1, namespace="nowhere")))["right"]


def test_a_server_that_is_away(lab: Lab) -> None:
    lab.cluster.close()
    try:
        found = faults(examine_cluster(lab.engine(workers=1)))
    finally:
        lab.cluster.listen()
    assert list(found) == ["cluster"] and "cannot be reached: [Errno 111] Connection refused" in found["cluster"]


def hopyard(folder: Path, *words: object) -> subprocess.Popen[str]:
    """Begin a command, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hopyard", *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, more: str = "") -> Path:
    return script(folder / "train.py", f"select(Path('run'), engine=None{more})")


def test_a_script_runs_in_pods(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("containers: [{name: hopyard, env: [{name: OMP_NUM_THREADS, value: '1'}]}]")
    command = hopyard(tmp_path, "run", "--kubernetes", PODS, "--pod", "pod.yaml", train(tmp_path))
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors
    assert digests(hy.load(tmp_path / "run")) == digests(select(tmp_path / "inline"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_leaves_nothing_and_is_resumed(lab: Lab, tmp_path: Path, number: int) -> None:
    epochs = 40
    command = hopyard(tmp_path, "run", "--kubernetes", PODS, train(tmp_path, f", epochs={epochs}"))
    until(lambda: lab.pods() or command.poll() is not None)
    os.kill(command.pid, number)
    _, errors = command.communicate(timeout=60)
    assert command.returncode != 0, errors
    until(lambda: not lab.left() and not lab.pods(), 60)
    again = hopyard(tmp_path, "resume", "--kubernetes", PODS, "run")
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    assert hy.load(tmp_path / "run").status == "completed"


@pytest.mark.long
def test_a_program_runs_in_pods(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import os; print(os.environ['JOB_NAME'], os.environ['TASK_INDEX'])")
    image = "hopyard:test,memory=1Gi,shm=256Mi"
    command = hopyard(
        *(tmp_path, "launch", "--kubernetes", image, "--roles", "worker=2", "--directory", "program", "task.py")
    )
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors


def test_the_doctor_in_words(tmp_path: Path) -> None:
    command = hopyard(tmp_path, "doctor", "--kubernetes", "hopyard:test,memory=1Gi,shm=256Mi,gpus=0")
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 0 and "warn" not in output and "ok    reach" in output, output + errors


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on PATH")
def test_kubectl_accepts_what_would_be_asked_for(lab: Lab, tmp_path: Path) -> None:
    command = hopyard(
        tmp_path, "run", "--kubernetes", f"{PODS},workers_per_pod=2,queue=research", "--dry-run", train(tmp_path)
    )
    manifests, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    config = lab.cluster.kubeconfig(tmp_path / "config", namespace=NAMESPACE)
    kubectl = ["kubectl", "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache")]
    found = subprocess.run(
        [*kubectl, "apply", "--dry-run=server", "-f", "-"], input=manifests, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "job.batch/hopyard-00000000-1 created (server dry run)",
        "secret/hopyard-00000000 created (server dry run)",
    ]

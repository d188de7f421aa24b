"""kubectl, the only client of the cluster for tests that is not ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.client import Client
from kube.experiments import played, real_cluster, run, ttl
from kube.jobs_of_tests import JOBS, PODS, SECRETS, job_of, names, until
from kube.played_kubelet import Life, PlayedKubelet
from kube.server import Cluster
from kube.transcripts import OBSERVED, parsed

Kubectl = Callable[..., str]
OLDEST = 29
"""The oldest minor version of kubectl that asks for no OpenAPI of version 2."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> str:
    """The kubectl on PATH."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not on PATH")
    said = subprocess.run([program, "version", "--client", "-o", "json"], capture_output=True, text=True, check=True)
    version = json.loads(said.stdout)["clientVersion"]["gitVersion"]
    if int(version.split(".")[1]) < OLDEST:
        pytest.skip(f"kubectl {version} is older than 1.{OLDEST}")
    return program


@pytest.fixture
def command(cluster: Cluster, tmp_path: Path, program: str) -> list[str]:
    config = cluster.kubeconfig(tmp_path / "config")
    return [program, "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache")]


@pytest.fixture
def kubectl(command: list[str]) -> Kubectl:
    def call(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return call


@pytest.fixture
def kubelet(cluster: Cluster) -> Iterator[None]:
    def life(pod: dict[str, dict[str, str]]) -> Life:
        return Life(seconds=None if pod["metadata"]["name"].startswith("stay") else 2, log="said this\n")

    with PlayedKubelet(cluster, life):
        yield


def manifest(name: str, **spec: Any) -> str:
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", **job_of(name, 2, **spec)})


@pytest.mark.usefixtures("kubelet")
def test_a_job_from_its_creation_to_its_end(kubectl: Kubectl, admin: Client) -> None:
    assert kubectl("create", "-f", "-", stdin=manifest("a")) == "job.batch/a created\n"
    assert kubectl("wait", "--for=condition=complete", "job/a", "--timeout=60s") == "job.batch/a condition met\n"
    listed = kubectl("get", "pods", "-l", "job=a", "-o", "wide")
    assert listed.count("a-0-") == listed.count("a-1-") == 1
    pods = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded", "Succeeded"]
    said = kubectl("describe", "job", "a")
    assert "Completed Indexes:  0,1" in said and "SuccessfulCreate" in said and "Job completed" in said
    assert "Scheduled" in kubectl("describe", "pod", names(admin, PODS)[0])
    assert "said this" in kubectl("logs", names(admin, PODS)[0])
    assert kubectl("logs", "-f", "-l", "job=a") == "said this\n" * 2
    assert 'job.batch "a" deleted' in kubectl("delete", "job", "a")
    until(lambda: not names(admin, PODS) and not names(admin, JOBS))


@pytest.mark.usefixtures("kubelet")
@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_a_job_is_deleted(kubectl: Kubectl, admin: Client, cascade: str) -> None:
    kubectl("create", "-f", "-", stdin=manifest("stay"))
    until(lambda: admin.get(f"{JOBS}/stay")["status"].get("ready") == 2)
    kubectl("delete", "job", "stay", f"--cascade={cascade}")
    until(lambda: len(names(admin, PODS)) == (2 if cascade == "orphan" else 0))
    assert names(admin, JOBS) == []


@pytest.mark.usefixtures("kubelet")
def test_a_pod_is_deleted(kubectl: Kubectl, admin: Client) -> None:
    kubectl("create", "-f", "-", stdin=manifest("stay"))
    until(lambda: admin.get(f"{JOBS}/stay")["status"].get("ready") == 2)
    name = names(admin, PODS)[0]
    assert f'pod "{name}" deleted' in kubectl("delete", "pod", name)
    assert name not in names(admin, PODS)
    until(lambda: admin.get(f"{JOBS}/stay")["status"].get("failedIndexes") == "0")


@pytest.mark.usefixtures("kubelet")
def test_a_watch(command: list[str], kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=manifest("stay"))
    watch = [*command, "get", "pods", "-w", "-o", "jsonpath={.metadata.name}{' '}{.status.phase}{'\\n'}"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("stay-")
            kubectl("patch", "job", "stay", "-p", '{"spec":{"suspend":true}}')
            assert any(line.endswith("Failed\n") for line in process.stdout)
        finally:
            process.kill()


def test_a_typo_is_refused(kubectl: Kubectl, admin: Client) -> None:
    said = kubectl("create", "-f", "-", stdin=manifest("a", paralelism=1), fails=True)
    assert 'strict decoding error: unknown field "spec.paralelism"' in said
    assert names(admin, JOBS) == []


def test_a_user_without_a_role_is_refused(cluster: Cluster, tmp_path: Path, kubectl: Kubectl) -> None:
    other = cluster.kubeconfig(tmp_path / "other", "somebody")
    said = kubectl("--kubeconfig", str(other), "get", "secrets", fails=True)
    assert 'secrets is forbidden: User "somebody" cannot list resource "secrets"' in said


def test_lists_of_other_kinds(kubectl: Kubectl, admin: Client) -> None:
    admin.post(SECRETS, {"metadata": {"name": "a"}})
    assert "jobs" in kubectl("api-resources") and "v1.36.2" in kubectl("version")
    assert kubectl("get", "secrets,nodes,jobs", "-o", "name").split() == ["secret/a", "node/hop-0"]
    assert "doesn't have a resource type" in kubectl("get", "deployments", fails=True)


def test_the_experiments_run_through_a_proxy_of_kubectl(cluster: Cluster, command: list[str]) -> None:
    with PlayedKubelet(cluster, played), real_cluster(command[2]) as admin:
        lab = run(ttl, admin, "other", cluster.set_speed)
    expected = parsed((OBSERVED / "ttl.txt").read_text())
    assert parsed("\n".join(lab.lines)).others == expected.others

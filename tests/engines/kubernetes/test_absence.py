"""Why no pod comes, in the cluster's words: each sentence is logged once, soon, and is in the error that ends the run.

The API server, its controllers and its refusals are those of the cluster for tests; no pod has a process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.engines.kubernetes import jobs
from hopyard.ports.engines import LaunchInfo
from jobs import until
from kube.client import MERGE, Client, Object
from kube.control.scheduler import set_condition
from kube.jobs_of_tests import EVENTS, JOBS, PODS, SECRETS
from kube.lab import role
from kube.played_kubelet import Life, PlayedKubelet
from kube.server import Cluster

CORE = "/api/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
STAYS = Life()
Play = Callable[[Cluster], object]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Of one node of 8 cores, whose user "driver" has the Role of the page. Looks at it are frequent."""
    monkeypatch.setattr(jobs, "SAY_SECONDS", 0.3)
    monkeypatch.setattr(jobs, "INQUIRE_SECONDS", 0.2)
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.1)
    with Cluster(tmp_path, speed=20, bookmarks=0.2) as made:
        made.add_node()
        grant(made.client(), role()["rules"])
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path / "config", "driver")))
        yield made


def grant(admin: Client, rules: list[Object]) -> None:
    """Let the driver's user have these rights."""
    admin.post(f"{RBAC}/roles", {**role(), "rules": rules})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "hopyard"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "hopyard"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "driver"}],
    }
    admin.post(f"{RBAC}/rolebindings", binding)


class Asked:
    """The agents of an engine, of which one was started, and what was logged meanwhile."""

    def __init__(self, caplog: pytest.LogCaptureFixture, folder: Path, **arguments: Any) -> None:
        caplog.set_level(logging.WARNING)
        self._caplog = caplog
        given = {"workers": 1, "image": "hopyard:test", "devices": None, **arguments}
        self.agents: Any = hy.Kubernetes(**given).open(LaunchInfo(lambda slot: b"{}\n", lambda slot: folder / "log"))
        self.agents.start(0)

    def said(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name.startswith("hopyard")]

    def says(self, sentence: str) -> bool:
        """Whether the sentence, a pattern, was logged while the run goes on."""
        assert self.agents.lost() == []
        return any(re.fullmatch(sentence, each) for each in self.said())

    def error(self) -> str:
        """Return the error that ends the run."""
        return str(until(self._error, 60))

    def _error(self) -> hy.ResourceError | None:
        try:
            self.agents.lost()
        except hy.ResourceError as error:
            return error
        return None


@pytest.fixture
def ask(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Iterator[Callable[..., Asked]]:
    made: list[Asked] = []

    def begin(**arguments: Any) -> Asked:
        made.append(Asked(caplog, tmp_path, **arguments))
        return made[-1]

    yield begin
    for each in made:
        each.agents.close()


def quota(cluster: Cluster, **hard: str) -> None:
    cluster.client().post(f"{CORE}/resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": hard}})


def restricted(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.client().call("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": labels}}, MERGE)


def mounts(cluster: Cluster) -> None:
    """Write the event of a kubelet that cannot mount a volume."""

    def write() -> bool:
        for pod in cluster.client().get(PODS)["items"]:
            about = {"kind": "Pod", "namespace": "default", "name": pod["metadata"]["name"]}
            event = {
                "metadata": {"name": f"{pod['metadata']['name']}.1", "namespace": "default"},
                "involvedObject": about | {"uid": pod["metadata"]["uid"], "apiVersion": "v1"},
                "type": "Warning",
                "reason": "FailedMount",
                "message": 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found',
                "source": {"component": "kubelet"},
                "lastTimestamp": "2026-01-01T00:00:00Z",
            }
            cluster.client().post(EVENTS, event)
            return True
        return False

    until(write)


def evict(cluster: Cluster) -> None:
    admin = cluster.client()
    name = until(lambda: [each["metadata"]["name"] for each in admin.get(PODS)["items"]])[0]
    admin.post(f"{PODS}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})


def preempt(cluster: Cluster) -> None:
    """Do what the scheduler does for a pod of higher priority."""
    admin = cluster.client()
    until(lambda: admin.get(PODS)["items"])
    with cluster.store.changed:
        pod = cluster.store.objects("pods")[0]
        why = "default-scheduler: preempting to accommodate a higher priority pod"
        cluster.store.put("pods", set_condition(pod, "DisruptionTarget", "True", "PreemptionByScheduler", why))
    admin.delete(f"{PODS}/{pod['metadata']['name']}")


ESCALATES = {"containers": [{"name": "hopyard", "securityContext": {"allowPrivilegeEscalation": True}}]}
WORDS = r"[^;]+"
LESS = r"; give less cpu=, memory= or gpus=, or wait until others have ended"
CREATE = "; create it, or correct pod="
PULL = 'rpc error: code = NotFound desc = failed to pull and unpack image "docker.io/library/hopyard:test": not found'
CASES: dict[str, tuple[dict[str, Any], Life, Play | None, str]] = {
    "image": (
        {},
        Life(waiting="ErrImagePull", message=PULL),
        None,
        f"image hopyard:test cannot be pulled: failed to pull and unpack {WORDS}: not found; see its name, and "
        r"imagePullSecrets in pod=",
    ),
    "no room": ({"cpu": 9}, STAYS, None, r"no node takes the pod: 0/1 nodes are available: 1 Insufficient cpu" + LESS),
    "no GPU": (
        {"gpus": 1, "devices": "auto"},
        STAYS,
        None,
        f"no node takes the pod: {WORDS}Insufficient nvidia.com/gpu{LESS}",
    ),
    "selector": (
        {"pod": {"nodeSelector": {"gpu": "a100"}}},
        STAYS,
        None,
        rf"no node takes the pod: {WORDS} node affinity/selector; see nodeSelector, affinity and tolerations in pod=",
    ),
    "quota": (
        {"cpu": 4},
        STAYS,
        lambda cluster: quota(cluster, **{"limits.cpu": "2"}),
        "quota team of the namespace leaves no room for the pod: requested: limits.cpu=4, used: limits.cpu=0, "
        f"limited: limits.cpu=2{LESS}",
    ),
    "Pod Security": (
        {"pod": ESCALATES},
        STAYS,
        restricted,
        r"the namespace admits no such pod \(Pod Security restricted:latest\): allowPrivilegeEscalation != false "
        ".*; leave out of pod= what it names, or give another namespace=",
    ),
    "missing Secret": (
        {"pod": {"volumes": [{"name": "keys", "secret": {"secretName": "keys"}}]}},
        Life(waiting="ContainerCreating"),
        mounts,
        'a volume of the pod cannot be mounted: MountVolume.SetUp failed for volume "keys" : secret "keys" not found'
        + CREATE,
    ),
    "missing Secret of a variable": (
        {},
        Life(waiting="CreateContainerConfigError", message='secret "wandb" not found'),
        None,
        f'the container cannot be configured: secret "wandb" not found{CREATE}',
    ),
    "out of memory": (
        {"memory": "1Gi"},
        Life(0.1, 137, reason="OOMKilled"),
        None,
        "the pod used more than its memory of 1Gi: give more memory=",
    ),
    "evicted": ({}, STAYS, evict, "the pod was evicted: it was evicted, as from a node that is drained.*"),
    "preempted": ({}, STAYS, preempt, "the pod was preempted: a pod of higher priority took its place.*"),
    "queue": (
        {"queue": "research"},
        STAYS,
        None,
        "Kueue has not admitted the Job from queue research; `kubectl describe workloads` says why, and "
        "start_timeout= how long to wait",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case == "queue" else []) for case in CASES]
)
def test_a_sentence_says_once_why_no_pod_comes(
    cluster: Cluster, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    arguments, life, play, sentence = CASES[case]
    before = case in {"quota", "Pod Security"}
    if play is not None and before:
        play(cluster)
    with PlayedKubelet(cluster, lambda pod: life):
        asked = ask(**arguments)
        if play is not None and not before:
            play(cluster)
        until(lambda: asked.says(sentence))
        if case not in {"evicted", "preempted"}:  # these are over: another pod has come
            monkeypatch.setattr(asked.agents, "_limit", 0.0)
            error = asked.error()
            assert re.fullmatch(f"no pod has dialled [0-9.]+:[0-9]+ within 0 seconds .*: {sentence}", error)
        assert sum(bool(re.fullmatch(sentence, each)) for each in asked.said()) == 1
        asked.agents.close()
        until(lambda: not any(cluster.client().get(path)["items"] for path in (JOBS, PODS, SECRETS)))


def test_a_reason_that_is_over_is_told_no_more(
    cluster: Cluster, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    quota(cluster, pods="0")
    with PlayedKubelet(cluster, lambda pod: Life(waiting="ErrImagePull", message="not found")):
        asked = ask()
        until(lambda: asked.says("quota team .*"))
        cluster.client().delete(f"{CORE}/resourcequotas/team")
        until(lambda: asked.says("image .*"))
        monkeypatch.setattr(asked.agents, "_limit", 0.0)
        assert "image" in (error := asked.error()) and "quota" not in error


RIGHTS = [(verb, resource) for rule in role()["rules"] for resource in rule["resources"] for verb in rule["verbs"]]
SINGLE = set(RIGHTS) - {("get", "pods/log"), ("delete", "secrets"), ("list", "jobs"), ("create", "podgroups")}
"""Rights that all runs need, of the doctor, of OpenShift and of drivers in pods aside."""
VITAL = {("create", "jobs"), ("create", "secrets")}
"""Without them no pod can come."""


@pytest.mark.parametrize(("verb", "resource"), sorted(SINGLE))
def test_a_right_that_is_missing_is_named(
    cluster: Cluster, ask: Callable[..., Asked], verb: str, resource: str
) -> None:
    admin = cluster.client()
    rules = [
        {"apiGroups": ["batch" if each == "jobs" else ""], "resources": [each], "verbs": [one]}
        for one, each in RIGHTS
        if (one, each) != (verb, resource)
    ]
    admin.call("PATCH", f"{RBAC}/roles/hopyard", {"rules": rules}, MERGE)
    if (verb, resource) == ("get", "jobs"):  # a Job is looked at where its pods do not appear
        quota(cluster, pods="0")
    life = Life(0.1, 1) if resource == "secrets" else Life(waiting="ContainerCreating")
    sentence = (
        rf"(Job hopyard-\w+-1 cannot be deleted: )?the API server {cluster.url} refuses: .*"
        rf'User "driver" cannot {verb} resource "{resource}" .* in the namespace "default"; let the user have the '
        "Role of docs/kubernetes.md, or give another namespace="
    )
    with PlayedKubelet(cluster, lambda pod: life):
        asked = ask()
        if (verb, resource) in VITAL:
            assert re.fullmatch(sentence, asked.error())
        elif (verb, resource) == ("delete", "jobs"):
            until(lambda: admin.get(PODS)["items"])
            asked.agents.close()
            assert [each for each in asked.said() if re.fullmatch(sentence, each)]
        else:
            until(lambda: asked.says(sentence))
            assert len([each for each in asked.said() if re.fullmatch(sentence, each)]) == 1
        asked.agents.close()


def test_a_namespace_that_does_not_exist(
    cluster: Cluster, ask: Callable[..., Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "admin")))
    error = ask(namespace="nowhere").error()
    assert error == f"the API server {cluster.url} has no namespace nowhere; create it, or give another namespace="


def test_a_user_whom_the_server_does_not_know(cluster: Cluster, ask: Callable[..., Asked]) -> None:
    cluster._tokens.clear()
    error = ask().error()
    assert error.startswith(f"the API server {cluster.url} does not know this user (401 Unauthorized); log in again")


def test_a_context_that_does_not_exist(cluster: Cluster, ask: Callable[..., Asked]) -> None:
    with pytest.raises(hy.SpecError, match=r"context='prod'|= 'prod': the kubeconfig .* has no context 'prod'"):
        ask(context="prod")


def test_a_server_that_is_too_old(tmp_path: Path, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(tmp_path, version="1.28.15") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config")))
        asked = ask()
        assert re.fullmatch(f"{cluster.url} is Kubernetes 1.28, and Hopyard needs 1.29 or newer .*", asked.error())
        asked.agents.close()
        assert not [path for method, path in cluster.requests if method != "GET"]  # nothing was asked for


def test_a_server_whose_certificate_is_not_trusted(
    cluster: Cluster, tmp_path: Path, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    cluster.ca = Cluster(tmp_path / "other").ca
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", "driver")))
    error = ask().error()
    assert re.fullmatch(
        f"the certificate of the API server {cluster.url} is not trusted: .*; give its authority .*", error
    )


def test_a_server_that_is_not_there(
    cluster: Cluster, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends long before its start_timeout, and so does the end."""
    cluster.close()
    monkeypatch.setattr(jobs, "UNKNOWN_SECONDS", 1.0)
    asked = ask()
    sentence = re.escape(f"the API server {cluster.url} cannot be reached: [Errno 111] Connection refused") + ".*"
    assert re.fullmatch(sentence, asked.error())
    asked.agents.close()
    assert len([each for each in asked.said() if re.fullmatch(sentence, each)]) == 1
    assert not [each for each in asked.said() if "deleted" in each]


def test_a_server_that_comes_late_is_awaited(cluster: Cluster, ask: Callable[..., Asked]) -> None:
    cluster.close()
    asked = ask()
    until(lambda: asked.says("the API server .* cannot be reached: .*"))
    cluster.listen()
    until(lambda: cluster.client().get(JOBS)["items"])
    assert asked.agents.lost() == []

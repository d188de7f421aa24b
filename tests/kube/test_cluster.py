from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kube.api.errors import Cut
from kube.api.routes import Request
from kube.client import Client, Failed, Object
from kube.jobs_of_tests import EVENTS, JOBS, PODS, SECRETS, conditions, job_of, names, pod_of, until
from kube.played_kubelet import Life, PlayedKubelet
from kube.server import Cluster

GONE = (OSError, EOFError)
NEVER = "Preemption is not helpful for scheduling"


def asks(**requests: str) -> list[Object]:
    return [{**pod_of("x")["spec"]["containers"][0], "resources": {"requests": requests, "limits": requests}}]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_fault_meets_the_next_requests_that_match(cluster: Cluster, admin: Client, status: int) -> None:
    fault = cluster.faults.add(status, r"^GET .*/secrets", times=2, retry_after=3)
    assert names(admin, PODS) == []
    for _ in range(2):
        with pytest.raises(Failed) as failed:
            admin.get(SECRETS)
        assert failed.value.code == status
        assert failed.value.headers.get("Retry-After") == (None if status == 500 else "3")
    assert names(admin, SECRETS) == [] and fault.times == 0


def test_a_watch_can_be_told_that_it_is_too_old(cluster: Cluster, admin: Client) -> None:
    cluster.faults.add(410, "watch")
    (event,) = admin.watch(f"{SECRETS}?watch=1&resourceVersion=1")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    cluster.faults.add(410, "secrets")
    assert admin.refusal("GET", SECRETS)["reason"] == "Expired"


def test_a_half_open_watch_says_nothing(cluster: Cluster, admin: Client) -> None:
    admin.post(SECRETS, {"metadata": {"name": "a"}})
    cluster.faults.add("half-open", "watch")
    with pytest.raises(TimeoutError):
        next(admin.watch(f"{SECRETS}?watch=1", timeout=0.3))
    with admin.open("GET", f"{SECRETS}?watch=1") as response:
        assert json.loads(response.readline())["type"] == "ADDED"


def test_an_answer_can_be_lost(cluster: Cluster, admin: Client) -> None:
    cluster.faults.add("cut", "POST .*secrets")
    with pytest.raises(GONE):
        admin.post(SECRETS, {"metadata": {"name": "a"}})
    assert names(admin, SECRETS) == []
    cluster.faults.add("lost", "POST .*secrets")
    with pytest.raises(GONE):
        admin.post(SECRETS, {"metadata": {"name": "a"}})
    assert names(admin, SECRETS) == ["a"]


def test_a_hook_sees_each_request_before_and_after(cluster: Cluster, admin: Client) -> None:
    seen: list[tuple[str, str, bool]] = []

    def hook(when: str, request: Request) -> None:
        seen.append((when, request.method, cluster.store.get("secrets", "default", "a") is not None))
        if request.method == "DELETE":
            raise Cut

    cluster.on_request = hook
    admin.post(SECRETS, {"metadata": {"name": "a"}})
    with pytest.raises(GONE):
        admin.delete(f"{SECRETS}/a")
    assert seen == [("before", "POST", False), ("after", "POST", True), ("before", "DELETE", True)]
    assert cluster.requests == [("POST", SECRETS), ("DELETE", f"{SECRETS}/a")]
    cluster.client("system:node:hop-0").get(PODS)
    assert len(cluster.requests) == 2


def test_objects_survive_a_restart(cluster: Cluster, admin: Client) -> None:
    admin.post(SECRETS, {"metadata": {"name": "a"}})
    watch = admin.watch(f"{SECRETS}?watch=1")
    revision = next(watch)["object"]["metadata"]["resourceVersion"]
    url = cluster.url
    cluster.close()
    assert list(watch) == []
    with pytest.raises(ConnectionError):
        try:
            admin.get(SECRETS)
        except OSError as error:
            raise getattr(error, "reason", error) from None
    cluster.listen()
    assert cluster.url == url
    later = admin.watch(f"{SECRETS}?watch=1&resourceVersion={revision}")
    threading.Timer(0.1, lambda: admin.post(SECRETS, {"metadata": {"name": "b"}})).start()
    assert next(later)["object"]["metadata"]["name"] == "b"
    later.close()  # type: ignore[attr-defined]


def test_while_the_server_is_down_nothing_happens(cluster: Cluster, admin: Client) -> None:
    with PlayedKubelet(cluster, lambda pod: Life(seconds=1)):
        admin.post(JOBS, job_of("a", suspend=True))
        until(lambda: conditions(admin.get(f"{JOBS}/a")))
        cluster.on_request = lambda when, request: cluster.close() if when == "after" else None
        with pytest.raises(GONE):
            admin.merge(f"{JOBS}/a", {"spec": {"suspend": False}})
        cluster.on_request = None
        before = cluster.store.revision
        threading.Event().wait(0.3)
        assert cluster.store.revision == before
        cluster.listen()
        until(lambda: "Complete" in conditions(admin.get(f"{JOBS}/a")))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            {"containers": asks(cpu="9")},
            f"1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 {NEVER}.",
        ),
        ({"containers": asks(memory="7Gi")}, "1 Insufficient memory."),
        ({"containers": asks(**{"nvidia.com/gpu": "1"})}, "1 Insufficient nvidia.com/gpu."),
        ({"nodeSelector": {"x": "1"}}, "1 node(s) didn't match Pod's node affinity/selector."),
    ],
    ids=["cpu", "used memory", "gpu", "selector"],
)
def test_a_pod_for_which_there_is_no_room(cluster: Cluster, admin: Client, spec: dict[str, Any], why: str) -> None:
    admin.post(PODS, pod_of("first", containers=asks(memory="10Gi")))
    until(lambda: admin.get(f"{PODS}/first")["spec"].get("nodeName"))
    admin.post(PODS, pod_of("a", **spec))
    condition = until(lambda: admin.get(f"{PODS}/a")["status"].get("conditions"))[0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"].startswith(f"0/1 nodes are available: {why}")
    uid = admin.get(f"{PODS}/a")["metadata"]["uid"]
    (event,) = admin.get(f"{EVENTS}?fieldSelector=involvedObject.uid%3D{uid}")["items"]
    assert (event["reason"], event["message"]) == ("FailedScheduling", condition["message"])
    cluster.add_node("large", cpu="64", memory="64Gi", gpus=8, labels={"x": "1"})
    until(lambda: admin.get(f"{PODS}/a")["spec"].get("nodeName") == "large")


def test_taints_keep_pods_away(cluster: Cluster, admin: Client) -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    cluster.add_node("tainted", taints=[taint], labels={"x": "1"})
    admin.post(PODS, pod_of("a", nodeSelector={"x": "1"}))
    message = until(lambda: admin.get(f"{PODS}/a")["status"].get("conditions"))[0]["message"]
    assert "1 node(s) had untolerated taint(s)" in message
    toleration = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    admin.post(PODS, pod_of("b", nodeSelector={"x": "1"}, tolerations=[toleration]))
    until(lambda: admin.get(f"{PODS}/b")["spec"].get("nodeName") == "tainted")


def test_pods_of_a_lost_node_never_end(tmp_path: Path) -> None:
    with Cluster(tmp_path, speed=1000) as cluster, PlayedKubelet(cluster, lambda pod: Life()):
        cluster.add_node("a")
        admin, kubelet = cluster.client(), cluster.client("system:node:a")
        admin.post(PODS, pod_of("p"))
        until(lambda: admin.get(f"{PODS}/p")["status"]["phase"] == "Running")
        cluster.lose_node("a")
        with pytest.raises(GONE):
            kubelet.get(PODS)
        node = admin.get("/api/v1/nodes/a")
        (ready,) = [one for one in node["status"]["conditions"] if one["type"] == "Ready"]
        assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusUnknown")
        until(lambda: "deletionTimestamp" in admin.get(f"{PODS}/p")["metadata"])
        pod = admin.get(f"{PODS}/p")
        assert conditions(pod)["DisruptionTarget"] == "DeletionByTaintManager"
        assert pod["status"]["phase"] == "Running"
        admin.post(PODS, pod_of("q"))
        message = until(lambda: admin.get(f"{PODS}/q")["status"].get("conditions"))[0]["message"]
        assert "untolerated taint" in message
        assert "p" in names(admin, PODS)
        admin.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
        assert names(admin, PODS) == ["q"]
        cluster.find_node("a")
        until(lambda: admin.get(f"{PODS}/q")["status"]["phase"] == "Running")


def test_a_job_with_a_pod_on_a_lost_node(tmp_path: Path) -> None:
    with Cluster(tmp_path, speed=1000) as cluster, PlayedKubelet(cluster, lambda pod: Life()):
        for node in "ab":
            cluster.add_node(node, pods=1)
        admin = cluster.client()
        for name in "xy":
            admin.post(JOBS, job_of(name, 2 if name == "x" else 1))
        until(lambda: admin.get(f"{JOBS}/x")["status"].get("ready") == 2)
        (pod,) = [one for one in admin.get(PODS)["items"] if one["spec"].get("nodeName") == "a"]
        index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        cluster.lose_node("a")
        until(lambda: admin.get(f"{JOBS}/x")["status"].get("failedIndexes") == index)
        assert admin.get(f"{JOBS}/x")["status"]["active"] == 1
        path = f"{PODS}/{pod['metadata']['name']}"
        assert admin.get(path)["status"]["phase"] == "Running"
        assert admin.get(path)["metadata"].get("finalizers", []) == []
        admin.delete(f"{JOBS}/x", {"propagationPolicy": "Background"})
        until(lambda: admin.get(f"{JOBS}/y")["status"].get("ready") == 1)  # the room of the other pod
        assert names(admin, JOBS) == ["y"] and "deletionTimestamp" in admin.get(path)["metadata"]
        admin.delete(path, {"gracePeriodSeconds": 0})
        assert len(names(admin, PODS)) == 1


def test_pods_of_a_removed_node_fail(cluster: Cluster, admin: Client) -> None:
    admin.post(JOBS, job_of("a", podReplacementPolicy="Failed", backoffLimitPerIndex=1))
    (name,) = until(lambda: names(admin, PODS))
    until(lambda: admin.get(f"{PODS}/{name}")["spec"].get("nodeName"))
    admin.delete("/api/v1/nodes/hop-0")
    until(lambda: admin.get(f"{PODS}/{name}")["status"]["phase"] == "Failed")
    assert conditions(admin.get(f"{PODS}/{name}"))["DisruptionTarget"] == "DeletionByPodGC"


def test_a_kubeconfig_names_a_user(cluster: Cluster, tmp_path: Path) -> None:
    path = cluster.kubeconfig(tmp_path / "config", "somebody", "default")
    config = json.loads(path.read_text())
    token = config["users"][0]["user"]["token"]
    client = Client(config["clusters"][0]["cluster"]["server"], {"Authorization": f"Bearer {token}"}, cluster.ca)
    assert 'User "somebody"' in client.refusal("GET", PODS)["message"]
    assert client.get("/version")["gitVersion"] == "v1.36.2"


def test_a_fault_of_its_own_is_raised(tmp_path: Path) -> None:
    def hook(when: str, request: Request) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Cluster(tmp_path) as cluster:
        cluster.on_request = hook
        assert cluster.client().refusal("GET", PODS)["code"] == 500

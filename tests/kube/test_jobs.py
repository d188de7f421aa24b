from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kube.client import Client, Object
from kube.jobs_of_tests import EVENTS, JOBS, PODS, conditions, job_of, names, until
from kube.played_kubelet import Life, PlayedKubelet
from kube.server import Cluster

INDEX = "batch.kubernetes.io/job-completion-index"
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAIL_INDEX = {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1]}}


def index_of(pod: Object) -> int:
    return int(pod["metadata"]["labels"][INDEX])


@contextmanager
def kubelet(cluster: Cluster, **lives: Life) -> Iterator[None]:
    """Serve pods; those of index 1 live as `one`, and so on, others as `other`, or until they are ended."""
    words = ("zero", "one", "two")

    def life(pod: Object) -> Life:
        index = int(pod["metadata"].get("labels", {}).get(INDEX, 99))
        word = words[index] if index < len(words) else ""
        return lives.get(word, lives.get("other", Life()))

    with PlayedKubelet(cluster, life):
        yield


def status(client: Client, name: str) -> Object:
    found: Object = client.get(f"{JOBS}/{name}")["status"]
    return found


def test_a_pod_knows_its_index(admin: Client) -> None:
    admin.post(JOBS, job_of("a", 2))
    until(lambda: len(names(admin, PODS)) == 2)
    pods = sorted(admin.get(PODS)["items"], key=index_of)
    assert [pod["spec"]["hostname"] for pod in pods] == ["a-0", "a-1"]
    assert [pod["metadata"]["annotations"][INDEX] for pod in pods] == ["0", "1"]
    (variable,) = pods[1]["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    assert pods[0]["metadata"]["labels"]["job"] == "a"
    assert pods[0]["metadata"]["ownerReferences"][0]["controller"] is True


def test_a_job_completes(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, other=Life(seconds=0)):
        admin.post(JOBS, job_of("a", 5, parallelism=2))
        until(lambda: "Complete" in conditions(admin.get(f"{JOBS}/a")))
    ended = status(admin, "a")
    assert (ended["succeeded"], ended["completedIndexes"], ended.get("active", 0)) == (5, "0-4", 0)
    assert "completionTime" in ended
    assert not any(pod["metadata"].get("finalizers") for pod in admin.get(PODS)["items"])


def test_without_retries_an_index_is_lost_and_the_others_go_on(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, one=Life(seconds=0, code=9)):
        admin.post(JOBS, job_of("a", 3, maxFailedIndexes=3))
        until(lambda: status(admin, "a").get("failedIndexes") == "1")
        found = status(admin, "a")
        assert (found["active"], found["failed"], found.get("conditions")) == (2, 1, None)
        for pod in admin.get(PODS)["items"]:
            if pod["status"]["phase"] == "Running":
                admin.delete(f"{PODS}/{pod['metadata']['name']}")
        until(lambda: "Failed" in conditions(admin.get(f"{JOBS}/a")))
    found = admin.get(f"{JOBS}/a")
    assert conditions(found) == {"FailureTarget": "FailedIndexes", "Failed": "FailedIndexes"}
    assert (found["status"]["failed"], found["status"]["failedIndexes"]) == (3, "0-2")
    assert cluster.backoffs == []


def test_the_back_off_doubles(tmp_path: Path) -> None:
    with Cluster(tmp_path, speed=200) as cluster, kubelet(cluster, zero=Life(seconds=0, code=1)):
        cluster.add_node()
        admin = cluster.client()
        admin.post(JOBS, job_of("a", 2, backoffLimitPerIndex=3))
        until(lambda: status(admin, "a").get("failedIndexes") == "0")
        assert cluster.backoffs == [("a", 0, 10), ("a", 0, 20), ("a", 0, 40)]
        assert status(admin, "a")["failed"] == 4


def test_too_many_lost_indexes_end_a_job(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, zero=Life(seconds=0, code=1), one=Life(seconds=0, code=1)):
        admin.post(JOBS, job_of("a", 3, maxFailedIndexes=1))
        until(lambda: "Failed" in conditions(admin.get(f"{JOBS}/a")))
    found = admin.get(f"{JOBS}/a")
    assert conditions(found)["Failed"] == "MaxFailedIndexesExceeded"
    assert found["status"]["failed"] == 3  # the one that ran, too


def test_a_backoff_limit_for_all_indexes(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, zero=Life(seconds=0, code=1)):
        admin.post(JOBS, job_of("a", 2, backoffLimitPerIndex=None, backoffLimit=1))
        until(lambda: "Failed" in conditions(admin.get(f"{JOBS}/a")))
    assert conditions(admin.get(f"{JOBS}/a"))["Failed"] == "BackoffLimitExceeded"


def test_a_pod_that_is_being_deleted_has_failed_even_if_it_ends_well(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, other=Life(on_term=None)):
        admin.post(JOBS, job_of("a", 2))
        until(lambda: status(admin, "a").get("ready") == 2)
        admin.delete(f"{PODS}/{names(admin, PODS)[0]}", {"gracePeriodSeconds": 600})
        until(lambda: status(admin, "a").get("failedIndexes") == "0")
        assert (status(admin, "a")["terminating"], status(admin, "a")["active"]) == (1, 1)


def test_a_suspended_job_has_no_pods(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster):
        admin.post(JOBS, job_of("a", 2, suspend=True, backoffLimitPerIndex=1))
        until(lambda: conditions(admin.get(f"{JOBS}/a")) == {"Suspended": "JobSuspended"})
        assert names(admin, PODS) == []
        admin.merge(f"{JOBS}/a", {"spec": {"suspend": False}})
        until(lambda: status(admin, "a").get("ready") == 2)
        assert conditions(admin.get(f"{JOBS}/a")) == {}
        admin.merge(f"{JOBS}/a", {"spec": {"suspend": True}})
        until(lambda: not names(admin, PODS))
        admin.merge(f"{JOBS}/a", {"spec": {"suspend": False}})
        until(lambda: status(admin, "a").get("ready") == 2)
        assert status(admin, "a").get("failed", 0) == 0 and cluster.backoffs == []


@pytest.mark.parametrize(
    ("rules", "code", "failed", "lost"),
    [([IGNORE], 143, 0, ""), ([FAIL_INDEX], 5, 1, "0"), ([], 143, 1, "")],
    ids=["ignored", "the index fails", "counted"],
)
def test_what_a_policy_makes_of_an_eviction(
    cluster: Cluster, admin: Client, rules: list[Object], code: int, failed: int, lost: str
) -> None:
    with kubelet(cluster, other=Life(on_term=code)):
        admin.post(JOBS, job_of("a", 2, backoffLimitPerIndex=1, podFailurePolicy={"rules": rules} if rules else None))
        until(lambda: status(admin, "a").get("ready") == 2)
        name = names(admin, PODS)[0]
        admin.post(f"{PODS}/{name}/eviction", {"metadata": {"name": name}})
        events = [change for change in cluster.store.changes if change.object["metadata"]["name"] == name]
        marked = [bool(conditions(one.object).get("DisruptionTarget")) for one in events]
        ended = ["deletionTimestamp" in one.object["metadata"] for one in events]
        assert marked.index(True) < ended.index(True)
        if lost:
            until(lambda: status(admin, "a").get("failedIndexes") == lost)
        else:
            until(lambda: name not in names(admin, PODS) and status(admin, "a").get("active") == 2)
        assert status(admin, "a").get("failed", 0) == failed


def test_a_job_is_deleted_some_time_after_its_end(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, other=Life(seconds=0)):
        admin.post(JOBS, job_of("a", ttlSecondsAfterFinished=5))
        admin.post(JOBS, job_of("b"))
        until(lambda: names(admin, JOBS) == ["b"])
        until(lambda: len(names(admin, PODS)) == 1)


def test_a_pod_that_cannot_start_says_why(cluster: Cluster, admin: Client) -> None:
    with kubelet(cluster, other=Life(waiting="ErrImagePull", message="no such image")):
        admin.post(JOBS, job_of("a"))
        until(lambda: any(pod["status"].get("containerStatuses") for pod in admin.get(PODS)["items"]))
        (pod,) = admin.get(PODS)["items"]
        (state,) = [one["state"] for one in pod["status"]["containerStatuses"]]
        assert state == {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
        assert pod["status"]["phase"] == "Pending"
        admin.delete(f"{JOBS}/a", {"propagationPolicy": "Background"})
        until(lambda: not names(admin, PODS))


def test_an_end_has_a_code_a_reason_and_a_message(cluster: Cluster, admin: Client) -> None:
    with kubelet(
        cluster, other=Life(seconds=0, code=137, reason="OOMKilled", message="said this", log="and wrote this")
    ):
        admin.post(JOBS, job_of("a"))
        until(lambda: any(pod["status"]["phase"] == "Failed" for pod in admin.get(PODS)["items"]))
    (pod,) = admin.get(PODS)["items"]
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (137, "OOMKilled", "said this")
    with admin.open("GET", f"{PODS}/{pod['metadata']['name']}/log") as response:
        assert response.read() == b"and wrote this"


def test_a_quota_is_said_by_an_event_alone(cluster: Cluster, admin: Client) -> None:
    quotas = "/api/v1/namespaces/default/resourcequotas"
    admin.post(quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})
    admin.post(JOBS, job_of("a", 2))
    path = f"{EVENTS}?fieldSelector=reason%3DFailedCreate,involvedObject.name%3Da"
    (event,) = until(lambda: admin.get(path)["items"])[:1]
    assert "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0" in event["message"]
    assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "Job")
    until(lambda: "startTime" in status(admin, "a"))
    assert "active" not in status(admin, "a") and "conditions" not in status(admin, "a")
    admin.merge(f"{quotas}/q", {"spec": {"hard": {"pods": "2"}}})
    until(lambda: len(names(admin, PODS)) == 2)
    assert until(lambda: admin.get(f"{quotas}/q")["status"]["used"]["pods"] == "2")


def test_a_job_that_is_active_for_too_long_fails(cluster: Cluster, admin: Client) -> None:
    with PlayedKubelet(cluster, lambda pod: Life()):
        admin.post(JOBS, job_of("late", activeDeadlineSeconds=4))
        until(lambda: conditions(admin.get(f"{JOBS}/late")).get("Failed") == "DeadlineExceeded")

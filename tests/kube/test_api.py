from __future__ import annotations

import json
from typing import Any

import pytest

from kube.client import MERGE, Client, Failed, Object
from kube.jobs_of_tests import JOBS, PODS, SECRETS, job_of, names, pod_of, until
from kube.server import Cluster

STRATEGIC = "application/strategic-merge-patch+json"
QUEUED = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "suspend": True}


def secret(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "stringData": {"ticket": "the line"}}


def owner(job: Object) -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}


def test_an_object_is_created_read_changed_and_deleted(admin: Client) -> None:
    made = admin.post(SECRETS, secret("a", labels={"x": "1"}))
    assert made["data"] == {"ticket": "dGhlIGxpbmU="} and "stringData" not in made
    changed = admin.merge(f"{SECRETS}/a", {"metadata": {"labels": {"x": None, "y": "2"}}})
    assert changed["metadata"]["labels"] == {"y": "2"}
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert admin.merge(f"{SECRETS}/a", {"metadata": {"labels": {"y": "2"}}}) == changed
    assert admin.get(f"{SECRETS}/a") == changed
    assert admin.call("PUT", f"{SECRETS}/a", {**changed, "data": {}})["data"] == {}
    gone = admin.delete(f"{SECRETS}/a")
    assert gone["status"] == "Success" and gone["details"]["uid"] == made["metadata"]["uid"]
    assert admin.refusal("GET", f"{SECRETS}/a")["message"] == 'secrets "a" not found'


def test_refusals_are_those_of_the_real_server(admin: Client) -> None:
    made = admin.post(SECRETS, secret("a"))
    again = admin.refusal("POST", SECRETS, secret("a"))
    assert (again["code"], again["reason"], again["message"]) == (409, "AlreadyExists", 'secrets "a" already exists')
    admin.merge(f"{SECRETS}/a", {"metadata": {"labels": {"x": "1"}}})
    stale = admin.refusal("PUT", f"{SECRETS}/a", made)
    assert (stale["code"], stale["reason"]) == (409, "Conflict")
    assert 'Operation cannot be fulfilled on secrets "a": the object has been modified' in stale["message"]
    nowhere = admin.refusal("POST", "/api/v1/namespaces/no/secrets", secret("a"))
    assert (nowhere["code"], nowhere["message"]) == (404, 'namespaces "no" not found')
    other = admin.refusal("DELETE", f"{SECRETS}/a", {"preconditions": {"uid": "other"}})
    assert (other["code"], other["reason"]) == (409, "Conflict")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"maxFailedIndexes": 3}, "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions"),
        ({"completions": None}, "spec.completions: Required value: when completion mode is Indexed"),
        ({"parallelism": -1}, "spec.parallelism: Invalid value: -1: must be greater than or equal to 0"),
    ],
)
def test_a_job_with_wrong_values_is_refused(admin: Client, change: Object, message: str) -> None:
    refusal = admin.refusal("POST", JOBS, job_of("a", 2, **change))
    assert (refusal["code"], refusal["reason"]) == (422, "Invalid")
    assert message in refusal["message"]
    assert message.partition(": ")[0] in [cause["field"] for cause in refusal["details"]["causes"]]


def test_a_name_must_fit_a_host(admin: Client) -> None:
    refusal = admin.refusal("POST", JOBS, job_of("a" * 62, 2))
    assert "must be no more than 63 bytes" in refusal["message"]
    refusal = admin.refusal("POST", SECRETS, secret("A_"))
    assert refusal["code"] == 422 and "RFC 1123 subdomain" in refusal["message"]
    refusal = admin.refusal("POST", SECRETS, secret("a", labels={"x": "a b"}))
    assert refusal["code"] == 422 and "a valid label" in refusal["message"]


def test_what_is_fixed_in_a_job_cannot_be_changed(admin: Client) -> None:
    admin.post(JOBS, job_of("a", 2, suspend=True))
    refusal = admin.refusal("PATCH", f"{JOBS}/a", {"spec": {"backoffLimitPerIndex": 1}}, MERGE)
    assert "spec.backoffLimitPerIndex: Invalid value: 1: field is immutable" in refusal["message"]
    refusal = admin.refusal("PATCH", f"{JOBS}/a", {"spec": {"completions": 3}}, MERGE)
    assert "can only be modified in tandem with spec.parallelism" in refusal["message"]
    assert admin.merge(f"{JOBS}/a", {"spec": {"completions": 3, "parallelism": 3}})["metadata"]["generation"] == 2


def test_unknown_fields(cluster: Cluster, admin: Client) -> None:
    job = job_of("a", paralelism=1)
    job["spec"]["template"]["spec"] = {**job["spec"]["template"]["spec"], "tolerations": [{"kee": "x"}]}
    refusal = admin.refusal("POST", f"{JOBS}?fieldValidation=Strict", job)
    sentence = 'unknown field "spec.paralelism", unknown field "spec.template.spec.tolerations[0].kee"'
    assert refusal["code"] == 400 and refusal["message"].endswith(f"strict decoding error: {sentence}")
    with admin.open("POST", f"{JOBS}?fieldValidation=Warn", job) as response:
        assert 'unknown field \\"spec.paralelism\\"' in response.headers["Warning"]
        assert "paralelism" not in json.load(response)["spec"]
    refusal = admin.refusal("POST", JOBS, job_of("b", parallelism="2"))
    assert refusal["code"] == 400 and "cannot unmarshal string" in refusal["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "missing"),
    [
        ("POST", JOBS, job_of("a", managedBy="x"), "Job.spec.managedBy"),
        ("POST", JOBS, job_of("a", completionMode="NonIndexed"), "completionMode NonIndexed"),
        ("POST", PODS, pod_of("a", schedulingGates=[{"name": "x"}]), "Pod.spec.schedulingGates"),
        ("GET", "/apis/apps/v1/deployments", None, "deployments"),
        ("GET", f"{PODS}?shardSelector=x", None, "shardSelector"),
        ("POST", f"{PODS}/a/attach", {}, "pods/attach"),
        ("GET", "/metrics", None, "/metrics"),
    ],
)
def test_what_it_does_not_know_it_says(
    admin: Client, method: str, path: str, body: Object | None, missing: str
) -> None:
    refusal = admin.refusal(method, path, body)
    assert refusal["code"] == 501 and missing in refusal["message"]


def test_a_dry_run_changes_nothing(admin: Client) -> None:
    assert admin.post(f"{JOBS}?dryRun=All", job_of("a"))["spec"]["suspend"] is False
    assert admin.refusal("POST", f"{JOBS}?dryRun=All", job_of("A_"))["code"] == 422
    assert names(admin, JOBS) == []
    admin.post(SECRETS, secret("a"))
    admin.delete(f"{SECRETS}/a", {"dryRun": ["All"]})
    assert names(admin, SECRETS) == ["a"]


def test_names_are_generated(admin: Client) -> None:
    made = [admin.post(SECRETS, {"metadata": {"generateName": "a-"}})["metadata"]["name"] for _ in range(2)]
    assert all(len(name) == 7 and name.startswith("a-") for name in made) and len(set(made)) == 2


def test_selectors(admin: Client) -> None:
    for name, labels in [("a", {"x": "1"}), ("b", {"x": "2", "y": "1"}), ("c", {})]:
        admin.post(SECRETS, secret(name, labels=labels))
    cases = {
        "labelSelector=x%3D1": ["a"],
        "labelSelector=x%21%3D1": ["b", "c"],
        "labelSelector=x": ["a", "b"],
        "labelSelector=%21x": ["c"],
        "labelSelector=x+in+(1,2),y": ["b"],
        "labelSelector=x+notin+(1)": ["b", "c"],
        "fieldSelector=metadata.name%3Da": ["a"],
        "fieldSelector=metadata.name%21%3Da": ["b", "c"],
    }
    assert {query: names(admin, f"{SECRETS}?{query}") for query in cases} == cases
    refusal = admin.refusal("GET", f"{SECRETS}?fieldSelector=data%3Dx")
    assert refusal["code"] == 400 and "field label not supported: data" in refusal["message"]
    assert admin.refusal("GET", f"{SECRETS}?labelSelector=a+b")["code"] == 400


def test_lists_come_in_parts(cluster: Cluster, admin: Client) -> None:
    for name in "abc":
        admin.post(SECRETS, secret(name))
    part = admin.get(f"{SECRETS}?limit=2")
    token = part["metadata"]["continue"]
    assert len(part["items"]) == 2 and part["metadata"]["remainingItemCount"] == 1
    assert names(admin, f"{SECRETS}?limit=2&continue={token}") == ["c"]
    cluster.compact()
    assert admin.refusal("GET", f"{SECRETS}?limit=2&continue={token}")["reason"] == "Expired"
    admin.delete(f"{SECRETS}?fieldSelector=metadata.name%21%3Da")
    assert names(admin, SECRETS) == ["a"]


def test_a_watch_tells_of_changes(admin: Client) -> None:
    revision = admin.get(SECRETS)["metadata"]["resourceVersion"]
    admin.post(SECRETS, secret("a", labels={"x": "1"}))
    admin.post(SECRETS, secret("b"))
    watch = admin.watch(f"{SECRETS}?watch=1&resourceVersion={revision}&labelSelector=x%3D1&timeoutSeconds=60")
    first = next(watch)
    admin.merge(f"{SECRETS}/b", {"metadata": {"labels": {"x": "1"}}})
    admin.merge(f"{SECRETS}/a", {"metadata": {"labels": {"x": "2"}}})
    told = [(one["type"], one["object"]["metadata"]["name"]) for one in (first, next(watch), next(watch))]
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    watch.close()  # type: ignore[attr-defined]


def test_a_watch_without_a_revision_begins_with_what_there_is(admin: Client) -> None:
    admin.post(SECRETS, secret("a"))
    events = list(admin.watch(f"{SECRETS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true"))
    assert events[0]["type"] == "ADDED" and events[-1]["type"] == "BOOKMARK"
    revision = admin.get(SECRETS)["metadata"]["resourceVersion"]
    assert events[-1]["object"]["metadata"]["resourceVersion"] == revision


def test_a_watch_of_before_a_compaction_is_expired(cluster: Cluster, admin: Client) -> None:
    revision = admin.get(SECRETS)["metadata"]["resourceVersion"]
    open_before = admin.watch(f"{SECRETS}?watch=1&resourceVersion={revision}")
    admin.post(SECRETS, secret("a"))
    assert next(open_before)["object"]["metadata"]["name"] == "a"
    cluster.compact()
    (error,) = admin.watch(f"{SECRETS}?watch=1&resourceVersion={revision}")
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")
    admin.post(SECRETS, secret("b"))
    assert next(open_before)["object"]["metadata"]["name"] == "b"
    open_before.close()  # type: ignore[attr-defined]


def test_a_strategic_merge_joins_owners(admin: Client) -> None:
    one, two = (admin.post(JOBS, job_of(name, suspend=True)) for name in "ab")
    admin.post(SECRETS, secret("a", ownerReferences=[owner(one)]))
    patch = {"metadata": {"ownerReferences": [owner(two)]}}
    joined = admin.call("PATCH", f"{SECRETS}/a", patch, STRATEGIC)["metadata"]["ownerReferences"]
    assert [reference["name"] for reference in joined] == ["a", "b"]
    replaced = admin.merge(f"{SECRETS}/a", patch)["metadata"]["ownerReferences"]
    assert [reference["name"] for reference in replaced] == ["b"]


def test_an_object_stays_until_all_its_owners_are_gone(admin: Client) -> None:
    one, two = (admin.post(JOBS, job_of(name, suspend=True)) for name in "ab")
    admin.post(SECRETS, secret("a", ownerReferences=[owner(one), owner(two)]))
    admin.delete(f"{JOBS}/a", {"propagationPolicy": "Background"})
    until(lambda: len(admin.get(f"{SECRETS}/a")["metadata"]["ownerReferences"]) == 1)
    admin.delete(f"{JOBS}/b", {"propagationPolicy": "Foreground"})
    until(lambda: names(admin, SECRETS) == [] == names(admin, JOBS))


def test_an_object_whose_owner_is_gone_already_goes(admin: Client) -> None:
    job = admin.post(JOBS, job_of("a", suspend=True))
    admin.delete(f"{JOBS}/a", {"propagationPolicy": "Background"})
    admin.post(SECRETS, secret("a", ownerReferences=[owner(job)]))
    until(lambda: names(admin, SECRETS) == [])


def test_a_job_that_is_deleted_without_a_policy_leaves_its_pods(admin: Client) -> None:
    admin.post(JOBS, job_of("a"))
    (pod,) = until(lambda: names(admin, PODS))
    with admin.open("DELETE", f"{JOBS}/a") as response:
        assert "child pods are preserved by default" in response.headers["Warning"]
    until(lambda: names(admin, JOBS) == [])
    assert until(lambda: "ownerReferences" in admin.get(f"{PODS}/{pod}")["metadata"]) is True
    until(lambda: not admin.get(f"{PODS}/{pod}")["metadata"]["ownerReferences"])


def test_a_namespace_goes_with_what_is_in_it(admin: Client) -> None:
    admin.post("/api/v1/namespaces", {"metadata": {"name": "x"}})
    admin.post("/api/v1/namespaces/x/secrets", secret("a"))
    admin.delete("/api/v1/namespaces/x")
    until(lambda: "x" not in names(admin, "/api/v1/namespaces"))
    assert names(admin, "/api/v1/secrets") == []


def test_the_status_of_a_pod_is_its_kubelets(cluster: Cluster, admin: Client) -> None:
    admin.post(PODS, pod_of("a"))
    kubelet = cluster.client("system:node:hop-0")
    assert until(lambda: names(kubelet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dhop-0")) == ["a"]
    kubelet.call("PATCH", f"{PODS}/a/status", {"status": {"phase": "Running"}}, MERGE)
    assert admin.merge(f"{PODS}/a", {"status": {"phase": "Failed"}})["status"]["phase"] == "Running"
    assert (
        "pod updates may not change"
        in admin.refusal("PATCH", f"{PODS}/a", {"spec": {"hostname": "x"}}, MERGE)["message"]
    )
    going = admin.delete(f"{PODS}/a")
    assert going["metadata"]["deletionGracePeriodSeconds"] == 30
    kubelet.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert names(admin, PODS) == []


def test_logs(cluster: Cluster, admin: Client) -> None:
    admin.post(PODS, pod_of("a"))
    refusal = admin.refusal("GET", f"{PODS}/a/log")
    assert refusal["code"] == 400 and "is waiting to start: ContainerCreating" in refusal["message"]
    admin.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    file = cluster.logs / "default_a.log"
    file.write_text("one\ntwo\n")

    def text(query: str = "") -> str:
        with admin.open("GET", f"{PODS}/a/log{query}") as response:
            whole: str = response.read().decode()
            return whole

    assert (text(), text("?tailLines=1"), text("?limitBytes=2")) == ("one\ntwo\n", "two\n", "on")
    with admin.open("GET", f"{PODS}/a/log?follow=true") as response:
        assert response.readline() == b"one\n"
        with file.open("a") as more:
            more.write("three\n")
        assert [response.readline(), response.readline()] == [b"two\n", b"three\n"]
        admin.merge(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
        assert response.read() == b""


def test_who_has_no_role_is_refused(cluster: Cluster, admin: Client) -> None:
    user = cluster.client("somebody")
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rule = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]}
    group = "rbac.authorization.k8s.io"
    admin.post(f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    reference = {"apiGroup": group, "kind": "Role", "name": "r"}
    subjects = [{"apiGroup": group, "kind": "User", "name": "somebody"}]
    admin.post(f"{rbac}/rolebindings", {"metadata": {"name": "b"}, "roleRef": reference, "subjects": subjects})
    user.post(JOBS, job_of("a", suspend=True))
    refusal = user.refusal("DELETE", f"{JOBS}/a")
    assert refusal["message"] == (
        'jobs.batch "a" is forbidden: User "somebody" cannot delete resource "jobs" in API group "batch" in the '
        'namespace "default"'
    )
    assert user.refusal("GET", "/api/v1/nodes")["message"] == (
        'nodes is forbidden: User "somebody" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    def may(**asked: str) -> Object:
        status: Object = user.post(reviews, {"spec": {"resourceAttributes": asked}})["status"]
        return status

    assert may(namespace="default", verb="create", group="batch", resource="jobs") == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "b/default" of Role "r" to User "somebody"',
    }
    assert may(namespace="default", verb="delete", group="batch", resource="jobs") == {"allowed": False}
    with pytest.raises(Failed, match="401"):
        Client(cluster.url, {"Authorization": "Bearer other"}, cluster.ca).get(JOBS)


def test_a_patch_of_another_kind_is_unknown(admin: Client) -> None:
    admin.post(SECRETS, secret("a"))
    assert admin.refusal("PATCH", f"{SECRETS}/a", [], "application/json-patch+json")["code"] == 501
    assert admin.refusal("PATCH", f"{SECRETS}/a", {}, "application/apply-patch+yaml")["code"] == 415

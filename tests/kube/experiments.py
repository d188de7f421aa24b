"""What was tried on a real cluster, to be tried again on any: `python experiments.py KUBECONFIG` (with tests/ on
PYTHONPATH) prints it in the form of `observed/*.txt`, which is what a real Kubernetes 1.36.2 did.

The user of the kubeconfig must be an administrator; kubectl must be there. `HOPYARD_KUBE_IMAGE` is the image of the
pods, which must have Python as `python3`.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kube.client import Client, Failed, Object
from kube.played_kubelet import Life
from kube.transcripts import OBSERVED, parsed

DRIVER = "hopyard-driver"
LIMIT = 60.0
"""Seconds within which anything that is waited for must happen."""
JOB = ("active", "ready", "succeeded", "failed", "failedIndexes", "completedIndexes", "terminating")
RULES = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]
POLICY = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "agent", "operator": "In", "values": [78]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
}
READY = "ready\n"
"""What a pod writes that handles SIGTERM from now on: a process 1 that does not is not ended by it."""
STAY = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit({code})); print('ready'); time.sleep(600)"
ZERO = "import os, sys, time; {first} if os.environ['JOB_COMPLETION_INDEX'] == '0' else time.sleep(600)"
BEHAVIOURS: dict[str, tuple[str, Callable[[int], Life]]] = {
    "leaves with 0": (STAY.format(code=0), lambda index: Life(on_term=0, log=READY)),
    "leaves with 143": (STAY.format(code=143), lambda index: Life(on_term=143, log=READY)),
    "0 exits with 1": (
        ZERO.format(first="(time.sleep(4), sys.exit(1))"),
        lambda index: Life(on_term=None) if index else Life(seconds=4, code=1),
    ),
    "0 exits with 78": (
        ZERO.format(first="(time.sleep(2), sys.exit(78))"),
        lambda index: Life(on_term=None) if index else Life(seconds=2, code=78),
    ),
    "0 exits with 9": (
        ZERO.format(first="(time.sleep(2), os._exit(9))"),
        lambda index: Life(on_term=None) if index else Life(seconds=2, code=9),
    ),
    "ends": ("import time; time.sleep(1)", lambda index: Life(seconds=1)),
}
"""Behaviours of pods: the command, and for a played kubelet what it does in the pod of an index."""


def played(pod: Object) -> Life:
    """Return what a pod of these experiments does, for a played kubelet."""
    command = pod["spec"]["containers"][0]["command"][-1]
    index = int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
    return next(life(index) for code, life in BEHAVIOURS.values() if code == command)


class Lab:
    """A namespace with a driver that has few rights, and a record of all that happens to its pods.

    Args:
        admin: may do all, and impersonate.
        expected: what the transcript says; the record of a Job's status waits until it is one of these.
        set_speed: lets the cluster's time run faster, if it can.
    """

    def __init__(
        self, admin: Client, namespace: str, expected: str = "", set_speed: Callable[[float], None] | None = None
    ) -> None:
        self.admin, self.namespace = admin, namespace
        self._set_speed = set_speed
        self.driver = Client(admin.url, {**admin.headers, "Impersonate-User": DRIVER}, None)
        self.driver._context = admin._context
        self.root = f"/api/v1/namespaces/{namespace}"
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.lines: list[str] = []
        self._expected = [line for line in parsed(expected).others if line.startswith("JOB")]
        self._began = time.monotonic()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="lab")
        self._ended = False

    def open(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.admin.post("/api/v1/namespaces", {"metadata": {"name": self.namespace, "labels": labels}})
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        self.admin.post(f"{rbac}/roles", {"metadata": {"name": DRIVER}, "rules": RULES})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": DRIVER}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": DRIVER}
        binding = {"metadata": {"name": DRIVER}, "roleRef": reference, "subjects": [subject]}
        self.admin.post(f"{rbac}/rolebindings", binding)
        self._watching.start()

    def close(self) -> None:
        self._ended = True
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}")

    def record(self, line: object) -> None:
        """Add a line to the record."""
        self.lines.append(str(line))

    def _watch(self) -> None:
        revision = "0"
        while not self._ended:
            path = f"{self.root}/pods?watch=1&timeoutSeconds=300&resourceVersion={revision}"
            try:
                for event in self.driver.watch(path, timeout=310):
                    revision = event["object"]["metadata"]["resourceVersion"]
                    self.record(self._line(event["type"], event["object"]))
            except (OSError, Failed):
                time.sleep(0.2)

    def _line(self, kind: str, pod: Object) -> str:
        status = pod["status"]
        conditions = [
            (one["type"], one.get("reason"))
            for one in status.get("conditions", [])
            if (one["status"] != "True" and one.get("reason")) or one["type"] == "DisruptionTarget"
        ]
        states = [one["state"].get("terminated") or {} for one in status.get("containerStatuses", [])]
        deleting = "deleting " if "deletionTimestamp" in pod["metadata"] else ""
        ended = [state.get("exitCode") for state in states]
        when, name = time.monotonic() - self._began, pod["metadata"]["name"]
        return f"   {when:6.2f} {kind:8} {name:14} {status.get('phase'):9} exit={ended} {deleting}{conditions}"

    @contextmanager
    def hurried(self, speed: float) -> Iterator[None]:
        """Let time run faster, where nothing depends on how soon this ends."""
        if self._set_speed is not None:
            self._set_speed(speed)
        yield
        if self._set_speed is not None:
            self._set_speed(1)

    def start(self, name: str, behaviour: str, n: int = 2, grace: int = 3, cpu: str = "1", **spec: Any) -> Object:
        """Create a Secret, a Job, and make the Job its owner."""
        self.driver.post(f"{self.root}/secrets", {"metadata": {"name": name}, "stringData": {"k": "v"}})
        job = self.driver.post(self.jobs, job_of(name, BEHAVIOURS[behaviour][0], n, grace, cpu, **spec))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        self.driver.merge(f"{self.root}/secrets/{name}", {"metadata": {"ownerReferences": [owner]}})
        return job

    def pods(self, job: str) -> list[Object]:
        """Return the pods of a Job that are not being deleted, by index."""
        listed = self.driver.get(f"{self.root}/pods?labelSelector=hopyard.dev%2Frun%3D{job}")["items"]
        return [pod for pod in sorted(listed, key=lambda one: str(one["metadata"]["name"]))]

    def until(self, what: str, happened: Callable[[], object]) -> None:
        """Wait until something has happened."""
        end = time.monotonic() + LIMIT
        while not happened():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {LIMIT} s; the record:\n" + "\n".join(self.lines))
            time.sleep(0.02)

    def seen(self, pattern: str, pods: int = 1) -> None:
        """Wait until lines of so many pods match."""

        def names() -> set[str]:
            return {line.split()[2] for line in list(self.lines) if re.search(pattern, line)}

        self.until(pattern, lambda: len(names()) >= pods)

    def running(self, job: str, n: int) -> None:
        """Wait until so many pods of a Job run, and handle SIGTERM."""
        self.until(f"{n} pods of {job} run", lambda: sum(map(self._is_ready, self.pods(job))) == n)

    def _is_ready(self, pod: Object) -> bool:
        if not _runs(pod):
            return False
        try:
            with self.driver.open("GET", f"{self.root}/pods/{pod['metadata']['name']}/log") as response:
                return bool(response.read().decode() == READY)
        except Failed:  # gone since
            return False

    def scale(self, job: str, n: int) -> Object:
        return self.patch(job, {"parallelism": n, "completions": n})

    def patch(self, job: str, spec: Object) -> Object:
        return self.driver.merge(f"{self.jobs}/{job}", {"spec": spec})

    def status(self, name: str) -> None:
        """Record the status of a Job, as soon as it is what the transcript says."""
        end = time.monotonic() + LIMIT / 2
        while True:
            status = self.driver.get(f"{self.jobs}/{name}").get("status", {})
            counts = {key: status[key] for key in JOB if status.get(key)}
            conditions = [
                (one["type"], one.get("reason"), one.get("message", "")[:140]) for one in status.get("conditions", [])
            ]
            line = f"JOB {name} {counts} {conditions}"
            said = parsed(line, "\n".join(self.lines)).others
            if self._expected and (said[0] == self._expected[0] or time.monotonic() > end):
                self._expected.pop(0)
            elif self._expected or time.monotonic() < end - LIMIT / 2 + 2:
                time.sleep(0.02)
                continue
            self.record(f"   {time.monotonic() - self._began:6.2f} {line}")
            return

    def events(self, reason: str, length: int) -> None:
        """Record the first event of a reason."""
        path = f"{self.root}/events?fieldSelector=reason%3D{reason}"
        self.until(f"an event {reason}", lambda: self.driver.get(path)["items"])
        said = [(event["reason"], event["message"][:length]) for event in self.driver.get(path)["items"]]
        self.record(f"   events {said[:1]}")

    def end(self, name: str) -> None:
        """Delete a Job, and wait until nothing is left of it."""
        self.driver.delete(f"{self.jobs}/{name}", {"propagationPolicy": "Background"})
        self.until(f"{name} gone", lambda: not self.pods(name) and self._is_gone(f"{self.root}/secrets/{name}"))

    def _is_gone(self, path: str) -> bool:
        try:
            self.admin.get(path)
        except Failed as failed:
            return failed.code == 404
        return False

    def gone(self, path: str) -> None:
        self.until(f"{path} gone", lambda: self._is_gone(path))


def _runs(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def job_of(name: str, code: str, n: int, grace: int, cpu: str, **spec: Any) -> Object:
    """Return the Job of an experiment."""
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "agent",
        "image": os.environ.get("HOPYARD_KUBE_IMAGE", "python:3.13-slim"),
        "command": ["python3", "-u", "-c", code],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": [
            {"name": "ticket", "mountPath": "/run/hopyard", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": security,
        "containers": [container],
        "volumes": [
            {"name": "ticket", "secret": {"secretName": name, "defaultMode": 256}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "hopyard"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": n,
            "parallelism": n,
            "backoffLimitPerIndex": 6,
            "ttlSecondsAfterFinished": 600,
            "podFailurePolicy": POLICY,
            **spec,
            "template": {"metadata": {"labels": {"hopyard.dev/run": name}}, "spec": pod},
        },
    }


def exit_1(lab: Lab) -> None:
    """A worker's process fails."""
    lab.start("a", "0 exits with 1")
    with lab.hurried(4):
        lab.seen("Running", 3)
    lab.seen("Failed .*exit=.1. .*Ready", 2)
    lab.status("a")
    lab.end("a")


def _delete_one(lab: Lab) -> None:
    lab.running("b", 2)
    name = lab.pods("b")[0]["metadata"]["name"]
    lab.admin.delete(f"{lab.root}/pods/{name}")


def _evict(lab: Lab) -> None:
    name = next(pod for pod in lab.pods("b") if _runs(pod))["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    lab.record(lab.admin.post(f"{lab.root}/pods/{name}/eviction", eviction)["status"])
    lab.seen(rf"{name}.*exit=\[\d+\] deleting")


def deleted_exit_0(lab: Lab) -> None:
    """A pod is deleted, another evicted; both leave with 0. The Job is Complete then, and cannot grow."""
    lab.start("b", "leaves with 0", maxFailedIndexes=2)
    _delete_one(lab)
    lab.status("b")
    _evict(lab)
    lab.status("b")
    lab.record(lab.scale("b", 3)["spec"]["completions"])
    refusal = lab.driver.refusal("PATCH", f"{lab.jobs}/b", {"spec": {"parallelism": 1, "completions": 1}}, MERGE)
    lab.record({"code": refusal["code"], "message": refusal["message"]})
    lab.status("b")
    lab.end("b")


def deleted_exit_143(lab: Lab) -> None:
    """A pod is deleted, its replacement evicted; both leave with 143. The Job grows, shrinks, is suspended, resumed."""
    lab.start("b", "leaves with 143")
    _delete_one(lab)
    with lab.hurried(50):
        lab.seen("DELETED")
    lab.running("b", 2)
    lab.status("b")
    _evict(lab)
    lab.status("b")
    lab.record(lab.scale("b", 3)["spec"]["completions"])
    lab.running("b", 2)
    lab.record({key: value for key, value in lab.scale("b", 1).items() if key in ("code", "message")})
    lab.status("b")
    lab.patch("b", {"suspend": True})
    lab.status("b")
    lab.patch("b", {"suspend": False})
    lab.status("b")
    lab.end("b")


def exit_78(lab: Lab) -> None:
    """A worker's process fails in a way that ends the Job."""
    lab.start("c", "0 exits with 78", grace=20)
    lab.status("c")
    with lab.hurried(50):
        lab.seen(r"exit=\[137\]")
    lab.end("c")


def no_room(lab: Lab) -> None:
    """No node is large enough."""
    lab.start("d", "leaves with 0", cpu="1000")
    lab.status("d")
    lab.events("FailedScheduling", 120)
    lab.end("d")


def quota(lab: Lab) -> None:
    """A quota leaves room for one pod of three."""
    lab.admin.post(f"{lab.root}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
    lab.until(
        "the quota is counted", lambda: lab.admin.get(f"{lab.root}/resourcequotas/q").get("status", {}).get("used")
    )
    lab.start("e", "leaves with 143", 3)
    lab.running("e", 1)
    lab.status("e")
    lab.events("FailedCreate", 160)
    lab.end("e")


def not_restricted(lab: Lab) -> None:
    """The namespace's Pod Security Standard forbids the pod."""
    job = job_of("f", BEHAVIOURS["ends"][0], 2, 3, "1")
    del job["spec"]["template"]["spec"]["securityContext"]
    lab.driver.post(lab.jobs, job)
    lab.status("f")
    lab.events("FailedCreate", 200)


def refused(lab: Lab) -> None:
    """A field is unknown, a name is none."""
    job = job_of("g", BEHAVIOURS["ends"][0], 2, 3, "1", paralelism=1)
    refusal = lab.driver.refusal("POST", f"{lab.jobs}?fieldValidation=Strict", job)
    lab.record({key: refusal[key] for key in ("code", "reason", "message")})
    refusal = lab.driver.refusal("POST", lab.jobs, job_of("G_", BEHAVIOURS["ends"][0], 2, 3, "1"))
    lab.record(refusal["message"][:160])


def killed(lab: Lab) -> None:
    """A pod is deleted without a grace period."""
    lab.start("h", "leaves with 143")
    lab.running("h", 2)
    name = lab.pods("h")[0]["metadata"]["name"]
    lab.admin.delete(f"{lab.root}/pods/{name}", {"gracePeriodSeconds": 0})
    with lab.hurried(50):
        lab.seen(f"DELETED .*{name}")
    lab.running("h", 2)
    lab.status("h")
    lab.end("h")


def never_replaced(lab: Lab) -> None:
    """The Job replaces no pod; another Job does at once."""
    lab.start("k", "0 exits with 9", backoffLimitPerIndex=0)
    lab.seen(r"exit=\[9\]")
    lab.status("k")
    lab.start("k2", "leaves with 143", 1, backoffLimitPerIndex=0)
    lab.running("k2", 1)
    lab.status("k2")
    lab.status("k")
    lab.end("k2")
    lab.end("k")


def ttl(lab: Lab) -> None:
    """All leave with 0, and the Job is deleted some seconds later."""
    lab.start("l", "ends", backoffLimitPerIndex=0, ttlSecondsAfterFinished=10)
    lab.status("l")
    with lab.hurried(50):
        lab.gone(f"{lab.jobs}/l")
    lab.gone(f"{lab.root}/secrets/l")
    lab.record("   after ttl: NotFound NotFound")


MERGE = "application/merge-patch+json"
EXPERIMENTS = (
    exit_1,
    deleted_exit_0,
    deleted_exit_143,
    exit_78,
    no_room,
    quota,
    not_restricted,
    refused,
    killed,
    never_replaced,
    ttl,
)


@contextmanager
def real_cluster(kubeconfig: str) -> Iterator[Client]:
    """Yield a client of a real cluster, by kubectl's proxy."""
    command = ["kubectl", "--kubeconfig", kubeconfig, "proxy", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield Client(f"http://{line.rpartition(' ')[2].strip()}")
        finally:
            process.terminate()


def run(
    experiment: Callable[[Lab], None],
    admin: Client,
    namespace: str,
    set_speed: Callable[[float], None] | None = None,
) -> Lab:
    """Run an experiment in a namespace of its own, and return the lab with its record."""
    lab = Lab(admin, namespace, (OBSERVED / f"{experiment.__name__}.txt").read_text(), set_speed)
    lab.open()
    try:
        experiment(lab)
    finally:
        lab.close()
    return lab


if __name__ == "__main__":
    with real_cluster(sys.argv[1]) as admin:
        for experiment in EXPERIMENTS:
            print(f"== {experiment.__name__}: {experiment.__doc__}")
            print("\n".join(run(experiment, admin, f"hopyard-{secrets.token_hex(4)}").lines), flush=True)

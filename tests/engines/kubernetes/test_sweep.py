"""`hopyard doctor --sweep`: what drivers that are gone have left is told from what drivers have that live.

The cluster is that of the tests; drivers are processes that are killed; no pod has a process.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("kubernetes")

import hopyard as hy
from hopyard.cli import app
from hopyard.doctor import sweep_cluster
from hopyard.engines.kubernetes import jobs, manifests, sweep
from hopyard.engines.kubernetes.manifests import KEEP_SECONDS, MANAGED_BY, PLACES
from hopyard.engines.kubernetes.sweep import Remains, Verdict, gather, judge
from hopyard.engines.kubernetes.watcher import PATIENCE_SECONDS
from hopyard.ports.engines import LaunchInfo
from jobs import until
from kube.api.routes import Request
from kube.client import MERGE
from kube.jobs_of_tests import JOBS, PODS, SECRETS, job_of
from kube.lab import role
from kube.played_kubelet import Life, PlayedKubelet
from kube.server import Cluster

LONG, SLOW = pytest.mark.long, pytest.mark.slow
SET = "hopyard-0a1b2c3d"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
DRIVER = """
import sys, time
from pathlib import Path
import hopyard as hy
from hopyard.engines.kubernetes import jobs
from hopyard.ports.engines import LaunchInfo
jobs.RENEW_SECONDS = 0.2
engine = hy.Kubernetes(1, "hopyard:test", cpu=int(sys.argv[1]), devices=None)
agents = engine.open(LaunchInfo(lambda slot: b"{}\\n", lambda slot: Path("log")))
agents.start(0)
print(agents._placement.name, flush=True)
time.sleep(600)
"""
"""A driver whose pods nobody answers."""


# ---------------------------------------------------------------- decisions


def about(name: str, of: str = SET, **more: Any) -> dict[str, Any]:
    return {"name": name, "resourceVersion": "1", "labels": {MANAGED_BY: "hopyard", PLACES: of}, **more}


def job(number: int = 1, *conditions: str, **spec: Any) -> dict[str, Any]:
    spec = {"ttlSecondsAfterFinished": KEEP_SECONDS, **spec}
    status = {"conditions": [{"type": each, "status": "True"} for each in conditions]}
    return {"metadata": about(f"{SET}-{number}"), "spec": spec, "status": status}


def secret(version: str) -> dict[str, Any]:
    return {"metadata": about(SET) | {"resourceVersion": version}}


def pod(phase: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": about("a", **metadata), "status": {"phase": phase}}


Look = tuple[list[Any], list[Any], list[Any]]
WAITS, MARKED = [pod("Pending")], [secret("1")]
CASES: dict[str, tuple[Look, Look, Verdict]] = {
    "nothing has changed": (([job()], MARKED, WAITS), ([job()], MARKED, WAITS), Verdict.ABANDONED),
    "renewed": (([job()], MARKED, WAITS), ([job()], [secret("2")], WAITS), Verdict.LIVES),
    "no Secret, and none came": (([job()], [], WAITS), ([job()], [], WAITS), Verdict.ABANDONED),
    "the Secret came": (([job()], [], WAITS), ([job()], MARKED, WAITS), Verdict.LIVES),
    "the Secret went": (([job()], MARKED, WAITS), ([job()], [], WAITS), Verdict.LIVES),
    "new": (([], [], []), ([job()], [], WAITS), Verdict.LIVES),
    "a Secret alone": (([], MARKED, []), ([], MARKED, []), Verdict.ABANDONED),
    "a queue": (([job(suspend=True)], MARKED, []), ([job(suspend=True)], MARKED, []), Verdict.ABANDONED),
    "no room in a quota": (([job()], MARKED, []), ([job()], MARKED, []), Verdict.ABANDONED),
    "a pod runs": (([job()], MARKED, [pod("Running")]), ([job()], MARKED, [pod("Running")]), Verdict.RUNS),
    "a pod has begun to run": (([job()], MARKED, WAITS), ([job()], MARKED, [*WAITS, pod("Running")]), Verdict.RUNS),
    "a pod has just run": (([job()], MARKED, [pod("Running")]), ([job()], MARKED, WAITS), Verdict.LIVES),
    "a pod of a node that is gone": (
        ([job()], MARKED, [pod("Running", deletionTimestamp="now")]),
        ([job()], MARKED, [pod("Running", deletionTimestamp="now")]),
        Verdict.ABANDONED,
    ),
    "complete": (([job(1, "Complete")], MARKED, []), ([job(1, "Complete")], MARKED, []), Verdict.ENDS),
    "failed": (([job(1, "Failed")], [], []), ([job(1, "Failed")], [], []), Verdict.ENDS),
    "one of two is finished": (
        ([job(1, "Failed"), job(2)], MARKED, WAITS),
        ([job(1, "Failed"), job(2)], MARKED, WAITS),
        Verdict.ABANDONED,
    ),
    "suspended, not finished": (([job(1, "Suspended")], [], []), ([job(1, "Suspended")], [], []), Verdict.ABANDONED),
    "with a deadline": (
        ([job(activeDeadlineSeconds=600)], [], WAITS),
        ([job(activeDeadlineSeconds=600)], [], WAITS),
        Verdict.ENDS,
    ),
    "with a deadline that does not begin": (
        ([job(activeDeadlineSeconds=600, suspend=True)], [], []),
        ([job(activeDeadlineSeconds=600, suspend=True)], [], []),
        Verdict.ABANDONED,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_looks_tell_what_is_abandoned(case: str) -> None:
    first, second, verdict = CASES[case]
    assert [found for _, found in judge(gather(*first), gather(*second))] == [verdict]


def test_a_finished_job_that_nobody_deletes_is_abandoned() -> None:
    look = {"metadata": about(f"{SET}-1"), "spec": {}, "status": job(1, "Complete")["status"]}
    found = gather([look], [], [])
    assert judge(found, found) == [(Remains(SET, (f"{SET}-1",), lasting=True), Verdict.ABANDONED)]


def test_sets_are_told_apart_and_secrets_of_others_do_not_count() -> None:
    other = {"metadata": about("hopyard-1-1", "hopyard-1"), "spec": {}}
    wandb = {"metadata": about("wandb")}
    found = gather([job(), job(2), other], [secret("7"), wandb], [*WAITS, pod("Running")])
    assert list(found.values()) == [
        Remains(SET, (f"{SET}-1", f"{SET}-2"), lasting=True, version="7", running=1, waiting=1),
        Remains("hopyard-1", ("hopyard-1-1",), lasting=True),
    ]


def test_a_driver_is_watched_for_longer_than_two_renewals() -> None:
    """One may be late by the longest pause after a refusal."""
    assert sweep.WATCH_SECONDS >= 2 * jobs.RENEW_SECONDS + PATIENCE_SECONDS


# ---------------------------------------------------------------- on a cluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Of one node of 8 cores, whose user "driver" has the Role of the page."""
    monkeypatch.setattr(jobs, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.1)
    with Cluster(tmp_path, speed=20, bookmarks=0.2) as made, PlayedKubelet(made, lambda pod: Life()):
        made.add_node()
        admin = made.client()
        admin.post(f"{RBAC}/roles", role())
        bind(made, "hopyard", "driver")
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path / "config", "driver")))
        yield made


def bind(cluster: Cluster, name: str, user: str) -> None:
    """Give a user the Role of this name."""
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    cluster.client().post(f"{RBAC}/rolebindings", binding)


class Drivers:
    """Drivers in processes of their own, in a cluster, and its sweep by somebody with all rights."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.processes: list[subprocess.Popen[str]] = []
        self.waited: list[float] = []

    def start(self, cpu: int = 9) -> tuple[subprocess.Popen[str], str]:
        """Start one whose pod takes so many cores: more than 8 are on no node. Return it, and its set of places."""
        words = [sys.executable, "-P", "-c", DRIVER, str(cpu)]
        with (self.folder / "drivers").open("a") as log:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def kill(self, process: subprocess.Popen[str]) -> None:
        with process:
            process.kill()

    def close(self) -> None:
        for each in self.processes:
            self.kill(each)

    def sweep(self, yes: bool = False, user: str = "admin", wait: Callable[[], object] = lambda: None) -> Any:
        """Return (name, ok, text) of all findings. `wait`: called between two looks."""
        config = self.cluster.kubeconfig(self.folder / "sweeper", user)

        def watch(seconds: float) -> None:
            self.waited.append(seconds)
            wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(config))
            findings = sweep_cluster(hy.Kubernetes(1, "none"), yes, watch)
        return {finding.name: (finding.ok, finding.text) for finding in findings}

    def left(self, name: str = "hopyard-") -> list[str]:
        """Return the Jobs and Secrets whose names begin so."""
        admin = self.cluster.client()
        names = [each["metadata"]["name"] for path in (JOBS, SECRETS) for each in admin.get(path)["items"]]
        return [each for each in names if each.startswith(name)]

    def version(self, name: str) -> str:
        """Return the version of a Secret; "": there is none."""
        found = [each for each in self.cluster.client().get(SECRETS)["items"] if each["metadata"]["name"] == name]
        return str(found[0]["metadata"]["resourceVersion"]) if found else ""

    def renewed(self, name: str) -> None:
        """Wait for a renewal of a Secret."""
        before = self.version(name)
        until(lambda: self.version(name) not in {"", before})

    def waits(self, name: str) -> None:
        """Wait until a set of places is complete, with a pod that waits."""
        until(lambda: self.version(name) and [each for each in pods(self.cluster, name) if each == "Pending"])


def requests(cluster: Cluster, method: str, path: str) -> list[str]:
    """Return the requests of this method and path, or below it."""
    return [each for verb, each in list(cluster.requests) if verb == method and each.startswith(path)]


def pods(cluster: Cluster, name: str) -> list[str]:
    """Return the phases of the pods of a set of places."""
    items = cluster.client().get(f"{PODS}?labelSelector={PLACES}%3D{name}")["items"]
    return [each["status"]["phase"] for each in items]


@pytest.fixture
def drivers(cluster: Cluster, tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(cluster, tmp_path)
    yield made
    made.close()


@contextmanager
def agents(drivers: Drivers, **more: Any) -> Iterator[tuple[str, Callable[[int], None]]]:
    """Let this process be a driver. Give the name of its set of places, and what starts another slot than 0."""
    info = LaunchInfo(lambda slot: b"{}\n", lambda slot: drivers.folder / "log")
    asked: Any = hy.Kubernetes(2, "hopyard:test", devices=None, **more).open(info)
    try:
        asked.start(0)
        yield asked._placement.name, asked.start
    finally:
        asked.close()


def labelled(manifest: dict[str, Any], of: str) -> dict[str, Any]:
    """Return a Job with the labels of a set of places."""
    labels = {MANAGED_BY: "hopyard", PLACES: of}
    manifest["metadata"]["labels"] = dict(labels)
    manifest["spec"]["template"]["metadata"]["labels"] |= labels
    return manifest


def abandoned(cluster: Cluster, drivers: Drivers) -> str:
    """Return a set of places as a driver leaves it that is killed while its pod waits."""
    admin, settings = cluster.client(), manifests.pod_settings("hopyard:test", cpu=9)
    made = admin.post(JOBS, manifests.job(settings, SET, 1, 1))
    admin.post(SECRETS, manifests.secret(SET, b"ticket", [manifests.owner(made)]))
    drivers.waits(SET)
    return SET


def kubectl(cluster: Cluster, folder: Path) -> list[str]:
    """Return what kubectl shows of Hopyard's; nothing where it is not on PATH."""
    if (program := shutil.which("kubectl")) is None:
        return []
    config = cluster.kubeconfig(folder / "kubectl")
    words = [program, "--kubeconfig", str(config), "--cache-dir", str(folder / "cache")]
    words += ["get", "jobs,secrets", "-l", f"{MANAGED_BY}=hopyard", "-o", "name"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()


@SLOW
def test_what_a_killed_driver_leaves_is_listed_and_removed_and_those_that_live_keep_theirs(
    cluster: Cluster, drivers: Drivers, tmp_path: Path
) -> None:
    killed, gone = drivers.start()
    waiting, waits = drivers.start()
    running, runs = drivers.start(cpu=1)
    for name in (gone, waits):
        drivers.waits(name)
    until(lambda: pods(cluster, runs) == ["Running"] and drivers.version(runs))
    drivers.kill(killed)
    there = kubectl(cluster, tmp_path)
    expected = {
        gone: (False, "1 Job, 1 Secret, 1 waiting pod; its driver is gone"),
        waits: (True, "1 Job, 1 Secret, 1 waiting pod; its driver lives"),
        runs: (True, f"1 Job, 1 Secret, 1 running pod; {Verdict.RUNS.value}"),
    }
    assert drivers.sweep(wait=lambda: drivers.renewed(waits)) == expected
    assert drivers.waited == [sweep.WATCH_SECONDS]
    assert drivers.left(gone) == [f"{gone}-1", gone] and kubectl(cluster, tmp_path) == there

    found = drivers.sweep(yes=True, wait=lambda: drivers.renewed(waits))
    assert found == expected | {gone: (True, f"{expected[gone][1]}; removed")}
    until(lambda: not pods(cluster, gone))
    assert sorted(drivers.left()) == sorted([f"{waits}-1", f"{runs}-1", waits, runs])
    assert kubectl(cluster, tmp_path) == [each for each in there if gone not in each]
    cluster.add_node("large", cpu="16")
    until(lambda: pods(cluster, waits) == ["Running"])
    assert waiting.poll() is None and running.poll() is None


@SLOW
def test_it_waits_only_for_what_is_to_be_judged(cluster: Cluster, drivers: Drivers) -> None:
    assert drivers.sweep() == {"sweep": (True, "no driver has anything in namespace default")}
    with agents(drivers) as (name, _):
        until(lambda: pods(cluster, name) == ["Running"])
        assert drivers.sweep(yes=True)[name][1].endswith(Verdict.RUNS.value)
    assert drivers.waited == []


@SLOW
def test_a_job_that_waits_for_its_ttl_is_left_to_it(cluster: Cluster, drivers: Drivers) -> None:
    """So is a check of `hopyard doctor` that waits for room: it has a deadline."""
    admin = cluster.client()
    manifest = labelled(job_of("ends", 1, ttlSecondsAfterFinished=1200), "ends")
    manifest["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "none"}
    manifest["spec"]["activeDeadlineSeconds"] = 1200
    admin.post(JOBS, manifest)
    until(lambda: pods(cluster, "ends") == ["Pending"])
    assert drivers.sweep(yes=True) == {"ends": (True, f"1 Job, 1 waiting pod; {Verdict.ENDS.value}")}
    cluster.set_speed(2000)
    until(lambda: admin.get(f"{JOBS}/ends")["status"].get("conditions"))
    cluster.set_speed(20)
    assert drivers.sweep(yes=True)["ends"] == (True, f"1 Job; {Verdict.ENDS.value}")
    assert drivers.waited == []
    cluster.set_speed(2000)
    until(lambda: not admin.get(JOBS)["items"])


@SLOW
def test_what_is_not_of_a_set_of_places_stays(cluster: Cluster, drivers: Drivers) -> None:
    """Whatever else has Hopyard's first label, and what has only the second."""
    admin = cluster.client()
    bare = job_of("bare", suspend=True)
    bare["metadata"]["labels"] = {MANAGED_BY: "hopyard", "hopyard.dev/driver": "a"}
    admin.post(JOBS, bare)
    foreign = labelled(job_of("foreign", suspend=True), "b")
    foreign["metadata"]["labels"][MANAGED_BY] = "somebody"
    admin.post(JOBS, foreign)
    assert drivers.sweep(yes=True) == {"sweep": (True, "no driver has anything in namespace default")}


@SLOW
@pytest.mark.parametrize("lives", [True, False])
def test_a_driver_between_its_job_and_its_secret(cluster: Cluster, drivers: Drivers, lives: bool) -> None:
    """One that lives makes the Secret meanwhile; one that was killed there has left a Job."""
    if lives:
        held = cluster.faults.add(503, "POST .*/secrets", times=1000, retry_after=0)
    else:
        cluster.faults.add("half-open", "POST .*/secrets", times=1000)
    process, name = drivers.start()
    until(lambda: pods(cluster, name) == ["Pending"])

    def later() -> None:
        held.times = 0
        until(lambda: drivers.version(name))

    if not lives:
        drivers.kill(process)
    found = drivers.sweep(yes=True, wait=later if lives else lambda: None)
    if lives:
        assert found == {name: (True, "1 Job, 1 Secret, 1 waiting pod; its driver lives")}
        assert sorted(drivers.left()) == [name, f"{name}-1"]
    else:
        assert found == {name: (True, "1 Job, 1 waiting pod; its driver is gone; removed")}
        until(lambda: not drivers.left() and not pods(cluster, name))


@SLOW
def test_a_driver_that_renews_just_before_the_removal_keeps_all(cluster: Cluster, drivers: Drivers) -> None:
    """The Secret is deleted only in the version that was seen."""
    name = abandoned(cluster, drivers)

    def renew(when: str, request: Request) -> None:
        if when == "before" and request.method == "DELETE":
            cluster.on_request = None
            change = {"metadata": {"annotations": {jobs.RENEWED: "now"}}}
            cluster.client().call("PATCH", f"{SECRETS}/{name}", change, MERGE)

    cluster.on_request = renew
    assert drivers.sweep(yes=True) == {name: (True, "1 Job, 1 Secret, 1 waiting pod; its driver lives")}
    assert sorted(drivers.left()) == [name, f"{name}-1"] and pods(cluster, name) == ["Pending"]


@SLOW
@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        pytest.param(kind, pattern, marks=() if (kind, pattern) == (500, "DELETE .*-1$") else LONG)
        for kind in (500, "cut", "lost")
        for pattern in ("GET .*/pods", "DELETE .*/secrets", "DELETE .*-1$")
    ],
)
def test_what_an_error_leaves_is_removed_by_another_sweep(
    cluster: Cluster, drivers: Drivers, kind: Any, pattern: str
) -> None:
    name = abandoned(cluster, drivers)
    fault = cluster.faults.add(kind, pattern)
    found = drivers.sweep(yes=True)
    assert not fault.times and list(found) == ["sweep"] and not found["sweep"][0]
    assert re.search(f"{cluster.url} (does not answer|cannot be reached)", found["sweep"][1])
    again = drivers.sweep(yes=True)
    assert all(ok for ok, _ in again.values()), again
    until(lambda: not drivers.left() and not pods(cluster, name))


@SLOW
@LONG
def test_what_somebody_deletes_meanwhile_is_no_error(cluster: Cluster, drivers: Drivers) -> None:
    name = abandoned(cluster, drivers)

    def delete(when: str, request: Request) -> None:
        if when == "before" and request.method == "DELETE":
            cluster.on_request = None
            for path in (f"{SECRETS}/{name}", f"{JOBS}/{name}-1"):
                cluster.client().delete(path, {"propagationPolicy": "Background"})

    cluster.on_request = delete
    found = drivers.sweep(yes=True)
    assert found == {name: (True, "1 Job, 1 Secret, 1 waiting pod; its driver is gone; removed")}
    until(lambda: not drivers.left())


@SLOW
@pytest.mark.parametrize(
    ("verb", "resource"),
    [("delete", "secrets"), *(pytest.param("list", each, marks=LONG) for each in ("jobs", "secrets", "pods"))],
)
def test_a_user_without_a_right(cluster: Cluster, drivers: Drivers, verb: str, resource: str) -> None:
    """It is one finding; and what was there stays."""
    name = abandoned(cluster, drivers)
    rights = [
        {"apiGroups": ["batch" if each == "jobs" else ""], "resources": [each], "verbs": [one]}
        for one in ("list", "delete")
        for each in ("jobs", "secrets", "pods")
        if (one, each) != (verb, resource)
    ]
    cluster.client().post(f"{RBAC}/roles", {**role(), "metadata": {"name": "sweeper"}, "rules": rights})
    bind(cluster, "sweeper", "somebody")
    assert not drivers.sweep(user="driver")["sweep"][0]  # the Role of the page is that of drivers
    found = drivers.sweep(yes=True, user="somebody")
    assert list(found) == ["sweep"] and not found["sweep"][0]
    assert f'User "somebody" cannot {verb} resource "{resource}"' in found["sweep"][1]
    assert sorted(drivers.left()) == [name, f"{name}-1"]


@SLOW
def test_a_server_that_is_away(cluster: Cluster, drivers: Drivers) -> None:
    cluster.close()
    found = drivers.sweep()
    assert list(found) == ["sweep"] and "cannot be reached" in found["sweep"][1]


@SLOW
@pytest.mark.parametrize("what", ["a quota of Jobs", pytest.param("renewals are refused", marks=LONG)])
def test_a_driver_renews_its_secret_while_its_pods_wait(cluster: Cluster, drivers: Drivers, what: str) -> None:
    """Whatever else is refused all the time; and a renewal that is refused is tried again."""
    with agents(drivers, cpu=9) as (name, start):
        drivers.waits(name)
        if what == "a quota of Jobs":
            quota = {"metadata": {"name": "team"}, "spec": {"hard": {"count/jobs.batch": "1"}}}
            cluster.client().post("/api/v1/namespaces/default/resourcequotas", quota)
            start(1)
            asked = partial(requests, cluster, "POST", JOBS)
            until(lambda: len(asked()) > 3)  # for Job 1, and for the next one again and again
        else:
            fault = cluster.faults.add(403, "PATCH .*/secrets", times=3)
            until(lambda: not fault.times)
        for _ in range(3):
            drivers.renewed(name)
        assert f"{name}-2" not in drivers.left()


@SLOW
@LONG
def test_a_driver_asks_again_for_what_was_removed_all_the_same(cluster: Cluster, drivers: Drivers) -> None:
    """Such as one without the right to renew, of which all pods wait."""
    with agents(drivers, cpu=9) as (name, _):
        drivers.waits(name)
        cluster.faults.add(403, "PATCH .*/secrets", times=10_000)
        (lost,) = (each for each in drivers.left() if each == f"{name}-1")
        assert drivers.sweep(yes=True)[name] == (True, "1 Job, 1 Secret, 1 waiting pod; its driver is gone; removed")
        until(lambda: sorted(drivers.left()) == [name, f"{name}-2"])
        assert lost not in drivers.left()


@SLOW
def test_the_command(cluster: Cluster, drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image may be left out, or be that of the run."""
    name = abandoned(cluster, drivers)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "admin")))
    monkeypatch.setattr(sweep, "WATCH_SECONDS", 0.5)
    words = ["doctor", "--sweep", "--kubernetes"]
    listed = CliRunner().invoke(app, [*words, "namespace=default"])
    assert listed.exit_code == 0 and listed.stderr == "waiting 0 s for signs of life of the drivers\n"
    first, second = listed.stdout.splitlines()
    assert first == f"warn  {name}  1 Job, 1 Secret, 1 waiting pod; its driver is gone"
    assert second.split() == ["→", "--yes", "removes", "it"]
    removed = CliRunner().invoke(app, [*words, "hopyard:test,workers=8,namespace=default", "--yes", "--json"])
    (finding,) = json.loads(removed.stdout)
    assert (finding["name"], finding["ok"], finding["advice"]) == (name, True, "")
    assert finding["text"].endswith("; removed") and not drivers.left()
    elsewhere = CliRunner().invoke(app, [*words, "namespace=kube-system"])
    assert elsewhere.stdout == "ok    sweep  no driver has anything in namespace kube-system\n"

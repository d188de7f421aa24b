"""Sentences about pods, Jobs and events, from objects as API servers, kubelets and schedulers write them."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.engines.kubernetes.reasons import PodEnd, end_of, of_event, of_job, of_pod, of_start

IMAGE = "registry.example.com/team/hopyard:0.1"
SPEC = {
    "schedulerName": "default-scheduler",
    "containers": [{"name": "hopyard", "image": IMAGE, "resources": {"limits": {"memory": "2Gi"}}}],
    "initContainers": [{"name": "warm", "image": "busybox:1"}],
}


def pod(phase: str = "Pending", *, deleting: bool = False, spec: Any = None, **status: Any) -> dict[str, Any]:
    metadata = {
        "name": "hopyard-0a1b2c3d-1-0-x7k2p",
        **({"deletionTimestamp": "2026-11-22T04:55:01Z"} if deleting else {}),
    }
    return {"metadata": metadata, "spec": SPEC | (spec or {}), "status": {"phase": phase, **status}}


def state(kind: str, name: str = "hopyard", **about: Any) -> list[dict[str, Any]]:
    return [{"name": name, "ready": False, "state": {kind: about}}]


def waiting(reason: str, message: str = "", name: str = "hopyard") -> dict[str, Any]:
    return pod(containerStatuses=state("waiting", name, reason=reason, **({"message": message} if message else {})))


def ended(code: int, reason: str = "Error", message: str = "", **more: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"exitCode": code, "reason": reason, **({"message": message} if message else {})}
    return pod("Failed", containerStatuses=state("terminated", **about), **more)


def scheduled(status: str, reason: str = "", message: str = "") -> list[dict[str, Any]]:
    return [{"type": "PodScheduled", "status": status, "reason": reason, "message": message}]


def disrupted(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


NAME = "; see its name, and imagePullSecrets in pod="
LESS = "; give less cpu=, memory= or gpus=, or wait until others have ended"
CREATE = "; create it, or correct pod="
ERROR = f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": not found'
PULL = f'Back-off pulling image "{IMAGE}": ErrImagePull: {ERROR}'
"""The image and its error, as they follow each other at every try."""
RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: error during container init: exec: "python": executable file not found in $PATH'
)
CRUN = "container create failed: executable file `python` not found in $PATH: No such file or directory"
NO_ROOM = (  # of a 1.36.2
    "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: "
    "1 Preemption is not helpful for scheduling."
)
NO_PYTHON = "the image has no command `python`: take one with Python and Hopyard, or put it on the image's PATH"


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (pod("Running", containerStatuses=state("running", startedAt="x")), ""),
        (pod("Succeeded", containerStatuses=state("terminated", exitCode=0, reason="Completed")), ""),
        (waiting("ErrImagePull", "not found"), f"image {IMAGE} cannot be pulled: not found{NAME}"),
        (waiting("ErrImagePull", ERROR), f"image {IMAGE} cannot be pulled: {ERROR[34:]}{NAME}"),
        (waiting("ImagePullBackOff", PULL), f"image {IMAGE} cannot be pulled: {ERROR[34:]}{NAME}"),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x"'),
            f'image {IMAGE} cannot be pulled: Back-off pulling image "x"{NAME}',
        ),
        (
            waiting("InvalidImageName", 'Failed to apply default image tag "A/B": couldn\'t parse image name'),
            f'{IMAGE} is no name of an image: Failed to apply default image tag "A/B": couldn\'t parse image name',
        ),
        (
            waiting("CreateContainerConfigError", 'secret "wandb" not found'),
            f'the container cannot be configured: secret "wandb" not found{CREATE}',
        ),
        (
            waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
            "the container cannot be configured: container has runAsNonRoot and image will run as root",
        ),
        (waiting("CreateContainerError", CRUN), NO_PYTHON),
        (waiting("RunContainerError", RUNC), NO_PYTHON),
        (waiting("CreateContainerError", "no space left"), "the container cannot be started: no space left"),
        (waiting("CrashLoopBackOff", "back-off 5m0s", "logs"), "container 'logs': CrashLoopBackOff: back-off 5m0s"),
        (
            pod(initContainerStatuses=state("waiting", "warm", reason="ErrImagePull", message="denied")),
            f"container 'warm': image busybox:1 cannot be pulled: denied{NAME}",
        ),
        (
            pod(conditions=scheduled("False", "Unschedulable", NO_ROOM)),
            f"no node takes the pod: 0/1 nodes are available: 1 Insufficient cpu{LESS}",
        ),
        (
            pod(conditions=scheduled("False", "Unschedulable", 'persistentvolumeclaim "rows" not found')),
            f'no node takes the pod: persistentvolumeclaim "rows" not found{CREATE}',
        ),
        (
            pod(
                conditions=scheduled(
                    "False",
                    "Unschedulable",
                    "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes "
                    "are available: 3 Preemption is not helpful for scheduling.",
                )
            ),
            "no node takes the pod: 0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims; "
            "see `kubectl describe pvc`",
        ),
        (
            pod(
                spec={"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}, {"name": "b"}]},
                conditions=scheduled(
                    "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
                ),
            ),
            "the pod is not scheduled before its scheduling gates are removed: kueue.x-k8s.io/topology, b",
        ),
        (pod(), ""),
        (pod("Running", deleting=True), "the pod was deleted: somebody deleted it or its Job"),
        (
            pod("Running", deleting=True, conditions=disrupted("DeletionByTaintManager", "Taint manager: deleting")),
            "the pod was lost: its node is unreachable or must be left (Taint manager: deleting)",
        ),
        (ended(1), "the pod's process ended with exit code 1"),
        ({"metadata": {}}, ""),
    ],
)
def test_pods_that_do_not_come(item: dict[str, Any], sentence: str) -> None:
    assert of_pod(item) == sentence


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (
            pod(spec={"nodeName": "node-7"}, containerStatuses=state("waiting", reason="ContainerCreating")),
            "the pod's node is pulling the image, which takes minutes for several GB, or mounting volumes",
        ),
        (pod(), "no scheduler has seen the pod; its scheduler is default-scheduler"),
        (pod("Running", spec={"nodeName": "node-7"}), ""),
    ],
)
def test_pods_that_start(item: dict[str, Any], sentence: str) -> None:
    assert of_start(item) == sentence


@pytest.mark.parametrize(
    ("item", "end"),
    [
        (pod(), None),
        (pod("Running"), None),
        (pod("Running", deleting=True), None),
        (
            pod("Succeeded", containerStatuses=state("terminated", exitCode=0, reason="Completed")),
            PodEnd("the pod left as it was told", 0),
        ),
        (ended(1, message="boom\nbang"), PodEnd("the pod's process ended with exit code 1: boom bang", 1)),
        (ended(143), PodEnd("the pod's process was ended by SIGTERM", 143)),
        (
            ended(78, message="Python 3.12 here, 3.11 at the driver"),
            PodEnd("the pod cannot work: Python 3.12 here, 3.11 at the driver", 78, unfit=True),
        ),
        (ended(78), PodEnd("the pod cannot work: it has left no message: see its log", 78, unfit=True)),
        (
            ended(78, message="no ticket", deleting=True),
            PodEnd("the pod cannot work: no ticket", 78, unfit=True),
        ),
        (
            ended(137, "OOMKilled"),
            PodEnd("the pod used more than its memory of 2Gi: give more memory=", 137, out_of_memory=True),
        ),
        (
            pod(
                "Failed",
                reason="Evicted",
                message="The node was low on resource: memory. Threshold quantity: 100Mi, available: 48Mi. ",
                conditions=disrupted("TerminationByKubelet", "The node was low on resource: memory."),
                containerStatuses=state("terminated", exitCode=137, reason="Error"),
            ),
            PodEnd(
                "the pod was evicted: its node evicted it (The node was low on resource: memory. Threshold quantity: "
                "100Mi, available: 48Mi.)",
                137,
            ),
        ),
        (
            pod("Failed", reason="Evicted", message="Usage of EmptyDir volume exceeds the limit"),  # never ran
            PodEnd(
                "the pod was evicted: its node evicted it (Usage of EmptyDir volume exceeds the limit)",
            ),
        ),
        (
            ended(
                143,
                deleting=True,
                conditions=disrupted(
                    "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
                ),
            ),
            PodEnd(
                "the pod was preempted: a pod of higher priority took its place (default-scheduler: preempting to "
                "accommodate a higher priority pod)",
                143,
            ),
        ),
        (
            ended(143, deleting=True, conditions=disrupted("EvictionByEvictionAPI", "Eviction API: evicting")),
            PodEnd(
                "the pod was evicted: it was evicted, as from a node that is drained (Eviction API: evicting)",
                143,
            ),
        ),
        (
            ended(143, deleting=True),
            PodEnd("the pod was deleted: somebody deleted it or its Job", 143),
        ),
        (
            pod(
                "Failed",
                reason="Terminated",
                message="Pod was terminated in response to imminent node shutdown.",
                containerStatuses=state("terminated", exitCode=143, reason="Error"),
            ),
            PodEnd(
                "the pod was evicted: its node shut down (Pod was terminated in response to imminent node shutdown.)",
                143,
            ),
        ),
        (
            pod("Failed", deleting=True, conditions=disrupted("DeletionByPodGC", "PodGC: node no longer exists")),
            PodEnd("the pod was lost: its node is gone (PodGC: node no longer exists)"),
        ),
        (
            pod("Failed", deleting=True, reason="NodeLost"),
            PodEnd("the pod was lost: its node does not answer"),
        ),
        (
            ended(1, conditions=disrupted("SomethingNew", "why")),
            PodEnd("the pod was evicted: SomethingNew: why", 1),
        ),
        (
            ended(1, conditions=[{"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}]),
            PodEnd("the pod's process ended with exit code 1", 1),
        ),
        (
            ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated"),
            PodEnd("the pod was lost: its node has forgotten it"),
        ),
        (ended(128, "StartError", RUNC), PodEnd(NO_PYTHON, unfit=True)),
        (
            ended(128, "StartError", "permission denied"),
            PodEnd("the container cannot be started: permission denied", unfit=True),
        ),
        (
            pod("Failed", reason="DeadlineExceeded", message="Pod was active on the node longer than the deadline"),
            PodEnd("the pod exceeded its activeDeadlineSeconds, from pod= or the namespace"),
        ),
        (
            pod("Failed", reason="OutOfcpu", message="Pod was rejected: Node didn't have enough resource: cpu"),
            PodEnd(
                "the node refused the pod: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu",
            ),
        ),
        (
            pod(
                "Failed",
                initContainerStatuses=state("terminated", "warm", exitCode=2, reason="Error", message="no net"),
                containerStatuses=state("waiting", reason="PodInitializing"),
            ),
            PodEnd("container 'warm' of the pod ended with exit code 2: no net"),
        ),
        (
            pod(
                "Failed",
                containerStatuses=state("terminated", exitCode=0, reason="Completed")
                + state("terminated", "logs", exitCode=137, reason="OOMKilled"),
            ),
            PodEnd("container 'logs' of the pod was ended by SIGKILL: OOMKilled", 0),
        ),
    ],
)
def test_ends(item: dict[str, Any], end: PodEnd | None) -> None:
    assert end_of(item) == end
    if end is not None and item["status"]["phase"] == "Failed":
        assert of_pod(item) == end.sentence


QUOTA = (  # of a 1.36.2, as the next one
    'Error creating: pods "e-2-g2dq8" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
)
RESTRICTED = (
    'Error creating: pods "f-0-wx8gr" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true '
    '(pod or container "agent" must set securityContext.runAsNonRoot=true)'
)
HOOK = (
    'Error creating: admission webhook "validation.gatekeeper.sh" denied the request: [costs] you must provide labels'
)
ACCOUNT = (
    'Error creating: pods "a-0-" is forbidden: error looking up service account hop/x: serviceaccount "x" not found'
)


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        (
            "FailedCreate",
            QUOTA,
            "quota q of the namespace leaves no room for the pod: requested: pods=1, used: pods=1, limited: pods=1"
            + LESS,
        ),
        (
            "FailedCreate",
            RESTRICTED,
            "the namespace admits no such pod (Pod Security restricted:latest): runAsNonRoot != true (pod or container "
            '"agent" must set securityContext.runAsNonRoot=true); leave out of pod= what it names, or give '
            "another namespace=",
        ),
        (
            "FailedCreate",
            HOOK,
            "admission webhook validation.gatekeeper.sh refuses the pod: [costs] you must provide labels",
        ),
        (
            "FailedCreate",
            ACCOUNT,
            f'the API refuses the pod: error looking up service account hop/x: serviceaccount "x" not found{CREATE}',
        ),
        ("FailedScheduling", NO_ROOM, f"no node takes the pod: 0/1 nodes are available: 1 Insufficient cpu{LESS}"),
        (
            "FailedMount",
            'MountVolume.SetUp failed for volume "k" : secret "k" not found',
            'a volume of the pod cannot be mounted: MountVolume.SetUp failed for volume "k" : secret "k" not found'
            + CREATE,
        ),
        (
            "FailedCreatePodSandBox",
            "failed to assign an IP address to container",
            "the node cannot give the pod a network or a sandbox: failed to assign an IP address to container",
        ),
        ("BackOff", "Back-off pulling image", "BackOff: Back-off pulling image"),
        ("Odd", "a\x1b[2Jb\u202e\n\tc" + "d" * 400, "Odd: a\\x1b[2Jb\\u202e c" + "d" * (300 - 17) + " …"),
        ("", "", "?: ?"),
    ],
)
def test_events(reason: str, message: str, sentence: str) -> None:
    event = {"type": "Warning", "reason": reason, "message": message, "involvedObject": {"kind": "Job"}}
    assert of_event(event) == sentence
    assert of_event(event | {"type": "Normal"}) == ""


def test_equal_faults_of_pods_are_equal_sentences() -> None:
    assert of_event({"reason": "FailedCreate", "message": QUOTA}) == of_event(
        {"reason": "FailedCreate", "message": QUOTA.replace("e-2-g2dq8", "e-1-aaaaa")}
    )


def job(spec: Any = None, labels: Any = None, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j", **({"labels": labels} if labels else {})}, "spec": spec or {}, "status": status}


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (job(), ""),
        (job(active=2, ready=2), ""),
        (
            job(
                {"suspend": True},
                {"kueue.x-k8s.io/queue-name": "team-a"},
                conditions=[
                    {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
                ],
            ),
            "Kueue has not admitted the Job from queue team-a; `kubectl describe workloads` says why, and "
            "start_timeout= how long to wait",
        ),
        (job({"suspend": True}), "the Job is suspended, and by whom is not known; see `kubectl describe jobs`"),
        (
            job(
                conditions=[
                    {
                        "type": "FailureTarget",
                        "status": "True",
                        "reason": "DeadlineExceeded",
                        "message": "Job was active longer than specified deadline",
                    }
                ]
            ),
            "the Job has failed: DeadlineExceeded: Job was active longer than specified deadline",
        ),
        (
            job(
                failedIndexes="0",
                conditions=[
                    {
                        "type": "Failed",
                        "status": "True",
                        "reason": "FailedIndexes",
                        "message": "Job has failed indexes",
                    }
                ],
            ),
            "the Job has failed: FailedIndexes: Job has failed indexes",
        ),
        (job(conditions=[{"type": "Failed", "status": "False"}]), ""),
        (job({"suspend": False}, conditions=[{"type": "Suspended", "status": "False", "reason": "JobResumed"}]), ""),
        ({"metadata": {}}, ""),
    ],
)
def test_jobs(item: dict[str, Any], sentence: str) -> None:
    assert of_job(item) == sentence

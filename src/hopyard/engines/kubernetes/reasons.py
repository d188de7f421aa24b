"""What the API's objects say about pods that do not come, or have ended, as sentences for people.

A sentence names no pod, so that equal reasons of many pods are equal texts. What others wrote, such as the scheduler,
is quoted in one line, escaped and cut.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard import __version__
from hopyard.engines.kubernetes.manifests import CONTAINER, QUEUE
from hopyard.engines.supervisors.host import UNFIT_CODE
from hopyard.engines.supervisors.supervisor import UNREACHED
from hopyard.text import escaped, shown

LONGEST = 300
"""Characters of what is quoted."""
ADDRESS = "; give hy.Kubernetes(address=…) an address of the driver's host that pods can dial"
"""The next step where they cannot."""

Object = Mapping[str, Any]

_PULLS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_STARTS = {"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}
_PULL = re.compile(r'(Back-off pulling image "[^"]*": )?(ErrImagePull: )?(rpc error: code = \w+ desc = )?')
"""What kubelets write before the reason, which is the same at each try."""
_NO_PYTHON = re.compile(r"python\W.{0,30}not found in \$PATH")
"""In the words of runc, crun and others."""
_STEPS = (
    ("Insufficient|exceeded quota|Too many pods", "give less cpu=, memory= or gpus=, or wait until others have ended"),
    ("affinity/selector|untolerated taint", "see nodeSelector, affinity and tolerations in pod="),
    ("not found", "create it, or correct pod="),
    ("unbound", "see `kubectl describe pvc`"),
    ("PodSecurity", "leave out of pod= what it names, or give another namespace="),
)
"""What is in the words of others → the next step."""
_DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "a pod of higher priority took its place"),
    "Preempting": ("preempted", "a pod of higher priority took its place"),
    "EvictionByEvictionAPI": ("evicted", "it was evicted, as from a node that is drained"),
    "Evicted": ("evicted", "its node evicted it"),
    "TerminationByKubelet": ("evicted", "its node ended it"),
    "Terminated": ("evicted", "its node shut down"),
    "NodeShutdown": ("evicted", "its node shut down"),
    "Shutdown": ("evicted", "its node shut down"),
    "DeletionByTaintManager": ("lost", "its node is unreachable or must be left"),
    "DeletionByDeviceTaintManager": ("lost", "a device of its node must be left"),
    "DeletionByPodGC": ("lost", "its node is gone"),
    "NodeLost": ("lost", "its node does not answer"),
}
"""Reason, of a pod's status or its condition DisruptionTarget → kind, sentence."""


@dataclass(frozen=True)
class PodEnd:
    """How a pod ended."""

    sentence: str
    code: int | None = None
    """Exit code of its process; None: it is not known, or the process has never run."""
    out_of_memory: bool = False
    unfit: bool = False
    """Another pod of this image would end in the same way."""


def of_pod(pod: Object) -> str:
    """Return why a pod does not work, or does not yet; "" where nothing is known, as of one that runs."""
    status = pod.get("status") or {}
    if (end := end_of(pod)) is not None:
        return end.sentence if status.get("phase") == "Failed" else ""
    if "deletionTimestamp" in pod["metadata"]:
        kind, why = _disruption(pod)
        return f"the pod was {kind}: {why}"
    for container, waiting in _states(pod, "waiting"):
        if sentence := _of_waiting(pod, container, waiting):
            return sentence
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("reason") == "SchedulingGated":
        gates = ", ".join(str(gate.get("name")) for gate in pod.get("spec", {}).get("schedulingGates") or [])
        return f"the pod is not scheduled before its scheduling gates are removed: {_quoted(gates)}"
    if scheduled.get("status") == "False":
        return _of_scheduler(scheduled.get("message"))
    return ""


def of_start(pod: Object) -> str:
    """Return what a pod is about that has not started yet, and says no more of itself."""
    if (pod.get("status") or {}).get("phase") != "Pending":
        return ""
    if pod.get("spec", {}).get("nodeName"):
        return "the pod's node is pulling the image, which takes minutes for several GB, or mounting volumes"
    return f"no scheduler has seen the pod; its scheduler is {_quoted(pod.get('spec', {}).get('schedulerName'))}"


def of_event(event: Object) -> str:
    """Return what a warning about a Job or a pod says; "" for other events."""
    reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
    if reason == "NotTriggerScaleUp":
        return f"the cluster autoscaler adds no node: {_quoted(message)}"
    if event.get("type") == "Normal":
        return ""
    if reason == "FailedCreate":
        return _of_refusal(message)
    if reason == "FailedScheduling":
        return _of_scheduler(message)
    if reason in {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}:
        return f"a volume of the pod cannot be mounted: {_quoted(message)}{_step(message)}"
    if reason == "FailedCreatePodSandBox":
        return f"the node cannot give the pod a network or a sandbox: {_quoted(message)}"
    return f"{_quoted(reason)}: {_quoted(message)}"


def of_events(events: Iterable[Object]) -> str:
    """Return what the newest warning among events says; "" where there is none."""
    newest_first = sorted(
        events, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "", reverse=True
    )
    return next(filter(None, map(of_event, newest_first)), "")


def is_finished(job: Object) -> bool:
    """Return True if a Job has completed or failed."""
    return any(_condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed"))


def of_job(job: Object) -> str:
    """Return why a Job has no pods, or has them no more; "" where nothing is known."""
    for kind in ("Failed", "FailureTarget"):
        failed = _condition(job, kind)
        if failed.get("status") == "True":
            return f"the Job has failed: {_quoted(failed.get('reason'))}: {_quoted(failed.get('message'))}"
    if not job.get("spec", {}).get("suspend"):
        return ""
    if queue := (job["metadata"].get("labels") or {}).get(QUEUE):
        why = "`kubectl describe workloads` says why, and start_timeout= how long to wait"
        return f"Kueue has not admitted the Job from queue {_quoted(queue)}; {why}"
    return "the Job is suspended, and by whom is not known; see `kubectl describe jobs`"


def end_of(pod: Object) -> PodEnd | None:
    """Return how a pod ended; None: it has not."""
    status = pod.get("status") or {}
    ours = next((state for container, state in _states(pod, "terminated") if container == CONTAINER), {})
    if status.get("phase") not in {"Succeeded", "Failed"} and not ours:  # a side-car of others may go on
        return None
    code, reason, message = ours.get("exitCode"), ours.get("reason"), ours.get("message")
    if status.get("phase") != "Failed" and not code:
        return PodEnd("the pod left as it was told", 0)
    if code == UNFIT_CODE:
        said = _quoted(message) if message else "it has left no message: see its log"
        return PodEnd(f"the pod cannot work: {said}{ADDRESS if UNREACHED in said else ''}", code, unfit=True)
    if "No module named 'hopyard" in str(message) or "No module named hopyard" in str(message):
        said = f"the image has no Hopyard in its `python`: pip install hopyard=={__version__} in it"
        return PodEnd(said, code, unfit=True)
    if reason == "OOMKilled":
        limit = _quoted(_limit(pod))
        return PodEnd(f"the pod used more than its memory of {limit}: give more memory=", code, out_of_memory=True)
    kind, why = _disruption(pod)
    if kind:
        return PodEnd(f"the pod was {kind}: {why}", code)
    if reason in _STARTS:
        return PodEnd(_of_start(message), None, unfit=True)
    if reason == "ContainerStatusUnknown":
        return PodEnd("the pod was lost: its node has forgotten it", None)
    if status.get("reason") == "DeadlineExceeded":
        return PodEnd("the pod exceeded its activeDeadlineSeconds, from pod= or the namespace", code)
    for container, state in _states(pod, "terminated"):
        if not code and state.get("exitCode"):
            said = f"container {shown(container)} of the pod {_exited(state['exitCode'])}"
            return PodEnd(f"{said}: {_quoted(state.get('message') or state.get('reason'))}", code)
    if code is None:  # it never ran there
        said = f"{_quoted(status.get('reason') or 'no reason given')}: {_quoted(status.get('message'))}"
        return PodEnd(f"the node refused the pod: {said}", None)
    return PodEnd(f"the pod's process {_exited(code)}{f': {_quoted(message)}' if message else ''}", code)


def _states(pod: Object, kind: str) -> Iterator[tuple[str, Object]]:
    """Yield the containers that are "waiting" or "terminated", those that start first first, with this state."""
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in (pod.get("status") or {}).get(field) or []:
            if kind in (each.get("state") or {}):
                yield each.get("name", ""), each["state"][kind] or {}


def _condition(item: Object, kind: str) -> Object:
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _disruption(pod: Object) -> tuple[str, str]:
    """Return which disruption ended a pod, or is ending it, and a sentence about it; "": none."""
    status, target = pod.get("status") or {}, _condition(pod, "DisruptionTarget")
    for reason, message in (
        (status.get("reason"), status.get("message")),
        (target.get("reason") if target.get("status") == "True" else None, target.get("message")),
    ):
        if reason in _DISRUPTIONS:
            kind, why = _DISRUPTIONS[reason]
            return kind, f"{why}{f' ({_quoted(message)})' if message else ''}"
    if target.get("status") == "True":
        return "evicted", f"{_quoted(target.get('reason'))}: {_quoted(target.get('message'))}"
    return ("deleted", "somebody deleted it or its Job") if "deletionTimestamp" in pod["metadata"] else ("", "")


def _of_waiting(pod: Object, container: str, waiting: Object) -> str:
    """Return why a container waits; "" where that is how containers begin."""
    reason, message = waiting.get("reason", ""), _quoted(waiting.get("message"))
    where = "" if container == CONTAINER else f"container {shown(container)}: "
    spec = pod.get("spec", {})
    images = {
        each.get("name"): each.get("image") for key in ("initContainers", "containers") for each in spec.get(key) or []
    }
    image = _quoted(images.get(container))
    if reason in _PULLS:
        why = _quoted(_PULL.sub("", waiting.get("message") or "", count=1))
        return f"{where}image {image} cannot be pulled: {why}; see its name, and imagePullSecrets in pod="
    if reason == "InvalidImageName":
        return f"{where}{image} is no name of an image: {message}"
    if reason == "CreateContainerConfigError":
        return f"{where}the container cannot be configured: {message}{_step(message)}"
    if reason in _STARTS:
        return where + _of_start(waiting.get("message"))
    if reason in {"", "ContainerCreating", "PodInitializing"}:
        return ""
    return f"{where}{_quoted(reason)}: {message}"


def _of_start(message: Any) -> str:
    if _NO_PYTHON.search(str(message)):
        return "the image has no command `python`: take one with Python and Hopyard, or put it on the image's PATH"
    return f"the container cannot be started: {_quoted(message)}"


def _of_scheduler(message: Any) -> str:
    words = re.split(r",? (?:no new claims to deallocate, )?preemption: ", str(message or ""))[0]
    return f"no node takes the pod: {_quoted(words.removesuffix('.'))}{_step(words)}"


def _of_refusal(message: str) -> str:
    """Return why the API refused a pod of a Job."""
    words = re.sub(r'^Error creating: |pods? "[^"]*" is forbidden: ', "", message)
    if quota := re.match(r"exceeded quota: ([^,]+), (requested: .*)", words, re.DOTALL):
        return (
            f"quota {_quoted(quota[1])} of the namespace leaves no room for the pod: {_quoted(quota[2])}{_step(words)}"
        )
    if level := re.match(r'violates PodSecurity "([^"]+)": (.*)', words, re.DOTALL):
        why = f"Pod Security {_quoted(level[1])}): {_quoted(level[2])}{_step(words)}"
        return f"the namespace admits no such pod ({why}"
    if hook := re.match(r'admission webhook "([^"]+)" denied the request: (.*)', words, re.DOTALL):
        return f"admission webhook {_quoted(hook[1])} refuses the pod: {_quoted(hook[2])}"
    return f"the API refuses the pod: {_quoted(words)}{_step(words)}"


def _step(words: str) -> str:
    """Return the next step, behind a semicolon; "" where none is known."""
    return next((f"; {step}" for pattern, step in _STEPS if re.search(pattern, words)), "")


def _exited(code: int) -> str:
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"


def _limit(pod: Object) -> Any:
    containers = pod.get("spec", {}).get("containers") or []
    ours: Object = next((each for each in containers if each.get("name") == CONTAINER), {})
    return ((ours.get("resources") or {}).get("limits") or {}).get("memory", "its node")


def _quoted(text: Any) -> str:
    """Return what others wrote, in one line."""
    line = escaped(" ".join(str(text if text else "?").split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"

"""The status of a pod as its kubelet reports it. Pure: values in, JSON out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from kube.node.client import Object

Condition = tuple[str, bool, str, str]
"""(type, status, reason, message)"""


def now() -> str:
    """Return the time, as Kubernetes writes it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def waiting(pod: Object, node: str, reason: str, message: str = "") -> Object:
    """Return the status of a pod whose container has not begun."""
    name = pod["spec"]["containers"][0]["name"]
    text = f"containers with unready status: [{name}]"
    unready = ("Ready", False, "ContainersNotReady", text), ("ContainersReady", False, "ContainersNotReady", text)
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {
        "phase": "Pending",
        "hostIP": node,
        "hostIPs": [{"ip": node}],
        "conditions": _conditions(pod, [("PodReadyToStartContainers", False, "", ""), *unready]),
        "containerStatuses": [_container(pod, state)],
    }


def running(pod: Object, node: str, address: str, container: str, began: str) -> Object:
    """Return the status of a pod whose container runs."""
    ready = [(kind, True, "", "") for kind in ("PodReadyToStartContainers", "Ready", "ContainersReady")]
    return {
        "phase": "Running",
        "hostIP": node,
        "hostIPs": [{"ip": node}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(pod, ready),
        "containerStatuses": [_container(pod, {"running": {"startedAt": began}}, container)],
    }


def ended(pod: Object, code: int, reason: str, message: str = "", began: str = "", container: str = "") -> Object:
    """Return the status of a pod whose container is over."""
    why = "PodFailed" if code else "PodCompleted"
    over = [("PodReadyToStartContainers", False, "", ""), *((kind, False, why, "") for kind in _READY)]
    state = {"exitCode": code, "reason": reason, **({"message": message} if message else {})}
    state |= {"startedAt": began or "1970-01-01T00:00:00Z", "finishedAt": now()}
    state |= {"containerID": container} if container else {}
    return {
        "phase": "Failed" if code else "Succeeded",
        "conditions": _conditions(pod, over),
        "containerStatuses": [_container(pod, {"terminated": state}, container)],
    }


def event(pod: Object, node: str, kind: str, reason: str, message: str, name: str) -> Object:
    """Return an event about a pod."""
    meta = pod["metadata"]
    at = now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{name}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


_READY = ("Ready", "ContainersReady")


def _conditions(pod: Object, own: Iterable[Condition]) -> list[Object]:
    """Return all conditions of a pod: those of a kubelet, and those of others as they were last seen."""
    before = {condition["type"]: condition for condition in pod["status"].get("conditions") or ()}
    conditions = {}
    for kind, status, reason, message in [("Initialized", True, "", ""), *own, ("PodScheduled", True, "", "")]:
        # None removes what a strategic merge would keep.
        new = {"type": kind, "status": str(status), "reason": reason or None, "message": message or None}
        old = before.get(kind, {})
        kept = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
        conditions[kind] = {**new, "lastProbeTime": None, "lastTransitionTime": kept or now()}
    return list({**before, **conditions}.values())


def _container(pod: Object, state: Object, container: str = "") -> Object:
    """Return the status of the only container. One that was created has an identity."""
    spec = pod["spec"]["containers"][0]
    return {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": spec["image"] if container else "",
        **({"containerID": container} if container else {}),
        "ready": "running" in state,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }

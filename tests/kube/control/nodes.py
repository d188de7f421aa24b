"""Nodes: made, lost, and what becomes of their pods."""

from __future__ import annotations

import copy
import uuid

from kube.control.deletion import delete
from kube.control.events import record
from kube.control.scheduler import patience, set_condition
from kube.control.store import Object, Store, is_deleting, is_finished, stamp

UNREACHABLE = "node.kubernetes.io/unreachable"
STOPPED = "Kubelet stopped posting node status."


def new_node(name: str, allocatable: dict[str, str], labels: dict[str, str], taints: list[Object]) -> Object:
    """Return a node that is ready."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp(),
            "labels": {**own, **labels},
        },
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [{**ready, "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def mark_lost(store: Store, node: Object) -> None:
    """Do what the node controller does once a node is silent: Ready is Unknown, taints, pods are not ready."""
    new = set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", STOPPED)
    new = copy.deepcopy(new)
    taints = [one for one in new["spec"].get("taints") or [] if one["key"] != UNREACHABLE]
    new["spec"]["taints"] = [
        *taints,
        *({"key": UNREACHABLE, "effect": effect, "timeAdded": stamp()} for effect in ("NoSchedule", "NoExecute")),
    ]
    store.put("nodes", new)
    name = node["metadata"]["name"]
    record(store, new, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady", "node-controller")
    for pod in store.objects("pods"):
        if pod["spec"].get("nodeName") == name and not is_finished(pod):
            store.put("pods", set_condition(pod, "Ready", "False", "", ""))


def mark_back(store: Store, node: Object) -> None:
    """Do what happens once the kubelet of a node reports again."""
    new = set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
    new = copy.deepcopy(new)
    new["spec"]["taints"] = [one for one in new["spec"].get("taints") or [] if one["key"] != UNREACHABLE]
    store.put("nodes", new)


class Evictions:
    """Deletes the pods that do not tolerate a NoExecute taint of their node, once their patience is over, and the
    pods of nodes that are no more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: dict[tuple[str, str], float] = {}

    def run(self) -> float | None:
        """Do what is due, and return when there is more to do."""
        due: list[float] = []
        seen = set()
        nodes = {node["metadata"]["name"]: node for node in self._store.objects("nodes")}
        for pod in self._store.objects("pods"):
            name = pod["spec"].get("nodeName")
            if not name:
                continue
            if name not in nodes:
                self._bury(pod)
                continue
            for taint in nodes[name]["spec"].get("taints") or []:
                if taint["effect"] != "NoExecute" or is_deleting(pod) or is_finished(pod):
                    continue
                key = (pod["metadata"]["uid"], taint["key"])
                seen.add(key)
                since = self._since.setdefault(key, self._store.now())
                limit = patience(pod, taint)
                if limit is not None and since + limit <= self._store.now():
                    self._evict(pod)
                    break
                if limit is not None:
                    due.append(since + limit)
        self._since = {key: since for key, since in self._since.items() if key in seen}
        return min(due, default=None)

    def _evict(self, pod: Object) -> None:
        message = "Taint manager: deleting due to NoExecute taint"
        pod = self._store.put("pods", set_condition(pod, "DisruptionTarget", "True", "DeletionByTaintManager", message))
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        record(
            self._store,
            pod,
            "Normal",
            "TaintManagerEviction",
            f"Marking for deletion Pod {name}",
            "taint-eviction-controller",
        )
        delete(self._store, "pods", pod)

    def _bury(self, pod: Object) -> None:
        """The pod garbage collector ends what a removed node ran."""
        if not is_finished(pod):
            message = "PodGC: node no longer exists"
            pod = copy.deepcopy(set_condition(pod, "DisruptionTarget", "True", "DeletionByPodGC", message))
            pod["status"]["phase"] = "Failed"
            pod = self._store.put("pods", pod)
        delete(self._store, "pods", pod, grace=0)

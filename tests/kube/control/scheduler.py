"""Bind pods to nodes, or say why none takes them, in the words of the real scheduler."""

from __future__ import annotations

import copy
from collections import Counter
from fractions import Fraction

from kube.control.events import record
from kube.control.quantities import amount, requests
from kube.control.store import Object, Store, is_deleting, is_finished, stamp

NEVER = "Preemption is not helpful for scheduling"
NOW = "No preemption victims found for incoming pod"


def set_condition(obj: Object, kind: str, status: str, reason: str, message: str) -> Object:
    """Return a copy of an object with one condition of its status replaced."""
    new = copy.deepcopy(obj)
    conditions = new["status"].setdefault("conditions", [])
    condition = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": stamp()}
    condition |= {"reason": reason, "message": message} if reason else {}
    for index, one in enumerate(conditions):
        if one["type"] == kind:
            keys = ("status", "reason", "message")
            if all(one.get(key) == condition.get(key) for key in keys):
                return obj
            conditions[index] = condition
            return new
    conditions.append(condition)
    return new


def schedule(store: Store) -> None:
    """Bind what fits. Of a PodGroup that is a gang, nothing is bound before so many fit as it needs."""
    tried: set[tuple[str, str]] = set()
    for pod in store.objects("pods"):
        if not _waits(pod):
            continue
        name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName", "")
        where = pod["metadata"]["namespace"], name
        if not name:
            _bind(store, pod, *_choose(store, pod, []))
        elif where not in tried:
            tried.add(where)
            _schedule_group(store, *where)


def _waits(pod: Object) -> bool:
    return not (pod["spec"].get("nodeName") or is_deleting(pod) or is_finished(pod))


def _schedule_group(store: Store, namespace: str, name: str) -> None:
    """Bind the pods of a gang, if there is a place for as many as it needs."""
    group = store.get("podgroups", namespace, name)
    named = {"podGroupName": name}
    members = [pod for pod in store.objects("pods", namespace) if pod["spec"].get("schedulingGroup") == named]
    waiting = [pod for pod in members if _waits(pod)]
    bound = sum(bool(pod["spec"].get("nodeName")) and not is_finished(pod) for pod in members)
    if group is None or bound + len(waiting) < group["spec"]["schedulingPolicy"]["gang"]["minCount"]:
        return  # not in the queue of the scheduler yet
    placed: list[Object] = []
    why = ""
    for pod in waiting:
        node, fault = _choose(store, pod, placed)
        why = why or fault
        if node is not None:
            placed.append({**pod, "spec": {**pod["spec"], "nodeName": node}})
    if bound + len(placed) < group["spec"]["schedulingPolicy"]["gang"]["minCount"]:
        for pod in waiting:
            _bind(store, pod, None, why)
        return
    for pod in placed:
        _bind(store, store.get("pods", namespace, pod["metadata"]["name"]) or pod, pod["spec"]["nodeName"], "")


def _bind(store: Store, pod: Object, node: str | None, why: str) -> None:
    """Bind a pod to a node, or say why it is bound to none."""
    if node is not None:
        bound = set_condition(pod, "PodScheduled", "True", "", "")
        bound = {**copy.deepcopy(bound), "spec": {**pod["spec"], "nodeName": node}}
        store.put("pods", bound)
        place = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        record(store, bound, "Normal", "Scheduled", f"Successfully assigned {place} to {node}", "default-scheduler")
        return
    unbound = set_condition(pod, "PodScheduled", "False", "Unschedulable", why)
    if unbound is not pod:
        store.put("pods", unbound)
        record(store, unbound, "Warning", "FailedScheduling", why, "default-scheduler")


def _choose(store: Store, pod: Object, placed: list[Object]) -> tuple[str | None, str]:
    """Return the node with the fewest pods that takes this one, or why there is none. `placed`: pods that will be
    bound, and are not yet."""
    nodes = store.objects("nodes")
    if not nodes:
        return None, "no nodes available to schedule pods"
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    preemption: Counter[str] = Counter()
    for node in nodes:
        name = node["metadata"]["name"]
        pods = [*store.objects("pods"), *placed]
        there = [one for one in pods if one["spec"].get("nodeName") == name and not is_finished(one)]
        faults, helpless = _faults(node, there, pod)
        if not faults:
            counts[name] = -len(there)
        reasons.update(faults)
        preemption[NEVER if helpless else NOW] += bool(faults)
    if counts:
        return counts.most_common(1)[0][0], ""
    head = f"0/{len(nodes)} nodes are available: "
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    tried = ", ".join(sorted(f"{count} {reason}" for reason, count in preemption.items() if count))
    return None, f"{head}{listed}. no new claims to deallocate, preemption: {head}{tried}."


def _faults(node: Object, there: list[Object], pod: Object) -> tuple[list[str], bool]:
    """Return why a node does not take a pod, and whether it would not if it were empty."""
    spec = node["spec"]
    labels = node["metadata"].get("labels") or {}
    if spec.get("unschedulable"):
        return ["node(s) were unschedulable"], True
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return ["node(s) didn't match Pod's node affinity/selector"], True
    if any(taint["effect"] != "PreferNoSchedule" and not tolerates(pod, taint) for taint in spec.get("taints") or []):
        return ["node(s) had untolerated taint(s)"], True
    room = {name: amount(value) for name, value in (node["status"].get("allocatable") or {}).items()}
    if not room:
        return ["Insufficient cpu"], True
    wanted = requests(pod)
    used: dict[str, Fraction] = {}
    for one in there:
        for name, value in requests(one).items():
            used[name] = used.get(name, Fraction(0)) + value
    faults = ["Too many pods"] if len(there) >= room.get("pods", 110) else []
    for name, value in wanted.items():
        if value and used.get(name, 0) + value > room.get(name, 0):
            faults.append(f"Insufficient {name}")
    return faults, any(value > room.get(name, 0) for name, value in wanted.items())


def tolerates(pod: Object, taint: Object) -> bool:
    """Whether a pod tolerates a taint, be it for a while."""
    return any(_matches(one, taint) for one in pod["spec"].get("tolerations") or [])


def patience(pod: Object, taint: Object) -> float | None:
    """Return for how many seconds a pod tolerates a NoExecute taint; None: for ever."""
    matching = [one for one in pod["spec"].get("tolerations") or [] if _matches(one, taint)]
    if not matching:
        return 0
    limits = [one["tolerationSeconds"] for one in matching if one.get("tolerationSeconds") is not None]
    return min(limits) if limits else None


def _matches(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")

"""A kubelet that runs nothing: what becomes of a pod, a function says."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kube.api.access import NODE
from kube.control.deletion import delete
from kube.control.scheduler import set_condition
from kube.control.store import Object, is_deleting, is_finished, stamp
from kube.server import Cluster


@dataclass(frozen=True)
class Life:
    """What a pod's process does. Times are in the cluster's seconds.

    Args:
        seconds: for which it runs; None: until somebody ends it.
        code: with which it then exits.
        on_term: with which it exits on SIGTERM; None: it ignores that, and is killed after the grace period.
        starts: seconds until it runs.
        waiting: why it never does: ErrImagePull, CreateContainerConfigError, …
        message: of what it waits for, or its termination message.
        reason: of its end, such as OOMKilled; "": Completed or Error.
        log: what it wrote, as soon as it runs.
    """

    seconds: float | None = None
    code: int = 0
    on_term: int | None = 143
    starts: float = 0
    waiting: str = ""
    message: str = ""
    reason: str = ""
    log: str = ""


@dataclass
class _Pod:
    life: Life
    seen: float
    runs: float | None = None
    told: float | None = None


class PlayedKubelet:
    """Serves the nodes of a cluster, from `start` to `stop`, or as a context manager.

    Args:
        life: of a pod that was bound to a node.
        nodes: whose pods it serves; none: all.
    """

    def __init__(self, cluster: Cluster, life: Callable[[Object], Life], nodes: Collection[str] = ()) -> None:
        self._cluster, self._store = cluster, cluster.store
        self._life, self._nodes = life, nodes
        self._pods: dict[str, _Pod] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="played-kubelet")
        self._addresses = 0

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        with self._store.changed:
            self._stopped = True
            self._store.changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        with self._store.changed:
            while not self._stopped:
                before = self._store.revision
                try:
                    due = [self._serve(pod) for pod in self._store.objects("pods") if self._is_mine(pod)]
                except Exception as error:
                    self._cluster.failures.append(error)
                    return
                if self._store.revision == before:
                    times = [one for one in due if one is not None]
                    wait = max(0.0, (min(times) - self._store.now()) / self._store.speed) if times else None
                    self._store.changed.wait(wait)

    def _is_mine(self, pod: Object) -> bool:
        node = pod["spec"].get("nodeName")
        is_there = bool(node) and not self._cluster.is_lost(NODE + node) and self._cluster.listening
        return is_there and (not self._nodes or node in self._nodes)

    def _serve(self, pod: Object) -> float | None:
        """Do what is due for a pod, and return when there is more to do."""
        now, uid = self._store.now(), pod["metadata"]["uid"]
        if uid not in self._pods:
            self._pods[uid] = _Pod(self._life(pod), now)
        mine = self._pods[uid]
        life = mine.life
        if is_finished(pod):
            if is_deleting(pod):
                delete(self._store, "pods", pod, grace=0)
            return None
        if is_deleting(pod):
            return self._end(pod, mine, now)
        if life.waiting:
            waiting = {"reason": life.waiting, "message": life.message}
            self._report(pod, "Pending", {"waiting": waiting})
            return None
        if mine.runs is None:
            if now < mine.seen + life.starts:
                return mine.seen + life.starts
            mine.runs = now
            if life.log:
                name = f"{pod['metadata']['namespace']}_{pod['metadata']['name']}.log"
                (self._cluster.logs / name).write_text(life.log)
            self._report(pod, "Running", {"running": {"startedAt": stamp()}})
        if life.seconds is None:
            return None
        if now < mine.runs + life.seconds:
            return mine.runs + life.seconds
        self._finish(pod, life.code, life)
        return None

    def _end(self, pod: Object, mine: _Pod, now: float) -> float | None:
        """Tell the process of a pod to end, and end it."""
        grace = pod["metadata"]["deletionGracePeriodSeconds"]
        if mine.told is None:
            mine.told = now
        if mine.runs is None:
            delete(self._store, "pods", pod, grace=0)
        elif grace == 0:
            self._finish(pod, 137, mine.life)
        elif mine.life.on_term is not None:
            self._finish(pod, mine.life.on_term, mine.life)
        elif now >= mine.told + grace:
            self._finish(pod, 137, mine.life)
        else:
            return mine.told + grace
        return None

    def _finish(self, pod: Object, code: int, life: Life) -> None:
        ended: Object = {"exitCode": code, "reason": life.reason or ("Error" if code else "Completed")}
        ended |= {"startedAt": stamp(), "finishedAt": stamp()}
        if life.message:
            ended["message"] = life.message
        self._report(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _report(self, pod: Object, phase: str, state: Object) -> None:
        container = pod["spec"]["containers"][0]
        runs, ended = "running" in state, "terminated" in state
        old = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        if list(old) == list(state):
            return
        ready = ("True", "", "") if runs else ("False", "PodCompleted" if ended else "ContainersNotReady", "")
        new = copy.deepcopy(set_condition(pod, "Ready", *ready))
        status = new["status"]
        if runs:
            self._addresses += 1
            address = f"10.77.{self._addresses // 250}.{self._addresses % 250 + 1}"
            status |= {"podIP": address, "podIPs": [{"ip": address}], "startTime": stamp(), "hostIP": "10.77.0.1"}
        about = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status["phase"] = phase
        status["containerStatuses"] = [{**about, "ready": runs, "started": runs, "state": state}]
        self._store.put("pods", new)

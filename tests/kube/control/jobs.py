"""The Job controller, for Indexed Jobs.

A pod carries a finalizer until the Job has counted it. The failures of an index are counted in annotations of its
pods, so a failed pod that will be replaced keeps its finalizer until its replacement exists. Until then the status of
the Job is not written either, unless something else happens to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kube.api.errors import Refused
from kube.control.deletion import delete, without_finalizer
from kube.control.events import record
from kube.control.policy import (
    FAILURES,
    IGNORED,
    INDEX,
    backoff,
    counts_of,
    has_failed,
    index_of,
    interval_set,
    interval_text,
    verdict,
)
from kube.control.store import Change, Object, Store, is_deleting, is_finished, stamp

TRACKING = "batch.kubernetes.io/job-tracking"
COMPONENT = "job-controller"
MAX_FAILED = "Job has exceeded the specified maximal number of failed indexes"
ENOUGH = "Reached expected number of succeeded pods"
BATCH = 1.0
"""Seconds for which changes of pods are collected."""
RETRY = 1.0
"""Seconds after which a refused pod is tried again, at first."""


def controller_of(obj: Object) -> str | None:
    """Return the uid of the Job that made a pod."""
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner["kind"] == "Job":
            uid: str = owner["uid"]
            return uid
    return None


def _is_tracked(pod: Object) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", [])


def is_job_over(job: Object) -> bool:
    conditions = job["status"].get("conditions") or []
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)


class Jobs:
    """Keeps the pods of Jobs.

    Args:
        create_pod: as the API does, refusals included.
        first_backoff: seconds until an index that failed once gets another pod.
    """

    def __init__(self, store: Store, create_pod: Callable[[str, Object], Object], first_backoff: float) -> None:
        self._store = store
        self._create_pod = create_pod
        self._first = first_backoff
        self._seen = 0
        self._due: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._over_at: dict[str, float] = {}
        self._began_at: dict[str, float] = {}
        self._refusals: dict[str, int] = {}
        self.backoffs: list[tuple[str, int, float]] = []
        """(Job, index, seconds) of each failure that is followed by another pod."""

    def run(self) -> float | None:
        """Do what is due, and return when there is more to do."""
        jobs = {job["metadata"]["uid"]: job for job in self._store.objects("jobs")}
        for change in self._store.since(self._seen):
            self._observe(change, jobs)
        self._seen = self._store.revision
        for uid, due in list(self._due.items()):
            if due <= self._store.now():
                del self._due[uid]
                if uid in jobs:
                    self._sync(jobs[uid])
        for pod in self._store.objects("pods"):
            if _is_tracked(pod) and controller_of(pod) not in jobs:
                self._release(pod)
        return min(self._due.values(), default=None)

    def _wake(self, uid: str, after: float) -> None:
        due = self._store.now() + after
        self._due[uid] = min(self._due.get(uid, due), due)

    def _observe(self, change: Change, jobs: dict[str, Object]) -> None:
        new, old = change.object, change.before
        if change.resource == "jobs":
            same = old and old["spec"] == new["spec"] and is_deleting(old) == is_deleting(new)
            if not same:
                self._wake(new["metadata"]["uid"], 0)
            return
        owner = controller_of(new) if change.resource == "pods" else None
        job = jobs.get(owner or "")
        if owner is None or job is None:
            return
        if change.type == "DELETED":
            self._wake(owner, 0)
        elif old is not None and _is_tracked(new) and has_failed(job, new) and not has_failed(job, old):
            self._failed_at[new["metadata"]["uid"]] = self._failed_at[owner] = self._store.now()
            self._wake(owner, self._wait_after(job, new) or BATCH)
        elif old is not None and (old["status"] != new["status"] or is_deleting(old) != is_deleting(new)):
            self._wake(owner, BATCH)

    def _wait_after(self, job: Object, pod: Object) -> float:
        """Return for how many seconds a failed pod's index waits for another pod; 0: it gets none."""
        action, _ = verdict(job, pod)
        failures, ignored = counts_of(pod)
        limit = job["spec"].get("backoffLimitPerIndex")
        is_final = limit is None or (action != "Ignore" and failures >= limit)
        if is_final or action in ("FailJob", "FailIndex") or _has(job["status"], "FailureTarget"):
            return 0
        seconds = backoff(failures + ignored + 1, self._first)
        self.backoffs.append((job["metadata"]["name"], index_of(pod), seconds))
        return seconds

    def _pods(self, job: Object) -> list[Object]:
        place = job["metadata"]["namespace"]
        return [pod for pod in self._store.objects("pods", place) if controller_of(pod) == job["metadata"]["uid"]]

    def _release(self, pod: Object) -> None:
        now = self._store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if now is not None and now["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._store.put("pods", without_finalizer(now, TRACKING))

    def _sync(self, job: Object) -> None:
        """Bring the pods and the status of a Job to what its spec asks for."""
        if is_deleting(job) or is_job_over(job):
            for pod in self._pods(job):
                if is_finished(pod) or is_deleting(pod):
                    self._release(pod)
            self._expire(job)
            return
        status = copy.deepcopy(job["status"])
        suspended = job["spec"].get("suspend")
        if "startTime" not in status and not suspended:
            status["startTime"] = stamp()
        self._count(job, status)
        if not _has(status, "FailureTarget") and not _has(status, "SuccessCriteriaMet"):
            self._decide(job, status)
        if _has(status, "FailureTarget") or _has(status, "SuccessCriteriaMet"):
            self._end(job, status)
        elif suspended:
            self._suspend(job, status)
        else:
            if _has(status, "Suspended"):
                _set(status, "Suspended", "JobResumed", "Job resumed", "False")
                record(self._store, job, "Normal", "Resumed", "Job resumed", COMPONENT)
                status["startTime"] = stamp()
            self._scale(job, status)
        self._write(job, status)

    def _count(self, job: Object, status: Object) -> None:
        """Count the pods that ended since, and let go of them."""
        spec = job["spec"]
        total, limit = spec["completions"], spec.get("backoffLimitPerIndex")
        done = {one for one in interval_set(status.get("completedIndexes", "")) if one < total}
        lost = {one for one in interval_set(status.get("failedIndexes", "")) if one < total}
        newest = {index_of(pod): pod["metadata"]["uid"] for pod in self._pods(job)}
        tracked = [pod for pod in self._pods(job) if _is_tracked(pod)]
        for pod in tracked:
            action, message = verdict(job, pod) if has_failed(job, pod) else ("Count", "")
            if action == "FailJob" and not _has(status, "FailureTarget"):
                _set(status, "FailureTarget", "PodFailurePolicy", message)
        failing = _has(status, "FailureTarget")
        for pod in tracked:
            index = index_of(pod)
            if index >= total and (is_finished(pod) or is_deleting(pod)):
                self._release(pod)
            elif pod["status"]["phase"] == "Succeeded":
                done |= {index} - lost
                self._release(pod)
            elif has_failed(job, pod):
                action, _ = verdict(job, pod)
                if limit is not None and (action == "FailIndex" or (action == "Count" and counts_of(pod)[0] >= limit)):
                    lost.add(index)
                elif limit is not None and newest[index] == pod["metadata"]["uid"] and not failing:
                    continue  # until its replacement has its counts
                if action != "Ignore":
                    status["failed"] = status.get("failed", 0) + 1
                self._release(pod)
        status["succeeded"] = len(done)
        status["completedIndexes"] = interval_text(done)
        if limit is not None:
            status["failedIndexes"] = interval_text(lost)

    def _decide(self, job: Object, status: Object) -> None:
        """Set the condition by which a Job begins to end, if it does."""
        spec = job["spec"]
        done, lost = interval_set(status["completedIndexes"]), interval_set(status.get("failedIndexes", ""))
        most = spec.get("maxFailedIndexes")
        if most is not None and len(lost) > most:
            _set(status, "FailureTarget", "MaxFailedIndexesExceeded", MAX_FAILED)
        elif status.get("failed", 0) > spec["backoffLimit"]:
            message = "Job has reached the specified backoff limit"
            _set(status, "FailureTarget", "BackoffLimitExceeded", message)
        elif len(done | lost) >= spec["completions"]:
            if lost:
                _set(status, "FailureTarget", "FailedIndexes", "Job has failed indexes")
            else:
                _set(status, "SuccessCriteriaMet", "CompletionsReached", ENOUGH)
        elif spec.get("activeDeadlineSeconds") is not None and not spec.get("suspend"):
            uid, now = job["metadata"]["uid"], self._store.now()
            due = self._began_at.setdefault(uid, now) + spec["activeDeadlineSeconds"]
            if now >= due:
                _set(status, "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline")
            else:
                self._wake(uid, due - now)

    def _end(self, job: Object, status: Object) -> None:
        """End the pods that are left; once none is, the Job is Complete or Failed."""
        failing = _has(status, "FailureTarget")
        for pod in self._active(job):
            self._delete_pod(job, pod)
            if failing and index_of(pod) < job["spec"]["completions"]:
                status["failed"] = status.get("failed", 0) + 1
            self._release(pod)
        if any(not is_finished(pod) for pod in self._pods(job)):
            return
        begun = next(one for one in status["conditions"] if one["type"] in ("FailureTarget", "SuccessCriteriaMet"))
        _set(status, "Failed" if failing else "Complete", begun["reason"], begun["message"])
        if failing:
            record(self._store, job, "Warning", begun["reason"], begun["message"], COMPONENT)
        else:
            status["completionTime"] = stamp()
            record(self._store, job, "Normal", "Completed", "Job completed", COMPONENT)
        self._over_at[job["metadata"]["uid"]] = self._store.now()
        self._wake(job["metadata"]["uid"], 0)

    def _suspend(self, job: Object, status: Object) -> None:
        for pod in self._active(job):
            self._release(pod)
            self._delete_pod(job, pod)
        status.pop("startTime", None)
        self._began_at.pop(job["metadata"]["uid"], None)
        if not _has(status, "Suspended"):
            _set(status, "Suspended", "JobSuspended", "Job suspended")
            record(self._store, job, "Normal", "Suspended", "Job suspended", COMPONENT)

    def _scale(self, job: Object, status: Object) -> None:
        """Delete pods that are too many, and make those that are missing."""
        spec = job["spec"]
        over = interval_set(status["completedIndexes"]) | interval_set(status.get("failedIndexes", ""))
        kept: dict[int, Object] = {}
        for pod in sorted(self._active(job), key=index_of):
            index = index_of(pod)
            if index < spec["completions"] and index not in over | set(kept) and len(kept) < spec["parallelism"]:
                kept[index] = pod
            else:
                self._release(pod)
                self._delete_pod(job, pod)
        busy = set(kept)
        if spec["podReplacementPolicy"] == "Failed":
            busy |= {index_of(pod) for pod in self._pods(job) if is_deleting(pod) and not is_finished(pod)}
        missing = [index for index in range(spec["completions"]) if index not in over | busy]
        self._create(job, status, missing, spec["parallelism"] - len(busy))

    def _create(self, job: Object, status: Object, indexes: list[int], room: int) -> None:
        uid = job["metadata"]["uid"]
        newest = {index_of(pod): pod for pod in self._pods(job) if _is_tracked(pod) and has_failed(job, pod)}
        made = 0
        for index in indexes:
            if made >= room:
                break
            last = newest.get(index)
            failures = ignored = 0
            if last is not None:
                is_ignored = verdict(job, last)[0] == "Ignore"
                failures, ignored = counts_of(last)
                failures, ignored = failures + (not is_ignored), ignored + is_ignored
            if job["spec"].get("backoffLimitPerIndex") is None:
                since, times = self._failed_at.get(uid, 0), status.get("failed", 0)
            else:
                since = self._failed_at[last["metadata"]["uid"]] if last is not None else 0
                times = failures + ignored
            due = since + backoff(times, self._first)
            if due > self._store.now():
                self._wake(uid, due - self._store.now())
                continue
            try:
                pod = self._create_pod(job["metadata"]["namespace"], _pod(job, index, failures, ignored))
            except Refused as refusal:
                record(self._store, job, "Warning", "FailedCreate", f"Error creating: {refusal.message}", COMPONENT)
                self._refusals[uid] = self._refusals.get(uid, -1) + 1
                self._wake(uid, min(60, RETRY * 2 ** self._refusals[uid]))
                return
            made += 1
            name = pod["metadata"]["name"]
            record(self._store, job, "Normal", "SuccessfulCreate", f"Created pod: {name}", COMPONENT)
            if last is not None:
                self._wake(uid, BATCH)  # to count it
        self._refusals.pop(uid, None)

    def _active(self, job: Object) -> list[Object]:
        return [pod for pod in self._pods(job) if not is_finished(pod) and not is_deleting(pod)]

    def _delete_pod(self, job: Object, pod: Object) -> None:
        name = pod["metadata"]["name"]
        now = self._store.get("pods", pod["metadata"]["namespace"], name)
        if now is not None:
            delete(self._store, "pods", now)
            record(self._store, job, "Normal", "SuccessfulDelete", f"Deleted pod: {name}", COMPONENT)

    def _write(self, job: Object, status: Object) -> None:
        active = self._active(job)
        ready = [pod for pod in active if _has(pod["status"], "Ready")]
        terminating = [pod for pod in self._pods(job) if is_deleting(pod) and not is_finished(pod)]
        status |= {"active": len(active), "ready": len(ready), "terminating": len(terminating)}
        status["uncountedTerminatedPods"] = {}
        now = self._store.get("jobs", job["metadata"]["namespace"], job["metadata"]["name"])
        if now is not None and now["metadata"]["uid"] == job["metadata"]["uid"]:
            empty = ("active", "succeeded", "failed", "completedIndexes", "conditions")
            kept = {key: value for key, value in status.items() if value or key not in empty}
            self._store.put("jobs", {**now, "status": kept})

    def _expire(self, job: Object) -> None:
        """Delete a Job that is over for ttlSecondsAfterFinished."""
        limit = job["spec"].get("ttlSecondsAfterFinished")
        uid = job["metadata"]["uid"]
        if limit is None or is_deleting(job):
            return
        due = self._over_at.setdefault(uid, self._store.now()) + limit
        if due > self._store.now():
            self._wake(uid, due - self._store.now())
        else:
            delete(self._store, "jobs", job, propagation="Foreground")


def _has(status: Object, condition: str) -> bool:
    return any(one["type"] == condition and one["status"] == "True" for one in status.get("conditions") or [])


def _set(status: Object, kind: str, reason: str, message: str, value: str = "True") -> None:
    others = [one for one in status.get("conditions") or [] if one["type"] != kind]
    condition: dict[str, Any] = {"type": kind, "status": value, "reason": reason, "message": message}
    condition |= {"lastProbeTime": stamp(), "lastTransitionTime": stamp()}
    status["conditions"] = [*others, condition]


def _pod(job: Object, index: int, failures: int, ignored: int) -> Object:
    """Return the pod of an index, from the Job's template."""
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    spec, made = template["spec"], template["metadata"]
    made["labels"][INDEX] = str(index)
    annotations = {**(made.get("annotations") or {}), INDEX: str(index)}
    if job["spec"].get("backoffLimitPerIndex") is not None:
        annotations[FAILURES] = str(failures)
    if ignored:
        annotations[IGNORED] = str(ignored)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    made |= {
        "generateName": f"{meta['name']}-{index}-",
        "annotations": annotations,
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        "finalizers": [TRACKING],
    }
    spec["hostname"] = f"{meta['name']}-{index}"
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
    for container in spec["containers"]:
        variables = [one for one in container.get("env") or [] if one["name"] != "JOB_COMPLETION_INDEX"]
        variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": reference}}
        container["env"] = [*variables, variable]
    return {"metadata": made, "spec": spec}

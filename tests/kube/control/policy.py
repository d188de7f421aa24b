"""What a Job makes of a pod that failed."""

from __future__ import annotations

from typing import Literal

from kube.control.store import Object, is_deleting

Verdict = Literal["Count", "Ignore", "FailIndex", "FailJob"]
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
LONGEST = 600.0


def index_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def counts_of(pod: Object) -> tuple[int, int]:
    """Return how often the pod's index had failed before it, and how often that was ignored."""
    annotations = pod["metadata"]["annotations"]
    return int(annotations.get(FAILURES, 0)), int(annotations.get(IGNORED, 0))


def has_failed(job: Object, pod: Object) -> bool:
    """Whether a pod counts as failed; a Job may replace pods as soon as they are being deleted."""
    phase = pod["status"].get("phase")
    if phase == "Failed":
        return True
    return job["spec"]["podReplacementPolicy"] != "Failed" and is_deleting(pod) and phase != "Succeeded"


def verdict(job: Object, pod: Object) -> tuple[Verdict, str]:
    """Return what the policy of a Job says of a failed pod, and the message of FailJob."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate(rules):
        matched = f"matching {rule['action']} rule at index {number}"
        if codes := rule.get("onExitCodes"):
            for status in pod["status"].get("containerStatuses") or []:
                code = (status.get("state", {}).get("terminated") or {}).get("exitCode")
                named = codes.get("containerName") in (None, status["name"])
                if code and named and (code in codes["values"]) is (codes["operator"] == "In"):
                    what = f"Container {status['name']} for pod {name} failed with exit code {code} {matched}"
                    return rule["action"], what
        for wanted in rule.get("onPodConditions") or []:
            for condition in pod["status"].get("conditions") or []:
                status = wanted.get("status", "True")
                if condition["type"] == wanted["type"] and condition["status"] == status:
                    return rule["action"], f"Pod {name} has condition {wanted['type']} {matched}"
    return "Count", ""


def backoff(failures: int, first: float) -> float:
    """Return after how many seconds an index that failed so often gets another pod."""
    return min(LONGEST, first * 2 ** (failures - 1)) if failures else 0


def interval_text(indexes: set[int]) -> str:
    """Return `0,1,3-5`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    runs = [f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in parts]
    return ",".join(runs)


def interval_set(text: str) -> set[int]:
    """Return the indexes of `0,1,3-5`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes

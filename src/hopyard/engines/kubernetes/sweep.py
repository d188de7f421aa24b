"""Detection and removal of objects that killed drivers left in a namespace.

Jobs, pods and Secret of a set of places have one label, and are judged together. A driver that lives changes its Secret
every few seconds (`jobs.RENEWED`). A set of places is *abandoned* if none of its pods runs, and its Secret stays as it
is, or missing, from one look to another, WATCH_SECONDS later. Versions are compared with each other, never with a
clock. Objects without that label, or with others of Hopyard's, are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.engines.kubernetes.manifests import KEEP_SECONDS, MANAGED_BY, PLACES
from hopyard.engines.kubernetes.reasons import is_finished

Object = Mapping[str, Any]
WATCH_SECONDS = 100.0
"""Two renewals, and the longest pause that an API server may ask a driver for between them."""


class Verdict(Enum):
    """State of the driver of a set of places."""

    RUNS = "pods run: its driver lives, or they end within a minute"
    ENDS = f"it is over, or has a deadline: Kubernetes deletes it {KEEP_SECONDS // 60} minutes after its end"
    LIVES = "its driver lives"
    ABANDONED = "its driver is gone"


@dataclass(frozen=True, slots=True)
class Remains:
    """The objects of a set of places at one look."""

    name: str
    jobs: tuple[str, ...] = ()
    """Their names."""
    lasting: bool = False
    """Whether Kubernetes does not delete all of these Jobs by itself."""
    version: str = ""
    """Of the Secret; "": there is none."""
    running: int = 0
    """How many pods run."""
    waiting: int = 0
    """How many have not started."""

    @property
    def quiet(self) -> bool:
        """Whether nothing shows that the driver lives, or that all of this goes by itself."""
        return not self.running and (self.lasting or not self.jobs)


def gather(jobs: Iterable[Object], secrets: Iterable[Object], pods: Iterable[Object]) -> dict[str, Remains]:
    """Return set of places → its objects. Pods whose Jobs are gone count for nothing."""
    found: dict[str, Remains] = {}
    for job in jobs:
        name = job["metadata"]["labels"][PLACES]
        old = found.get(name, Remains(name))
        names = (*old.jobs, job["metadata"]["name"])
        found[name] = replace(old, jobs=names, lasting=old.lasting or not _goes(job))
    for secret in secrets:
        name, metadata = secret["metadata"]["labels"][PLACES], secret["metadata"]
        if metadata["name"] == name:
            found[name] = replace(found.get(name, Remains(name)), version=metadata["resourceVersion"])
    for pod in pods:
        if (name := pod["metadata"]["labels"][PLACES]) in found:
            old, phase = found[name], pod.get("status", {}).get("phase")
            runs = phase == "Running" and "deletionTimestamp" not in pod["metadata"]  # not on a node that is gone
            found[name] = replace(old, running=old.running + runs, waiting=old.waiting + (phase == "Pending"))
    return found


def judge(before: Mapping[str, Remains], now: Mapping[str, Remains]) -> list[tuple[Remains, Verdict]]:
    """Return what is there, in the order of names, with what two looks show of it."""
    return [(remains, _verdict(before.get(name), remains)) for name, remains in sorted(now.items())]


def survey(api: Api, wait: Callable[[float], None]) -> list[tuple[Remains, Verdict]]:
    """Return what drivers have in the namespace. Raises ApiError.

    Args:
        api: of the cluster.
        wait: waits for so many seconds; called only if there is something to judge.
    """
    first = second = _look(api)
    if any(remains.quiet for remains in first.values()):
        wait(WATCH_SECONDS)
        second = _look(api)
    else:
        first = {}
    return judge(first, second)


def remove(api: Api, remains: Remains) -> bool:
    """Delete what is there of a set of places. The Secret goes first: where the driver has changed it meanwhile, all
    stays. What is left after an error is abandoned like the whole.

    Returns:
        Whether it was deleted; False: its driver lives.

    Raises:
        ApiError: the API server refuses, or does not answer.
    """
    try:
        if remains.version:
            api.delete("secrets", remains.name, remains.version)
    except ApiError as error:
        if error.reason != "Conflict":
            raise
        return False
    for job in remains.jobs:
        api.delete("jobs", job)
    return True


def _look(api: Api) -> dict[str, Remains]:
    jobs, secrets, pods = (
        api.list(resource, labels=f"{MANAGED_BY}=hopyard,{PLACES}")["items"] for resource in ("jobs", "secrets", "pods")
    )
    return gather(jobs, secrets, pods)


def _goes(job: Object) -> bool:
    """Whether Kubernetes deletes a Job by itself: it is finished, or its time is limited, as that of a doctor's."""
    spec = job["spec"]
    limited = "activeDeadlineSeconds" in spec and not spec.get("suspend")
    return "deletionTimestamp" in job["metadata"] or (
        (is_finished(job) or limited) and "ttlSecondsAfterFinished" in spec
    )


def _verdict(before: Remains | None, now: Remains) -> Verdict:
    if now.running:
        return Verdict.RUNS
    if not now.quiet:
        return Verdict.ENDS
    same = before is not None and before.quiet and before.version == now.version
    return Verdict.ABANDONED if same else Verdict.LIVES

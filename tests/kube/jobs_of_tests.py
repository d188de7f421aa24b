"""What tests of the cluster share: paths, a small Job, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from kube.client import Client, Object

T = TypeVar("T")
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SPEC = {"restartPolicy": "Never", "containers": [{"name": "agent", "image": "example/image:1"}]}


def pod_of(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {**SPEC, **spec}}


def job_of(name: str, n: int = 1, pod: Object | None = None, **spec: Any) -> Object:
    """Return a Job that replaces no pod, unless `spec` says otherwise."""
    own = {"completionMode": "Indexed", "completions": n, "parallelism": n, "backoffLimitPerIndex": 0}
    template = {"metadata": {"labels": {"job": name}}, "spec": {**SPEC, **(pod or {})}}
    return {"metadata": {"name": name}, "spec": {**own, **spec, "template": template}}


def until(what: Callable[[], T]) -> T:
    """Return what is asked for as soon as it is true; it must be so within half a minute."""
    end = time.monotonic() + 30
    while not (value := what()):
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.01)
    return value


def names(client: Client, path: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in client.get(path)["items"])


def conditions(obj: Object) -> dict[str, str]:
    """Return the reasons of the conditions that are true."""
    there = obj.get("status", {}).get("conditions", [])
    return {one["type"]: one.get("reason", "") for one in there if one["status"] == "True"}

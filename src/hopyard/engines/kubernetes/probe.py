"""What a cluster lacks, for `hopyard doctor`: rights, and whether a pod of the image reaches this process."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Any

from hopyard import __version__
from hopyard.core.facts import UNREADABLE
from hopyard.engines.kubernetes import manifests, reasons
from hopyard.engines.kubernetes.api import Api
from hopyard.engines.kubernetes.engine import Kubernetes
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.engines.survey import ASK, MARK, HostAnswer, one_line, read_answer
from hopyard.system.network import joined, listen
from hopyard.text import escaped

RIGHTS = {
    ("create", "jobs"): "no pod can be asked for",
    ("get", "jobs"): "nothing says why a Job has no pods",
    ("list", "jobs"): "a driver in a pod leaves the Jobs of the pod before it to themselves",
    ("delete", "jobs"): "Jobs and their pods stay for ten minutes after a run",
    ("list", "pods"): "a lost pod is noticed late",
    ("watch", "pods"): "a lost pod is noticed late",
    ("create", "secrets"): "no pod is let in",
    ("patch", "secrets"): "pods that come for lost ones are let in for ten minutes only",
    ("delete", "secrets"): "OpenShift lets nobody change the owners of a Secret without it",
    ("list", "events"): "nothing says why a pod does not start",
    ("get", "pods/log"): "this check cannot read what its pod says",
}
"""Verb and resource → what goes wrong without this right."""
POD_SECONDS = 180.0
"""How long the pod of the check may take, with the image's download."""
DEADLINE_SECONDS = 600
"""After which Kubernetes ends it, where this process was killed."""
WHY_SECONDS = 20.0
"""How long it may wait for one and the same reason."""
LOOK_SECONDS = 0.5
"""Time between two looks at it."""
UNREACHED = "hopyard-unreached "
"""Begins the line by which the pod says that it cannot dial this process."""
DIAL = f"""
for port in sys.argv[4:]:
    try:
        socket.create_connection((sys.argv[3], int(port)), 10).close()
    except OSError as error:
        print("{UNREACHED}" + port + ": " + str(error))
"""


def missing_rights(api: Api) -> list[tuple[str, str]]:
    """Return the rights that this user lacks, such as "create jobs", each with what goes wrong without it."""
    return [
        (f"{verb} {resource}", fault)
        for (verb, resource), fault in RIGHTS.items()
        if not api.allowed(verb, *resource.split("/"))
    ]


def ask_pod(engine: Kubernetes) -> tuple[HostAnswer | str, list[str]]:
    """Run one pod of the engine's image, and delete it.

    Returns:
        What it has, or why there is no answer; the addresses of this process that it cannot dial, each with the error.

    Raises:
        ApiError: the API server refuses, or does not answer.
        OSError: a port is taken.
    """
    api, (host, port) = engine.api, engine.endpoint
    name = f"hopyard-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen(host, port + n if port else 0)) for n in range(3 if port else 1)]
        ports = [str(listener.getsockname()[1]) for listener in listeners]
        job = manifests.job(engine.settings, name, 1, 1)
        job["spec"]["activeDeadlineSeconds"] = DEADLINE_SECONDS
        container = next(
            each for each in job["spec"]["template"]["spec"]["containers"] if each["name"] == manifests.CONTAINER
        )
        container["command"] = ["python", "-P", "-c", one_line(ASK + DIAL), __version__, PYTHON, host, *ports]
        stack.callback(api.delete, "jobs", job["metadata"]["name"])
        api.create("jobs", job)
        output, why = _output(api, name)
    lines = output.splitlines()
    answer = next((line.removeprefix(MARK) for line in lines if line.startswith(MARK)), "")
    faults = [line.removeprefix(UNREACHED).partition(": ") for line in lines if line.startswith(UNREACHED)]
    try:
        return read_answer(answer), [f"{joined(host, int(at))}: {escaped(fault)}" for at, _, fault in faults]
    except (*UNREADABLE, ValueError):
        return "; ".join(filter(None, [why, escaped((lines or ["the pod has printed nothing"])[-1])])), []


def fault_of(answer: HostAnswer) -> str:
    """Return what the image lacks; "" where it is nothing."""
    if answer.python != PYTHON:
        return f"the image has Python {escaped(answer.python)}, and this process is {PYTHON}"
    if answer.fault or answer.version != __version__:
        return f"the image has no Hopyard {__version__} but {escaped(answer.fault or answer.version)}"
    return "" if answer.frameworks else "the image has no framework"


def _output(api: Api, name: str) -> tuple[str, str]:
    """Return what the pod printed, and why it has not ended well; "" where it has."""
    deadline, why, since = time.monotonic() + POD_SECONDS, "no pod was created", time.monotonic()
    while (now := time.monotonic()) < min(deadline, since + WHY_SECONDS):
        pods = api.list("pods", labels=f"{manifests.PLACES}={name}")["items"]
        if pods and (end := reasons.end_of(pods[0])) is not None:
            never = end.code is None
            return "" if never else api.log(pods[0]["metadata"]["name"]), end.sentence if end.code != 0 else ""
        now_why = _why(api, name, pods)
        why, since = now_why or why, since if now_why == why else now
        time.sleep(LOOK_SECONDS)
    return "", why


def _why(api: Api, name: str, pods: list[dict[str, Any]]) -> str:
    """Return why the pod has not started; "" where nothing is known, and it may be about to."""
    if pods:
        return reasons.of_pod(pods[0]) or reasons.of_events(api.events("Pod", pods[0]["metadata"]["name"]))
    return reasons.of_job(api.get("jobs", f"{name}-1")) or reasons.of_events(api.events("Job", f"{name}-1"))

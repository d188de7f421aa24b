"""What a cluster lacks, for `hopyard doctor`: rights, version, and whether a pod of the image reaches this process."""

from __future__ import annotations

import contextlib
import secrets
import socket
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

RIGHTS = (
    *(("create", "jobs"), ("get", "jobs"), ("delete", "jobs"), ("list", "pods"), ("watch", "pods")),
    *(("create", "secrets"), ("patch", "secrets"), ("list", "events"), ("get", "pods/log")),
)
"""What the driver does: verb and resource."""
POD_SECONDS = 180.0
"""How long the pod of the check may take, with the image's download."""
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


def missing_rights(api: Api) -> list[str]:
    """Return the rights that this user does not have, such as "create jobs"."""
    return [f"{verb} {resource}" for verb, resource in RIGHTS if not api.allowed(verb, *resource.split("/"))]


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
        job = manifests.job(engine.settings, name, 1, 1)
        arguments = [__version__, PYTHON, host, *[str(_port_of(listener)) for listener in listeners]]
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["command"] = ["python", "-P", "-c", one_line(ASK + DIAL), *arguments]
        api.create("jobs", job)
        try:
            output = _output(api, name)
        finally:
            api.delete("jobs", job["metadata"]["name"])
    if isinstance(output, Exception):
        return str(output), []
    lines = output.splitlines()
    faults = [line.removeprefix(UNREACHED).partition(": ") for line in lines if line.startswith(UNREACHED)]
    answer = next((line.removeprefix(MARK) for line in lines if line.startswith(MARK)), "")
    try:
        return read_answer(answer), [f"{joined(host, int(at))}: {escaped(fault)}" for at, _, fault in faults]
    except (*UNREADABLE, ValueError):
        return escaped((output.strip().splitlines() or ["the pod has printed nothing"])[-1]), []


def fault_of(answer: HostAnswer) -> str:
    """Return what the image lacks; "" where it is nothing."""
    if answer.python != PYTHON:
        return (
            f"the image has Python {escaped(answer.python)}, and this process is {PYTHON}: use the same minor version"
        )
    if answer.fault or answer.version != __version__:
        found = escaped(answer.fault or f"Hopyard {answer.version}")
        return f"the image has not Hopyard {__version__} ({found}): pip install hopyard=={__version__} in it"
    return ""


def _output(api: Api, name: str) -> str | Exception:
    """Return what the pod printed, or an error that says why there is none."""
    deadline, why = time.monotonic() + POD_SECONDS, "no pod was created"
    while time.monotonic() < deadline:
        pods = api.list("pods", labels=f"{manifests.PLACES}={name}")["items"]
        if pods and reasons.end_of(pods[0]) is not None:
            return api.log(pods[0]["metadata"]["name"])
        kind, its = ("Pod", pods[0]["metadata"]["name"]) if pods else ("Job", f"{name}-1")
        why = (reasons.of_pod(pods[0]) if pods else "") or reasons.of_events(_events(api, kind, its)) or why
        time.sleep(LOOK_SECONDS)
    return TimeoutError(f"no pod has run within {POD_SECONDS:.0f} seconds: {why}")


def _events(api: Api, kind: str, name: str) -> list[dict[str, Any]]:
    """Return the events of an object."""
    found: list[dict[str, Any]] = api.list("events", fields=f"involvedObject.kind={kind},involvedObject.name={name}")[
        "items"
    ]
    return found


def _port_of(listener: socket.socket) -> int:
    """Return the port of a socket."""
    return int(listener.getsockname()[1])

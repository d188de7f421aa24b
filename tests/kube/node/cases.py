"""Helpers of the tests of the kubelet."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

from kube.kubelet import Kubelet
from kube.node import cgroups
from kube.node.client import Object
from kube.node.network import ip_json

PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
SLEEP = "import time; print('ready', flush=True); time.sleep(3600)"
USER = 65532
RESTRICTED = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
HARDENED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def secret(**content: str) -> Object:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in content.items()}
    return {"metadata": {"name": "ticket"}, "data": data}


def ended(pod: Object) -> Object:
    """The terminated state of the only container."""
    return dict(pod["status"]["containerStatuses"][0]["state"]["terminated"])


def conditions(pod: Object) -> dict[str, tuple[str, str | None, str | None]]:
    """Type of a condition → its status, reason and message."""
    return {item["type"]: (item["status"], item["reason"], item["message"]) for item in pod["status"]["conditions"]}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def traces(bridge: str) -> set[int]:
    """The numbers of the network devices and cgroups there are of a bridge. None is used twice."""
    links = {int(link["ifindex"]) for link in ip_json("link") if link["ifname"].startswith(bridge)}
    version, _ = cgroups.version()
    groups = () if version is None else version.root.glob(f"{cgroups.PREFIX}{bridge}*")
    return links | {path.stat().st_ino << 32 for path in groups}


def ready(kubelet: Kubelet, pod: str) -> bool:
    """Whether SLEEP has begun in a pod."""
    return "ready" in kubelet.log(pod)

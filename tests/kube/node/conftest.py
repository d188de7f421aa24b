"""A small API server, and a node with its kubelet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube.kubelet import Delays, Kubelet
from kube.node.cases import PODS, traces
from kube.node.played_api import PlayedApi


@pytest.fixture
def api() -> Iterator[PlayedApi]:
    with PlayedApi() as api:
        yield api


@pytest.fixture
def images() -> dict[str, Any]:
    return {"hopyard:test": {"COLOUR": "green"}}


@pytest.fixture
def kubelet(api: PlayedApi, images: dict[str, Any], tmp_path: Path) -> Iterator[Kubelet]:
    delays = Delays(mount=0.1, image=0.2, config=0.1, content=0.1, longest=0.5)
    with Kubelet(api.url, "", "node-0", directory=tmp_path, images=images, delays=delays) as kubelet:
        yield kubelet
        before = traces(kubelet.bridge)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert before and not before & traces(kubelet.bridge)


@pytest.fixture
def run(api: PlayedApi) -> Callable[..., str]:
    """Bind a pod to a node. Returns its path."""

    def run(name: str, code: str, node: str = "node-0", spec: Any = None, **container: Any) -> str:
        command = {"command": ["python", "-c", code]}
        one = {"name": "main", "image": "hopyard:test", **command, **container}
        metadata = {"name": name, "namespace": "default", "labels": {"index": "7"}}
        whole = {"nodeName": node, "restartPolicy": "Never", "containers": [one], **(spec or {})}
        api.put(f"{PODS}/{name}", {"metadata": metadata, "spec": whole, "status": {"phase": "Pending"}}, "ADDED")
        return f"{PODS}/{name}"

    return run

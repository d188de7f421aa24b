"""An API server of Kubernetes that answers as a test tells it, with a kubeconfig; and a cluster whose pods run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from api_servers import ApiServer, kubeconfig
from jobs import until
from kube.lab import Lab
from pods import HASTY, image, left

if TYPE_CHECKING:
    from hopyard.engines.kubernetes.api import Api


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of whoever runs the tests."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def server(outside: None) -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    from hopyard.engines.kubernetes.api import Api

    kubeconfig(tmp_path / "config", server.url)
    return Api()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """For images: pods have a /tmp of their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def images(folder: Path) -> dict[str, Any]:
    """A test may add some."""
    return {"hopyard:test": {}, "hopyard:hasty": image(folder, HASTY)}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, images: dict[str, Any]) -> Iterator[Lab]:
    """Its controllers' time runs 20 times as fast: finished Jobs are deleted after 30 s."""
    with Lab(tmp_path_factory.mktemp("lab"), images=images, speed=20) as made:
        yield made


@pytest.fixture
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    yield
    lab.cluster.on_request = None
    lab.cluster.faults.clear()
    until(lambda: not left(lab), 120)

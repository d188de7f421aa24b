"""An API server of Kubernetes that answers as a test tells it, and a kubeconfig for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from api_servers import ApiServer, kubeconfig

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

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client import Client
from kube.server import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Of one node and no kubelet, whose seconds are a twentieth of ours."""
    with Cluster(tmp_path, speed=20, bookmarks=0.2) as cluster:
        cluster.add_node()
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Client:
    return cluster.client()

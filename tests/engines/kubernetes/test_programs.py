"""The example programs on pods: each ends by itself or is ended by the engine, and nothing is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from example_modules import example, needs
from jobs import until
from kube.kubelet import missing
from kube.lab import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """It lets pods mount a folder of their node, which stands for a volume that all share."""
    with Lab(tmp_path_factory.mktemp("lab"), level="privileged", speed=20) as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # pods have a /tmp of their own
        path = Path(folder)
        path.chmod(0o777)
        (path / "runs").mkdir(mode=0o777)
        yield path


def engine(lab: Lab, workers: int, shared: Path) -> Any:
    """Return an engine whose pods share a folder, as by a claim that many may write."""
    volume = {"name": "shared", "hostPath": {"path": str(shared)}}
    mount = {"name": "shared", "mountPath": str(shared)}
    user = {"runAsUser": os.getuid(), "runAsGroup": os.getgid(), "runAsNonRoot": False}  # who may write it
    pod = {
        "securityContext": user,
        "volumes": [volume],
        "containers": [{"name": "hopyard", "volumeMounts": [mount]}],
    }
    env = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    return lab.engine(workers=workers, memory="3Gi", pod=pod, env=env, cpu=0.5)


@pytest.mark.parametrize(
    ("name", "workers", "arguments"),
    [
        pytest.param("ps_tutorial", 3, {"steps": 150}, marks=needs("tensorflow", "sklearn")),
        pytest.param(
            "ps_tutorial", 3, {"steps": 150, "sync": True}, marks=[pytest.mark.campaign, needs("tensorflow", "sklearn")]
        ),
        pytest.param("in_graph_replication", 4, {"steps": 100}, marks=needs("tensorflow", "sklearn")),
        pytest.param(
            "in_graph_replication",
            4,
            {"steps": 100, "asynchronous": True},
            marks=[pytest.mark.campaign, needs("tensorflow", "sklearn")],
        ),
        pytest.param("split_by_device", 3, {"steps": 200}, marks=needs("tensorflow", "sklearn")),
        pytest.param("multi_worker_mirrored", 2, {"epochs": 10}, marks=needs("tensorflow", "sklearn")),
        pytest.param(
            "parameter_server_strategy",
            3,
            {"steps": 200, "workers": 1, "fail": 100, "max_restarts": 1},
            marks=needs("tensorflow", "sklearn"),
        ),
        pytest.param("torch_ddp", 2, {"epochs": 4}, marks=needs("torch", "sklearn")),
        pytest.param("jax_data_parallel", 2, {"epochs": 8}, marks=needs("jax", "sklearn")),
    ],
)
def test_an_example_runs_on_pods(
    lab: Lab, shared: Path, monkeypatch: pytest.MonkeyPatch, name: str, workers: int, arguments: dict[str, Any]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    told = example(f"programs/{name}").launch(
        **arguments, engine=engine(lab, workers, shared), directory=shared / "runs" / name
    )
    results = told if isinstance(told, list) else [told]
    assert max(each["accuracy"] for each in results) > 0.8
    until(lambda: not lab.left() and not lab.pods(), 60)

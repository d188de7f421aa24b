"""Members on hosts of their own, with a slow network between them (`benchmarks/slow_network.py`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from gang_jobs import network
from hopyard.core.runs.events import Joined
from jobs import dataset, journal

pytestmark = [pytest.mark.slow, pytest.mark.cold, pytest.mark.filterwarnings("ignore:. workers on")]

NETWORK = Path(__file__).parents[2] / "benchmarks" / "slow_network.py"


def benchmark() -> Any:
    name = "slow_network"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, NETWORK)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def test_members_on_two_hosts_do_what_one_worker_does(tmp_path: Path) -> None:
    """10 Mbit/s, and 20 ms each way."""
    slow_network = benchmark()
    if reason := slow_network.refusal():
        pytest.skip(reason)

    def fit(name: str, engine: Any, parallel: Any) -> hy.Run:
        return hy.fit(
            network,
            {"lr": 0.05},
            dataset(),
            epochs=1,
            engine=engine,
            parallel=parallel,
            directory=tmp_path / name,
        )

    alone = fit("alone", hy.Inline(), hy.Hopper())
    with slow_network.network(2, 10e6 / 8, 0.02) as wires:
        run = fit("run", slow_network.Hosts(network=wires), hy.AllReduce())
    assert run.best.history[1] == pytest.approx(alone.best.history[1], rel=1e-9)
    hosts = {line.host for line in journal(run.directory) if isinstance(line, Joined)}
    assert hosts == {"slow-0", "slow-1"}

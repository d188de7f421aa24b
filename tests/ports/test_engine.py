"""What every engine must do, over all of them."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.engines.local import Processes
from hopyard.errors import ResourceError
from hopyard.ports import Agents, LaunchInfo
from jobs import alive, gone

KEYS = dict.fromkeys(("server_key", "public_key", "secret_key"), "0" * 40)
NOBODY = {"slot": 0, "address": "tcp://127.0.0.1:9", **KEYS}
"""A card that leads to a port where nobody listens: an agent with it dials, and waits."""


@pytest.fixture
def launch(tmp_path: Path) -> LaunchInfo:
    return LaunchInfo(lambda slot: json.dumps(NOBODY).encode() + b"\n", lambda slot: tmp_path / "logs" / f"{slot}.log")


@pytest.fixture(params=["inline", "local", "spark", "spark, one beside the driver"])
def agents(request: pytest.FixtureRequest, launch: LaunchInfo) -> Iterator[Agents]:
    engines: dict[str, Callable[[], Any]] = {
        "inline": hy.Inline,
        "local": lambda: hy.Local(workers=2, devices=None),
        "spark": lambda: hy.Spark(request.getfixturevalue("spark"), workers=2),
        "spark, one beside the driver": lambda: hy.Spark(request.getfixturevalue("spark"), workers=2, here=1),
    }
    engine = engines[request.param]()
    assert engine.name == request.param.partition(",")[0]
    assert engine.workers >= 1
    assert engine.threads == 1
    host, port = engine.address
    assert host == "127.0.0.1" and port == 0
    assert engine.apart == (engine.name == "spark")
    assert engine.in_process == (engine.name == "inline")
    made = engine.open(launch)
    yield made
    made.close()


def test_nobody_is_there_before_the_start(agents: Agents) -> None:
    assert agents.lost() == []
    assert not select.select(agents.watch(), [], [], 0)[0]


def test_starting_returns_at_once_and_nothing_is_lost(agents: Agents) -> None:
    began = time.monotonic()
    agents.start(0)
    assert time.monotonic() - began < 1
    assert agents.lost() == []
    assert agents.device(0) == "cpu"


def test_ended_for_good_is_not_lost(agents: Agents) -> None:
    agents.start(0)
    agents.end(0)
    agents.end(0)
    agents.end(5)
    assert agents.lost() == []


def test_what_steps_aside_goes_on(agents: Agents) -> None:
    agents.start(0)
    for _ in range(2):
        agents.release_cores([0])
        agents.reacquire_cores()
    assert agents.lost() == []


def test_close_may_be_called_twice(agents: Agents) -> None:
    agents.start(0)
    agents.close()
    agents.close()
    assert agents.lost() == []


def pids(agents: Any) -> list[int]:
    return [process.pid for process, _ in agents._running.values()]


@pytest.fixture
def local(launch: LaunchInfo) -> Iterator[Processes]:
    made = Processes(hy.Local(workers=2, devices=None, env={"HOPYARD_TEST": "1"}), launch)
    yield made
    made.close()


def test_a_process_that_ends_is_lost_once_and_wakes_the_watch(local: Processes) -> None:
    local.start(3)
    (pid,) = pids(local)
    os.kill(pid, 9)
    assert select.select(local.watch(), [], [], 5)[0]
    assert local.lost() == [(3, f"process {pid} was killed by SIGKILL")]
    assert local.lost() == []
    assert local.watch() == []


def test_a_stopped_process_can_be_ended(local: Processes) -> None:
    local.start(0)
    (pid,) = pids(local)
    os.kill(pid, 19)
    local.end(0)
    assert not alive([pid])


def test_its_card_goes_by_pipe_alone(local: Processes, launch: LaunchInfo) -> None:
    local.start(0)
    (pid,) = pids(local)
    process = Path(f"/proc/{pid}")
    assert b"0000000000" not in process.joinpath("cmdline").read_bytes()
    end = time.monotonic() + 5
    while not (environment := process.joinpath("environ").read_bytes()) and time.monotonic() < end:
        time.sleep(0.001)  # the kernel has just begun with it
    assert b"0000000000" not in environment
    assert b"HOPYARD_TEST=1" in environment
    assert b"OMP_NUM_THREADS=1" in environment
    local.end(0)
    assert b"0000000000" not in launch.log(0).read_bytes()


def test_the_end_of_its_input_ends_an_agent(local: Processes) -> None:
    local.start(0)
    ((process, _),) = local._running.values()
    assert process.stdin is not None
    process.stdin.close()
    assert gone([process.pid], 10)  # it may still be starting


def test_a_process_that_cannot_be_started_is_a_lack_of_resources(
    local: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.engines.local.AGENT", ["/nowhere/python"])
    with pytest.raises(ResourceError, match="slot 1: no worker process could be started"):
        local.start(1)


def test_a_log_that_cannot_be_written_is_a_lack_of_resources(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    launch = LaunchInfo(lambda slot: b"\n", lambda slot: tmp_path / "file" / "log")
    made = Processes(hy.Local(workers=1, devices=None), launch)
    with pytest.raises(ResourceError, match="slot 0"):
        made.start(0)


def all_of(agents: Callable[..., Any]) -> list[str]:
    return [name for name in dir(agents) if not name.startswith("_")]


def test_no_engine_has_more_than_the_port() -> None:
    from hopyard.engines.inline import Alone
    from hopyard.engines.spark import Executors
    from hopyard.engines.split import Beside

    assert all_of(Alone) == all_of(Processes) == all_of(Executors) == all_of(Beside) == all_of(Agents)

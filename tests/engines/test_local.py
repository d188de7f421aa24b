"""Local: which values it takes, which device each worker gets. What its processes do is in tests/ports."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import hopyard as hy
from hopyard.engines import local
from hopyard.engines.local import Processes, cores, gpus
from hopyard.ports import LaunchInfo

pytestmark = pytest.mark.cold


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_as_many_workers_as_cores_or_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hy.Local().workers == cores()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,-1")
    assert gpus() == ["4", "6"]
    assert hy.Local().workers == 2
    assert hy.Local(workers=3).devices == ("4", "6")
    assert hy.Local(devices=None).workers == cores()
    assert hy.Local(devices=[0, 0, 1]).workers == 3


def test_a_path_is_that_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may begin elsewhere, or be a fork of a process that did."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", "lib", "/opt/lib"])
    assert local.python_path().split(os.pathsep) == [str(tmp_path), str(tmp_path / "lib"), "/opt/lib"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, r"Local\(workers=\) must be .*, got 0"),
        ({"workers": True}, r"Local\(workers=\) must be .*, got True"),
        ({"workers": 1.5}, r"Local\(workers=\) must be .*, got 1\.5"),
        ({"threads": 0}, r"Local\(threads=\) must be .*, got 0"),
        ({"devices": "cuda:0"}, r"Local\(devices=…\) must be .*, got 'cuda:0'"),
        ({"workers": 2, "devices": [0]}, r"Local\(devices=…\) must .* 2 workers, got \[0\]"),
        ({"env": {"A": 1}}, r"Local\(env=\)\['A'\], of type int"),
        ({"env": {"A=": "1"}}, r"Local\(env=\)\['A='\], of type str"),
        ({"env": None}, r"Local\(env=\) must be .*, got None"),
        ({"env": [("A", "b")]}, r"Local\(env=\) must be .*, got \[\('A', 'b'\)\]"),
        ({"env": ""}, r"Local\(env=\) must be .*, got ''"),
        ({"devices": 3}, r"Local\(devices=…\) must be .*, got 3"),
    ],
)
def test_values_that_are_not_allowed(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(hy.SpecError, match=message) as caught:
        hy.Local(**arguments)
    assert caught.value.exit_code == 2


def test_numpy_integers_become_plain_ones() -> None:
    """The journal has no others."""
    local, inline = hy.Local(workers=np.int64(2), threads=np.int32(1)), hy.Inline(threads=np.int64(1))
    assert [type(value) for value in (local.workers, local.threads, inline.threads)] == [int, int, int]


@pytest.mark.parametrize("threads", [0, True, 1.0])
def test_inline_takes_no_such_threads(threads: object) -> None:
    with pytest.raises(hy.SpecError, match=r"Inline\(threads="):
        hy.Inline(threads=threads)


def test_devices_are_given_out_in_turn_and_given_back() -> None:
    launch = LaunchInfo(lambda slot: b"\n", lambda slot: Path())
    agents = Processes(hy.Local(workers=4, devices=[0, 0, 1, 1]), launch)
    for slot in range(4):
        agents._devices[slot] = agents._free_device()
    assert agents._devices == {0: "0", 1: "0", 2: "1", 3: "1"}
    del agents._devices[1]
    assert agents._free_device() == "0"
    assert agents.device(0) == "cuda"
    assert agents.device(9) == "cpu"


def test_more_workers_than_devices_share_them() -> None:
    launch = LaunchInfo(lambda slot: b"\n", lambda slot: Path())
    engine = hy.Local(workers=2, devices=[0, 1])
    object.__setattr__(engine, "devices", ("0",))
    agents = Processes(engine, launch)
    agents._devices[0] = agents._free_device()
    assert agents._free_device() == "0"


def test_a_process_that_cannot_be_killed_does_not_stop_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In uninterruptible sleep, as on a file server that is away."""
    monkeypatch.setattr(local, "END_SECONDS", 0.05)
    monkeypatch.setattr(local, "AGENT", ["sleep", "1000"])
    agents = hy.Local(workers=1, devices=None).open(LaunchInfo(lambda slot: b"", lambda slot: tmp_path / "log"))
    assert isinstance(agents, Processes)
    agents.start(0)
    (sleeper,) = agents._running.values()
    with monkeypatch.context() as patch:
        patch.setattr("hopyard.engines.processes.kill_group", lambda pid: None)
        agents.end(0)
        assert agents.lost() == [] and agents._dying == [sleeper]
    sleeper.kill()
    until = time.monotonic() + 60
    while agents._dying:
        assert agents.lost() == [] and time.monotonic() < until
        time.sleep(0.01)
    agents.close()

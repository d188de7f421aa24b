"""Local: which values it takes, which device each worker gets. What its processes do is in tests/ports."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hopyard as hy
from hopyard.engines import local
from hopyard.engines.local import cores, gpus
from hopyard.ports.engines import LaunchInfo
from jobs import alive

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


class Sleepers:
    """Workers that say what GPU they have and what process they are, and sleep."""

    def __init__(self, engine: hy.Local, logs: Path) -> None:
        self._logs = logs
        self.agents = engine.open(LaunchInfo(lambda slot: b"", lambda slot: logs / str(slot)))

    def start(self, slot: int) -> tuple[str, int]:
        """Start one. Returns its GPU and the number of its process."""
        self.agents.start(slot)
        end = time.monotonic() + 30.0
        while not (said := (self._logs / str(slot)).read_text()).endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.002)
        gpu, pid = said.strip().split("/")
        return gpu, int(pid)


@pytest.fixture
def sleepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[hy.Local], Sleepers]]:
    monkeypatch.setattr(local, "AGENT", ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES/$$"; exec sleep 1000'])
    made: list[Sleepers] = []

    def make(engine: hy.Local) -> Sleepers:
        made.append(Sleepers(engine, tmp_path / "logs"))
        return made[-1]

    yield make
    for each in made:
        each.agents.close()


@pytest.mark.slow
def test_devices_are_given_out_in_turn_and_given_back(sleepers: Callable[[hy.Local], Sleepers]) -> None:
    four = sleepers(hy.Local(workers=4, devices=[0, 0, 1, 1]))
    started = [four.start(slot) for slot in range(4)]
    assert [gpu for gpu, _ in started] == ["0", "0", "1", "1"]
    four.agents.end(1)
    assert four.start(4)[0] == "0"
    os.kill(started[2][1], signal.SIGKILL)  # nobody orders it
    while not four.agents.lost():
        time.sleep(0.01)
    assert four.start(5)[0] == "1"
    assert [four.agents.device(slot) for slot in (0, 1, 2, 4, 9)] == ["cuda", "cpu", "cpu", "cuda", "cpu"]


@pytest.mark.slow
def test_more_workers_than_devices_share_them(
    sleepers: Callable[[hy.Local], Sleepers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    two = sleepers(hy.Local(workers=2))
    assert [two.start(slot)[0] for slot in (0, 1)] == ["7", "7"]
    assert [two.agents.device(slot) for slot in (0, 1)] == ["cuda", "cuda"]


@pytest.mark.slow
def test_a_process_that_cannot_be_killed_does_not_stop_the_driver(
    sleepers: Callable[[hy.Local], Sleepers], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In uninterruptible sleep, as on a file server that is away."""
    monkeypatch.setattr(local, "END_SECONDS", 0.05)
    one = sleepers(hy.Local(workers=1, devices=None))
    _, pid = one.start(0)
    with monkeypatch.context() as patch:
        patch.setattr("hopyard.engines.processes.Spawned.kill", lambda process: None)
        one.agents.end(0)
        assert one.agents.lost() == [] and alive([pid])
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():  # until somebody has waited for it
        assert one.agents.lost() == [] and time.monotonic() < until
        time.sleep(0.01)
    one.agents.close()
    assert "has not ended" not in caplog.text

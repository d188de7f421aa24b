"""Workers that are slow, that are stopped, that hang, or whose driver is killed: real processes, small times."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Joined, Resumed
from hopyard.frameworks.linear import Linear
from hopyard.store.layout import Layout
from jobs import CONFIGS, WIDTH, digests, driver, first_time, gone, journal, losses, memory, script, select

pytestmark = pytest.mark.slow

STALL = 2.0


def hold_the_lock(seconds: float) -> None:
    """A call into C that does not let the interpreter go."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def deadlock() -> None:
    """For ever, beside a thread that spins."""

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def segfault() -> None:
    ctypes.string_at(0)


def compile_in_a_child(seconds: float) -> None:
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


WHAT = {
    "lock": lambda: hold_the_lock(3.0),
    "burn": lambda: burn(2 * STALL),
    "child": lambda: compile_in_a_child(2 * STALL),
    "sleep": lambda: time.sleep(60),
    "deadlock": deadlock,
    "segfault": segfault,
}


class Odd(Linear):
    """Does something once, at a batch that its config names; or is slow with each."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(WIDTH, 2, lr=config["lr"], batch_size=16)
        self._config = config
        self._calls = 0
        if config.get("at") == "build" and first_time(config["once"]):
            WHAT[config["do"]]()

    def train(self, batch: Any) -> Any:
        config = self._config
        self._calls += 1
        first = config.get("at") == "first" and self._calls == 1 and os.path.exists(config["once"] + "-checked")
        if (first or config.get("at") == self.steps) and first_time(config["once"]):
            WHAT[config["do"]]()
        if config.get("at") == "first":
            Path(config["once"] + "-checked").touch()
        time.sleep(config.get("slow", 0.0))
        return super().train(batch)


def odd(config: dict[str, Any]) -> Any:
    return Odd(config)


def run_odd(folder: Path, configs: list[dict[str, Any]], workers: int = 1, **more: Any) -> hy.Run:
    return select(folder / "run", odd, configs, engine=hy.Local(workers, devices=None), **more)


def config(folder: Path, at: Any, do: str) -> dict[str, Any]:
    return {"lr": 0.1, "at": at, "do": do, "once": str(folder / "once")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return digests(select(tmp_path_factory.mktemp("liveness") / "run", configs=[{"lr": 0.1}]))


def test_a_call_that_keeps_the_interpreter_longer_than_heartbeat_timeout(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    run = run_odd(tmp_path, [config(tmp_path, 7, "lock")], timeouts=hy.Timeouts(heartbeat_timeout=1.0))
    assert (tmp_path / "once").exists()
    assert losses(tmp_path / "run") == []
    assert digests(run) == undisturbed


def test_a_deadlock_beside_a_thread_that_spins(tmp_path: Path, undisturbed: list[str]) -> None:
    run = run_odd(tmp_path, [config(tmp_path, 7, "deadlock")], timeouts=hy.Timeouts(stall_timeout=STALL))
    assert losses(tmp_path / "run") == ["made no progress for 2 seconds in phase 'train' (stall_timeout=2)"]
    assert digests(run) == undisturbed
    text = Layout(tmp_path / "run").log(0).read_text()
    assert re.search(r"no progress for \d seconds in phase 'train'; where it is:", text)
    assert text.count(" in deadlock") == 1 and text.count(" in spin") == 1


def test_a_crash_leaves_its_stack_in_the_log(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed, match=r"killed by SIGSEGV; `hopyard logs` shows where it was"):
        run_odd(tmp_path, [{"lr": 0.1, "at": 7, "do": "segfault", "once": None}])
    for slot in range(3):
        assert " in segfault\n" in Layout(tmp_path / "run").log(slot).read_text()


@pytest.mark.parametrize(
    ("at", "do"),
    [
        pytest.param("build", "child", marks=pytest.mark.long),
        ("first", "burn"),
        pytest.param("build", "burn", marks=pytest.mark.campaign),
        pytest.param("first", "child", marks=pytest.mark.campaign),
    ],
)
def test_a_slow_build_or_first_step_is_work(tmp_path: Path, undisturbed: list[str], at: str, do: str) -> None:
    run = run_odd(tmp_path, [config(tmp_path, at, do)], timeouts=hy.Timeouts(stall_timeout=STALL))
    assert (tmp_path / "once").exists()
    assert losses(tmp_path / "run") == []
    assert digests(run) == undisturbed


@pytest.mark.parametrize(
    ("at", "do", "phase"),
    [
        pytest.param("build", "sleep", "build", marks=pytest.mark.long),
        ("build", "deadlock", "build"),
        ("first", "deadlock", "compile"),
    ],
)
def test_waiting_in_a_build_or_first_step_is_none(
    tmp_path: Path, undisturbed: list[str], at: str, do: str, phase: str
) -> None:
    run = run_odd(tmp_path, [config(tmp_path, at, do)], timeouts=hy.Timeouts(stall_timeout=STALL))
    assert losses(tmp_path / "run") == [f"made no progress for 2 seconds in phase {phase!r} (stall_timeout=2)"]
    assert digests(run) == undisturbed


def test_processor_time_alone_is_no_progress_in_training(tmp_path: Path, undisturbed: list[str]) -> None:
    run = run_odd(tmp_path, [config(tmp_path, 7, "burn")], timeouts=hy.Timeouts(stall_timeout=STALL / 2))
    (loss,) = losses(tmp_path / "run")
    assert re.fullmatch(r"made no progress for \d+ seconds in phase 'train' \(stall_timeout=1\)", loss)
    assert digests(run) == undisturbed


def test_a_partition_that_takes_longer_than_any_timeout(tmp_path: Path, undisturbed: list[str]) -> None:
    """12 batches of 0.55 s, each of which is progress."""
    run = run_odd(
        tmp_path, [{"lr": 0.1, "slow": 0.55}], timeouts=hy.Timeouts(stall_timeout=1.5, heartbeat_timeout=1.0), epochs=1
    )
    assert losses(tmp_path / "run") == []
    train = [part.seconds for line in journal(tmp_path / "run") for part in getattr(line, "parts", ())]
    assert max(train) > 1.5
    assert len(digests(run)) == 1


def test_a_stopped_worker_is_found_in_heartbeat_timeout(tmp_path: Path, undisturbed: list[str]) -> None:
    def stops(config: dict[str, Any]) -> Any:
        class Stops(Linear):
            def train(self, batch: Any) -> Any:
                if self.steps == 7 and first_time(config["once"]):
                    Path(config["once"]).write_text(str(time.time()))
                    os.kill(os.getpid(), signal.SIGSTOP)
                return super().train(batch)

        return Stops(WIDTH, 2, lr=config["lr"], batch_size=16)

    once = tmp_path / "once"
    configs = [{"lr": 0.1, "once": str(once)}]
    run = select(
        tmp_path / "run", stops, configs, engine=hy.Local(1, devices=None), timeouts=hy.Timeouts(heartbeat_timeout=2.0)
    )
    (line,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    assert line.reason == "said nothing for 2 seconds (heartbeat_timeout=2)"
    assert 1.0 < line.at - float(once.read_text()) < 10.0
    assert digests(run) == undisturbed


def test_a_resume_may_have_other_timeouts(tmp_path: Path, undisturbed: list[str]) -> None:
    """The first driver would wait for ten minutes; the second does not."""
    name = str(tmp_path / "once")
    body = f"""
from test_liveness import odd
select(Path("run"), odd, [{{"lr": 0.1, "at": 7, "do": "sleep", "once": {name!r}}}], engine=hy.Local(1, devices=None))
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    end = time.monotonic() + 60
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)
    Path(name).unlink()  # it sleeps once more
    run = hy.resume(tmp_path / "run", timeouts=hy.Timeouts(stall_timeout=STALL))
    assert losses(tmp_path / "run") == ["made no progress for 2 seconds in phase 'train' (stall_timeout=2)"]
    assert digests(run) == undisturbed
    (resumed,) = [line for line in journal(tmp_path / "run") if isinstance(line, Resumed)]
    assert resumed.timeouts == run.timeouts == hy.Timeouts(stall_timeout=STALL)


# -------------------------------------------------------------------------------- when the driver is killed


def helped(folder: str, stop: bool) -> Any:
    """A recipe that starts helpers: one in the worker's group, one in a session of its own. Of two workers one is
    stopped, or not; the other kills the driver."""

    def recipe(config: dict[str, Any]) -> Any:
        class Helped(Linear):
            def train(self, batch: Any) -> Any:
                if self.steps == 3:
                    for session in (False, True):
                        helper = subprocess.Popen(["sleep", "600"], start_new_session=session)
                        Path(folder, f"helper-{helper.pid}").touch()
                    Path(folder, f"worker-{os.getpid()}").touch()
                    if config["lr"] == 0.1:
                        end = time.monotonic() + 30
                        while len(list(Path(folder).glob("worker-*"))) < 2 and time.monotonic() < end:
                            time.sleep(0.01)
                        time.sleep(0.2)
                        os.kill(os.getppid(), signal.SIGKILL)
                    elif stop:
                        os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(60)
                return super().train(batch)

        return Helped(WIDTH, 2, lr=config["lr"], batch_size=16)

    return recipe


@pytest.mark.parametrize("stop", [False, True])
def test_processes_of_a_recipe_end_with_a_killed_driver(tmp_path: Path, stop: bool) -> None:
    """Bug: helpers lived on, always; the run's folder in shared memory stayed until the next start."""
    body = f"""
from test_liveness import helped
select(Path("run"), helped({str(tmp_path)!r}, {stop}), CONFIGS[:2], engine=hy.Local(2, devices=None))
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    helpers = [int(path.name.split("-")[1]) for path in tmp_path.glob("helper-*")]
    workers = [line.pid for line in journal(tmp_path / "run") if isinstance(line, Joined)]
    assert len(helpers) == 4 and len(workers) == 2
    assert gone(helpers + workers)
    end = time.monotonic() + 60
    while left := memory(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.02)


def test_no_agent_lives_when_the_driver_is_killed_and_companions_are_stopped(tmp_path: Path) -> None:
    """Bug: nobody but its companion ended an agent."""
    folder = str(tmp_path)
    body = f"""
from test_liveness import slow_ones
select(Path("run"), slow_ones({folder!r}), CONFIGS[:1], engine=hy.Local(1, devices=None))
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    end = time.monotonic() + 60
    while not (tmp_path / "worker").exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    worker = int((tmp_path / "worker").read_text())
    children = [int(pid) for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]
    companions = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("hopyard-comp")]
    assert len(companions) == 1
    os.kill(companions[0], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=60)
    assert gone([worker, *companions], 40.0)
    end = time.monotonic() + 60
    while left := memory(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.02)


def slow_ones(folder: str) -> Any:
    """A recipe that says where it is, and sleeps."""

    def recipe(config: dict[str, Any]) -> Any:
        class Slow(Linear):
            def train(self, batch: Any) -> Any:
                if self.steps == 3:
                    Path(folder, "new").write_text(str(os.getpid()))
                    Path(folder, "new").rename(Path(folder, "worker"))
                    time.sleep(60)
                return super().train(batch)

        return Slow(WIDTH, 2, lr=config["lr"], batch_size=16)

    return recipe


def test_a_killed_worker_takes_its_helpers_along(tmp_path: Path) -> None:
    """Its driver goes on."""
    folder = str(tmp_path)

    def recipe(config: dict[str, Any]) -> Any:
        class Killed(Linear):
            def train(self, batch: Any) -> Any:
                if self.steps == 3 and first_time(f"{folder}/once"):
                    Path(folder, "helper").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().train(batch)

        return Killed(WIDTH, 2, lr=config["lr"], batch_size=16)

    run = select(tmp_path / "run", recipe, CONFIGS[:1], engine=hy.Local(1, devices=None))
    assert run.status == "completed"
    assert gone([int((tmp_path / "helper").read_text())])


@pytest.mark.parametrize("stop", [False, True])
def test_processes_of_a_program_end_with_a_killed_driver(tmp_path: Path, stop: bool) -> None:
    """Its agents, their tasks, helpers of these; also when an agent is stopped."""
    body = f"""
import os, signal, subprocess, time
def main(args, ctx):
    for session in (False, True):
        helper = subprocess.Popen(["sleep", "600"], start_new_session=session)
        Path({str(tmp_path)!r}, f"pid-{{helper.pid}}").touch()
    for pid in (os.getpid(), os.getppid()):
        Path({str(tmp_path)!r}, f"pid-{{pid}}").touch()
    if {stop} and ctx.rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)

hy.launch(main, roles={{"worker": 2}}, engine=hy.Local(2, devices=None), directory="program").wait()
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < 8 and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)
    pids = [int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 8
    assert gone(pids)

"""Real programs on real processes of this host: whatever is killed, the first cause is named and nothing is left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hopyard as hy
import programs
from hopyard.core.programs.events import CODEC, Assigned, Closing, Launched, Over, decode
from hopyard.driver.programs.loop import ProgramLoop
from jobs import gone

pytestmark = [pytest.mark.slow, pytest.mark.programs]


def launch(tmp_path: Path, main: Any = programs.who, args: Any = None, **how: Any) -> hy.Program:
    how.setdefault("roles", {"worker": 2})
    return hy.launch(main, args, directory=tmp_path / "program", **how)


def notes(tmp_path: Path, word: str = "pid", restart: int = 0) -> dict[str, str]:
    """Task → its note."""
    found = (tmp_path / "program" / "notes").glob(f"*-{restart}-{word}")
    return {path.name.removesuffix(f"-{restart}-{word}"): path.read_text() for path in found}


def wait_for_notes(tmp_path: Path, count: int, restart: int = 0) -> dict[str, int]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = {name: int(text) for name, text in notes(tmp_path, restart=restart).items() if text}
        if len(found) == count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"only {found} came up")


def everyone(program: hy.Program, tmp_path: Path) -> list[int]:
    """Processes of agents and tasks."""
    agents = [task["agent"] for task in program.summary()["tasks"]]
    return [*agents, *(int(text) for text in notes(tmp_path).values() if text)]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for restart in range(3):
        for pid in notes(tmp_path, restart=restart).values():
            assert gone([int(pid)])


@pytest.mark.usefixtures("nothing_left")
class TestItsLife:
    def test_each_task_knows_who_it_is(self, tmp_path: Path) -> None:
        program = launch(tmp_path, roles={"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}, until="all")
        assert program.wait(60).status == "completed"
        told = {f"{task['role']} {task['index']}": task for task in program.summary()["tasks"]}
        assert list(told) == ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
        assert [task["values"]["rank"] for task in told.values()] == [0, 1, 2, -1, -1]
        assert {task["values"]["world"] for task in told.values()} == {3}
        lines = [decode(line) for line in (tmp_path / "program" / "program.jsonl").read_bytes().splitlines()]
        assert isinstance(lines[0], Launched) and isinstance(lines[-1], Over)
        assert sum(isinstance(line, Assigned) for line in lines) == 1

    def test_training_is_over_and_the_ps_that_never_exits_is_ended(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.serves, roles={"chief": 1, "worker": 1, "ps": 2, "evaluator": 1}, grace=5)
        assert program.wait(60).status == "completed"
        status = {task["role"]: task["status"] for task in program.summary()["tasks"]}
        assert status == {"chief": "completed", "worker": "completed", "ps": "ended", "evaluator": "ended"}

    def test_an_idle_program_stops_at_once(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.idle)
        pids = wait_for_notes(tmp_path, 2)
        program.stop()
        assert program.done  # not so if it gives up; how long it takes: benchmarks/program_start.py
        assert program.status == "stopped" and program.wait().status == "stopped"
        assert gone([*pids.values(), *everyone(program, tmp_path)])
        program.stop()

    def test_a_context_manager_stops_it(self, tmp_path: Path) -> None:
        with launch(tmp_path, programs.idle) as program:
            wait_for_notes(tmp_path, 2)
        assert program.status == "stopped"

    def test_a_program_may_end_by_itself_when_asked(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import os
            import time

            (ctx.directory / f"up-{ctx.index}").write_text(str(os.getpid()))
            while not ctx.stop_requested:
                time.sleep(0.01)
            (ctx.directory / f"saved-{ctx.index}").touch()

        program = launch(tmp_path, main)
        while len(list((tmp_path / "program").glob("up-*"))) < 2:
            time.sleep(0.02)
        program.stop(grace=20)
        assert len(list((tmp_path / "program").glob("saved-*"))) == 2

    def test_a_script_with_arguments(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(
            "import os, sys\n"
            "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:], __name__)\n"
            "sys.exit(0)\n"
        )
        program = launch(tmp_path, script, ["--steps", "3"])
        assert program.wait(60).status == "completed"
        assert "rank 1 of 2 ['--steps', '3'] __main__" in program.logs("worker", 1)
        with pytest.raises(hy.SpecError, match="there are 2 worker, counted from 0"):
            program.logs("ps")

    def test_much_is_printed(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            for _ in range(10 * 1024):
                print("x" * 1023)

        program = launch(tmp_path, main, roles={"worker": 1})
        assert program.wait(60).status == "completed"
        assert len(program.logs()) >= 10 << 20

    def test_output_of_tasks_is_streamed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def main(args: Any, ctx: Any) -> None:
            import time

            print(f"rank {ctx.rank} is up \x07")
            while not (ctx.directory / "go").exists():
                time.sleep(0.02)
            print("the end", end="")

        program = launch(tmp_path, main)
        shown = ""
        until = time.monotonic() + 60
        while shown.count("is up") < 2 and time.monotonic() < until:
            with pytest.raises(TimeoutError, match=r"not over after 0\.1 seconds"):
                program.wait(0.1, stream=True)
            shown += capsys.readouterr().out
        lines = [line for n in range(2) for line in (f"--- worker {n}, attempt 0", f"rank {n} is up \\x07")]
        assert sorted(shown.splitlines()) == [f"worker {at // 2}: {line}" for at, line in enumerate(lines)]
        (tmp_path / "program" / "go").touch()
        assert program.wait(1e17, stream=True).status == "completed"  # more seconds than a lock can wait for
        assert program.wait(1e17) is program
        assert sorted(capsys.readouterr().out.splitlines()) == ["worker 0: the end", "worker 1: the end"]
        with pytest.raises(hy.SpecError, match=r"wait\(stream=\) must be True or False, got 1"):
            program.wait(stream=1)  # type: ignore[arg-type]

    def test_output_of_tasks_is_streamed_while_rows_go(self, tmp_path: Path, capsys: Any) -> None:
        def main(args: Any, ctx: Any) -> None:
            for batch in ctx.feed().batches(4):
                print("took", len(batch["x"]))

        program = launch(tmp_path, main, roles={"worker": 1})
        assert program.feed({"x": np.arange(8.0)}, stream=True) == 8
        streamed = capsys.readouterr().out
        program.wait(60, stream=True)
        streamed += capsys.readouterr().out
        assert streamed.splitlines() == ["worker 0: --- worker 0, attempt 0", *["worker 0: took 4"] * 2]
        with pytest.raises(hy.SpecError, match=r"feed\(stream=\) must be True or False, got 1"):
            program.feed({"x": np.arange(8.0)}, stream=1)  # type: ignore[arg-type]

    def test_a_program_whose_object_was_lost(self, tmp_path: Path) -> None:
        launch(tmp_path, lambda args, ctx: time.sleep(600))
        (program,) = (each for each in hy.Program.running() if each.directory == tmp_path / "program")
        program.stop()
        assert program not in hy.Program.running()

    def test_ports_are_free_again(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import json
            import os
            import socket

            config = json.loads(os.environ["TF_CONFIG"])
            host, port = config["cluster"]["worker"][ctx.index].split(":")
            with socket.socket() as server:  # as gRPC does
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                server.bind((host, int(port)))
                server.listen()
            with socket.socket() as other:
                try:
                    other.bind((host, int(port)))
                    raise AssertionError("a stranger got the port")
                except OSError:
                    pass
            (ctx.directory / f"port-{ctx.index}").write_text(port)

        program = launch(tmp_path, main)
        program.wait(60)
        import socket

        for path in (tmp_path / "program").glob("port-*"):
            with socket.socket() as server:
                server.bind(("127.0.0.1", int(path.read_text())))


def test_without_room_for_its_first_line_a_program_has_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"Launched"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("hopyard.store.journal.os.write", full)
        with pytest.raises(hy.ResourceError, match=r"program\.jsonl: no room .* start again, with resume=True"):
            launch(tmp_path).wait(60)
    assert not any(path.read_bytes() for path in (tmp_path / "program").glob("program*.jsonl"))
    assert launch(tmp_path, resume=True).wait(60).status == "completed"


def test_rows_that_a_program_was_fed_stay_until_it_is_over(tmp_path: Path) -> None:
    """A restart is fed them again: `hopyard clean` keeps what a program that runs may need."""
    from hopyard.data.shared.needed import needed

    def main(args: Any, ctx: Any) -> None:
        for _ in ctx.feed().batches(10):
            pass

    data = hy.Dataset.numpy(np.arange(40.0).reshape(20, 2), np.arange(20.0), partitions=2)
    program = launch(tmp_path, main, roles={"worker": 1})
    program.feed(data, end=False)
    where = data.prepare().path
    assert needed(where) == [str((tmp_path / "program").resolve())]
    program.end_feed()
    assert program.wait(60).status == "completed"
    assert needed(where) == []


@pytest.mark.usefixtures("nothing_left")
class TestMaxTime:
    def test_a_program_that_takes_too_long_is_ended_and_says_so(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.idle, max_time=3.0, grace=0.5)
        wait_for_notes(tmp_path, 2)
        with pytest.raises(hy.ProgramFailed, match="max_time=3 ") as caught:
            program.wait(60)
        assert caught.value.exit_code == 1 and caught.value.task == ""
        assert program.status == "failed" and "max_time" in program.summary()["cause"]
        assert gone(everyone(program, tmp_path))
        lines = [decode(line) for line in (tmp_path / "program" / "program.jsonl").read_bytes().splitlines()]
        (first, *_) = [line for line in lines if isinstance(line, Closing)]
        assert (first.status, first.halted) == ("failed", False) and "max_time=3" in first.cause
        assert first.at - lines[0].at >= 3.0

    def test_tasks_may_end_restarts_alone(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import time

            while not ctx.stop_requested:
                time.sleep(0.01)
            (ctx.directory / f"saved-{ctx.index}").touch()

        program = launch(tmp_path, main, max_time=3.0, grace=30.0)
        with pytest.raises(hy.ProgramFailed, match="max_time=3"):
            program.wait(60)
        assert len(list((tmp_path / "program").glob("saved-*"))) == 2
        assert [task["status"] for task in program.summary()["tasks"]] == ["completed", "completed"]

    def test_restarts_do_not_begin_it_anew(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import time

            time.sleep(0.5)
            raise ValueError("again")

        program = launch(tmp_path, main, roles={"worker": 1}, max_restarts=1000, max_time=5.0, grace=0.0)
        with pytest.raises(hy.ProgramFailed, match=r"max_time=5 seconds, its \d+ restart\(s\) included"):
            program.wait(60)

    def test_slots_that_do_not_come(self, tmp_path: Path) -> None:
        """It is no want of slots: other limits of time say that."""

        class Never(hy.Local):
            def open(self, home: Any) -> Any:
                agents = super().open(home)
                agents.start = lambda slot: None  # type: ignore[method-assign]
                return agents

        program = launch(tmp_path, engine=Never(workers=2, devices=None), max_time=1.0)
        with pytest.raises(hy.ProgramFailed, match="there were 0 of the 2 that it needs"):
            program.wait(60)

    @pytest.mark.parametrize("value", [0, -1, True, "60", float("nan"), float("inf")])
    def test_values(self, tmp_path: Path, value: Any) -> None:
        with pytest.raises(hy.SpecError, match=rf"max_time must be .*, got {value!r}"):
            launch(tmp_path, max_time=value)


@pytest.mark.usefixtures("nothing_left")
class TestFailures:
    @pytest.mark.parametrize(
        "how, words",
        [
            ("raise", ["ValueError: the third wheel came off", "Traceback", 'raise ValueError("the third wheel']),
            ("import", ["ModuleNotFoundError: No module named 'no_such_module'"]),
            ("kill", ["was killed by SIGKILL"]),
            ("segfault", ["was killed by SIGSEGV", "Fatal Python error"]),
            ("agent", ["the agent that hosted it", "was killed by SIGKILL"]),
            ("exit 3", ["ended with exit code 3"]),
            ("exit 0", ["before main returned"]),
            ("sys.exit", ["sys.exit('no more')"]),
        ],
    )
    def test_the_first_cause_is_reported(self, tmp_path: Path, how: str, words: list[str]) -> None:
        program = launch(
            tmp_path, programs.misbehaves, {"who": ("worker", 1), "how": how}, roles={"worker": 2, "ps": 1}
        )
        with pytest.raises(hy.ProgramFailed) as caught:
            program.wait(60)
        text = str(caught.value)
        assert "worker 1 failed" in text and "slot-1.log" in text
        for word in words:
            assert word in text
        assert caught.value.task == "worker 1" and caught.value.host and caught.value.exit_code == 1
        assert gone(everyone(program, tmp_path))

    @pytest.mark.parametrize(
        ("how", "who"),
        [
            ("kill", ("worker", 1)),
            ("agent", ("ps", 0)),
            *(pytest.param("kill", (role, 0), marks=pytest.mark.campaign) for role in ("ps", "chief")),
            *(pytest.param("agent", who, marks=pytest.mark.campaign) for who in (("worker", 1), ("chief", 0))),
        ],
    )
    def test_a_restart_ends_right(self, tmp_path: Path, who: tuple[str, int], how: str) -> None:
        args = {"who": who, "how": how, "times": 1}
        program = launch(
            tmp_path, programs.misbehaves, args, roles={"chief": 1, "worker": 2, "ps": 1}, until="all", max_restarts=1
        )
        assert program.wait(60).status == "completed"
        assert program.summary()["restarts"] == 1
        assert len(notes(tmp_path, restart=1)) == 4

    def test_only_the_task_is_started_again_at_its_old_address(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import os
            import signal
            import time

            (ctx.directory / f"{ctx.role}-{ctx.index}-{ctx.restart}").write_text(os.environ["TF_CONFIG"])
            if (ctx.role, ctx.index, ctx.restart) == ("worker", 1, 0):
                while len(list(ctx.directory.glob("*-0"))) < 3:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            while not (ctx.directory / "worker-1-1").exists():
                time.sleep(0.01)

        program = launch(tmp_path, main, roles={"worker": 2, "ps": 1}, max_restarts=1, restart_scope="task")
        assert program.wait(60).status == "completed"
        root = tmp_path / "program"
        assert (root / "worker-1-0").read_text() == (root / "worker-1-1").read_text()
        assert not (root / "worker-0-1").exists() and not (root / "ps-0-1").exists()

    def test_with_a_parameter_server_all_are_started_again(self, tmp_path: Path) -> None:
        args = {"who": ("ps", 0), "how": "kill", "times": 1}
        how: dict[str, Any] = {"roles": {"worker": 1, "ps": 1}, "max_restarts": 1, "restart_scope": "task"}
        assert launch(tmp_path, programs.misbehaves, args, until="all", **how).wait(60).status == "completed"
        assert len(notes(tmp_path, restart=1)) == 2

    @pytest.mark.parametrize("scope", ["task", "program"])
    def test_the_id_of_a_program_is_its_own(self, tmp_path: Path, scope: Any) -> None:
        def main(args: Any, ctx: Any) -> None:
            import os

            name = f"{ctx.role}-{ctx.index}-{ctx.restart}"
            (ctx.directory / name).write_text(os.environ["TORCHELASTIC_RUN_ID"])
            if (ctx.index, ctx.restart) == (1, 0):
                raise ValueError("once")

        found = []
        for name in ("a", "b"):
            path = tmp_path / name
            program = hy.launch(
                main, roles={"worker": 2}, directory=path, max_restarts=1, restart_scope=scope, until="all"
            )
            assert program.wait(60).status == "completed"
            files = list(path.glob("worker-*"))
            assert len(files) == (3 if scope == "task" else 4)
            found += sorted({file.read_text() for file in files})
        assert len(found) == 2 and found[0] != found[1] and all(found)

    def test_too_many_failures(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.misbehaves, {"who": ("worker", 0), "how": "raise"}, max_restarts=1)
        with pytest.raises(hy.ProgramFailed, match="third wheel") as caught:
            program.wait(60)
        assert "after 1 restart(s)" in str(caught.value)

    def test_a_program_that_hangs_while_loading(self, tmp_path: Path) -> None:
        class Hangs:
            def __reduce__(self) -> Any:
                import time

                return time.sleep, (1000,)

        program = launch(tmp_path, programs.who, Hangs(), start_timeout=3.0)
        with pytest.raises(hy.ProgramFailed, match="begun its main within 3 seconds"):
            program.wait(60)
        assert "time.sleep" in program.logs() or "_load_main" in program.logs()  # its stack

    def test_a_stopped_process_is_found(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.idle, heartbeat_timeout=1.5)
        pids = wait_for_notes(tmp_path, 2)
        os.kill(pids["worker-1"], signal.SIGSTOP)
        with pytest.raises(hy.ProgramFailed, match=r"worker 1 failed: .*was stopped \(SIGSTOP\)"):
            program.wait(30)

    def test_a_stopped_agent_is_found(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.idle, heartbeat_timeout=3.0)
        wait_for_notes(tmp_path, 2)
        os.kill(program.summary()["tasks"][1]["agent"], signal.SIGSTOP)
        with pytest.raises(hy.ProgramFailed, match=r"worker 1 failed: .*said nothing for"):
            program.wait(30)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    def test_the_driver_is_killed(self, tmp_path: Path, number: signal.Signals) -> None:
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
            "import hopyard as hy, programs\n"
            f"hy.launch(programs.idle, roles={{'worker': 2}}, directory={str(tmp_path / 'program')!r}).wait()\n"
        )
        driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        pids = wait_for_notes(tmp_path, 2)
        driver.send_signal(number)
        _, shown = driver.communicate(timeout=60)
        assert gone(list(pids.values()))
        place = tmp_path / "program"
        said = f"interrupted; the program in {place} was stopped. `hopyard logs {place}` shows"
        assert [line.startswith(said) for line in shown.splitlines()].count(True) == (number == signal.SIGINT)


class TestBadInput:
    @pytest.mark.parametrize(
        "how, words",
        [
            ({"roles": {"worker": 0}}, "at least one"),
            ({"until": "worker:2"}, "from 0 to 1"),
            ({"until": pd.NA}, r"until must be \"chief\", .*got <NA>"),
            ({"max_restarts": -1}, "max_restarts must be .*, got -1"),
            ({"restart_scope": "none"}, "restart_scope must be"),
            ({"grace": "1"}, "grace must be .*, got '1'"),
            ({"engine": hy.Inline()}, "processes"),
            ({"engine": "spark"}, "hy.Local"),
            ({"env": {"a": 1}}, "values are text"),
            ({"env": {"a": "\ud800"}}, "values are text"),
            ({"roles": {"worker": (2, 1)}}, r"roles\['worker'\] = \(2, 1\)"),
            ({"roles": {"worker": 10**9}}, "at most 10,000"),
            ({"tensorflow1": "no"}, "True or False"),
            ({"tensorboard": 5}, "True, False or a path"),
        ],
    )
    def test_values(self, tmp_path: Path, how: dict[str, Any], words: str) -> None:
        with pytest.raises(hy.SpecError, match=words):
            launch(tmp_path, **how)
        assert not (tmp_path / "program").exists()

    def test_fewer_slots_than_roles(self, tmp_path: Path) -> None:
        with pytest.raises(hy.SpecError, match=r"need 3 processes \(2 worker, 1 ps\), the engine has workers=2"):
            launch(tmp_path, roles={"worker": 2, "ps": 1}, engine=hy.Local(workers=2))

    @pytest.mark.parametrize("directory", ["", 0, "a\0b"])
    def test_directories(self, directory: Any) -> None:
        with pytest.raises(hy.SpecError, match="directory must be"):
            hy.launch(programs.who, roles={"worker": 1}, directory=directory)

    @pytest.mark.parametrize("main", [lambda: 1, lambda args: 1, lambda args, ctx, more: 1])
    def test_main_takes_two_arguments(self, tmp_path: Path, main: Any) -> None:
        with pytest.raises(hy.SpecError, match=r"main must be .* two arguments, .*<function .*<lambda>"):
            launch(tmp_path, main)

    def test_a_main_that_runs_nothing_is_refused(self, tmp_path: Path) -> None:
        async def soon(args: Any, ctx: Any) -> None:
            raise ValueError

        def steps(args: Any, ctx: Any) -> Any:
            yield 1

        for main in (soon, steps):
            with pytest.raises(hy.SpecError, match=r"main = .* runs nothing"):
                launch(tmp_path, main)

    def test_questions_that_make_no_sense(self, tmp_path: Path) -> None:
        with launch(tmp_path, programs.idle) as program:
            with pytest.raises(hy.SpecError, match=r"stop\(grace=\) must be .*got 'x'"):
                program.stop("x")  # type: ignore[arg-type]
            program.logs("worker", 1)
            for role, index in (("worker", 9), ("boss", None), (None, 9)):
                with pytest.raises(hy.SpecError, match=r"no such task; .*2 worker"):
                    program.logs(role, index)
            assert not program.done

    def test_no_function_no_script(self, tmp_path: Path) -> None:
        with pytest.raises(hy.SpecError, match="a function main"):
            launch(tmp_path, 3)
        with pytest.raises(hy.SpecError, match="no such file"):
            launch(tmp_path, "nowhere.py")
        with pytest.raises(hy.SpecError, match="File name too long"):
            launch(tmp_path, "x" * 10_000)
        with pytest.raises(hy.SpecError, match="cannot be pickled"):
            launch(tmp_path, programs.who, threading.Lock())

    def test_a_directory_that_is_in_use(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.idle)
        with pytest.raises(hy.RunDirectoryError, match=r"in use|holds a program"):
            launch(tmp_path, programs.idle)
        with pytest.raises(hy.RunDirectoryError, match="in use"):
            launch(tmp_path, programs.idle, resume=True)
        program.stop()
        with pytest.raises(hy.RunDirectoryError, match="resume=True"):
            launch(tmp_path)
        assert launch(tmp_path, resume=True).wait(60).status == "completed"
        assert (tmp_path / "program" / "program-1.jsonl").exists()


class TestOddPrograms:
    def test_a_process_that_is_stopped_while_it_is_fed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hopyard.core.programs.feeding.ASK_SECONDS", 0.002)  # more words than its pipe holds

        def main(args: Any, ctx: Any) -> None:
            import os
            import signal

            for n, _ in enumerate(ctx.feed().batches(10)):
                if n == 5 and ctx.rank == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)

        program = launch(tmp_path, main, heartbeat_timeout=2.0)
        with pytest.raises(hy.ProgramFailed, match=r"worker 1 failed: .*was stopped"):
            program.feed([{"a": n} for n in range(1000)], epochs=200)

    def test_a_restarted_program_gets_all_rows_again(self, tmp_path: Path) -> None:
        import pyarrow as pa

        def main(args: Any, ctx: Any) -> None:
            rows = 0
            for batch in ctx.feed().batches(1000):
                rows += len(batch["a"])
                if ctx.restart == 0 and rows >= 5000:
                    raise ValueError("once")
            ctx.report({"rows": rows})

        table = pa.table({"a": range(40_000), "b": ["x" * 2500] * 40_000})  # 100 MB: more than a queue takes
        program = launch(tmp_path, main, roles={"worker": 1}, max_restarts=1)
        assert program.feed(table) == 40_000
        assert program.wait(60).status == "completed"
        assert program.summary()["tasks"][0]["values"]["rows"] == 40_000

    def test_a_task_that_leaves_a_child_of_its_own(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import os
            import signal
            import time

            for number in range(3):
                if os.fork() == 0:
                    if number:
                        os.setsid()
                    if number == 2 and os.fork():  # its child, in yet another session, is an orphan
                        os._exit(0)
                    (ctx.directory / f"stray-{number}").write_text(str(os.getpid()))
                    time.sleep(600)
                    os._exit(0)
            while len(list(ctx.directory.glob("stray-*"))) < 3:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(hy.ProgramFailed, match="SIGKILL"):
            launch(tmp_path, main, roles={"worker": 1}).wait(60)
        assert gone([int(path.read_text()) for path in (tmp_path / "program").glob("stray-*")])

    def test_atexit_handlers_run(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import atexit
            import time

            def late() -> None:
                time.sleep(0.5)
                (ctx.directory / f"late-{ctx.index}").touch()

            atexit.register(late)

        program = launch(tmp_path, main)
        assert program.wait(60).status == "completed"
        assert len(list((tmp_path / "program").glob("late-*"))) == 2

    def test_many_are_stopped_while_they_are_started(self, tmp_path: Path) -> None:
        program = launch(tmp_path, roles={"worker": 200})
        time.sleep(0.3)
        program.stop()
        assert program.done  # not so if it gives up
        assert program.status == "stopped"

    def test_threads_of_main_go_on_to_their_end(self, tmp_path: Path) -> None:
        """As in any Python program; longer than what runs at exit is waited for."""

        def main(args: Any, ctx: Any) -> None:
            import threading
            import time
            from concurrent.futures import ThreadPoolExecutor

            def late(name: str) -> None:
                time.sleep(6)
                (ctx.directory / f"{name}-{ctx.index}").touch()

            threading.Thread(target=late, args=["thread"], name="uploads").start()
            ThreadPoolExecutor().submit(late, "pool")

        program = launch(tmp_path, main)
        assert program.wait(60).status == "completed"
        assert len([*(tmp_path / "program").glob("thread-*"), *(tmp_path / "program").glob("pool-*")]) == 4
        assert "threads end: uploads" in program.logs()

    def test_an_evaluator_is_asked_to_stop_before_it_is_ended(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import time

            while ctx.role == "evaluator" and not ctx.stop_requested:
                time.sleep(0.01)

        program = launch(tmp_path, main, roles={"worker": 1, "evaluator": 1}, grace=20)
        assert program.wait(60).status == "completed"
        assert {task["status"] for task in program.summary()["tasks"]} == {"completed"}

    def test_metrics_that_are_not_finite(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            ctx.report({"loss": float("nan")})

        program = launch(tmp_path, main, roles={"worker": 1})
        assert program.wait(60).status == "completed"
        from hopyard.store.journal import read
        from hopyard.views.program import summarize

        assert str(summarize(read(tmp_path / "program" / "program.jsonl", CODEC)).tasks[0].values["loss"]) == "nan"


def test_an_engine_that_cannot_be_opened(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        engine = hy.Local(workers=1)
        object.__setattr__(engine, "endpoint", ("127.0.0.1", port))
        with pytest.raises(hy.ResourceError, match=f"port {port}"):
            hy.launch(programs.idle, roles={"worker": 1}, engine=engine, directory=tmp_path / "program")
    assert not (tmp_path / "program" / "program.jsonl").exists()


def test_an_engine_that_gives_up_ends_it_once(tmp_path: Path) -> None:
    """As when its Spark session is stopped: from then on it says nothing else."""

    class Agents:
        def __init__(self, agents: Any) -> None:
            self._agents = agents

        def __getattr__(self, name: str) -> Any:
            return getattr(self._agents, name)

        def lost(self) -> list[tuple[int, str]]:
            if (tmp_path / "hopeless").exists():
                raise hy.ResourceError("the session was stopped")
            return self._agents.lost()

    class Losing(hy.Local):
        def open(self, home: Any) -> Any:
            return Agents(super().open(home))

    program = launch(tmp_path, programs.idle, engine=Losing(2, devices=None))
    pids = wait_for_notes(tmp_path, 2)
    (tmp_path / "hopeless").touch()
    with pytest.raises(hy.ProgramFailed, match="the session was stopped"):
        program.wait(30)
    assert gone(list(pids.values()))
    lines = [decode(line) for line in (tmp_path / "program" / "program.jsonl").read_bytes().splitlines()]
    assert [type(line).__name__ for line in lines].count("Stop") == 1


@pytest.mark.parametrize(
    "how, words",
    [
        ("huge", r"ValueError: m+ … \([\d,]+ more\)"),
        ("surrogate", r"ValueError: \\ud800"),
        ("no text", "its text cannot be had: ZeroDivisionError"),
        ("exit True", r"sys.exit\(True\)"),
        ("report", "step an integer"),
    ],
)
def test_odd_errors(tmp_path: Path, how: str, words: str) -> None:
    def main(args: Any, ctx: Any) -> None:
        import sys

        class NoText(Exception):
            def __str__(self) -> str:
                return str(1 / 0)

        match args:
            case "huge":
                raise ValueError("m" * (8 << 20))
            case "surrogate":
                raise ValueError("\ud800")
            case "no text":
                raise NoText
            case "exit True":
                sys.exit(True)
            case "report":
                ctx.report({"loss": 1}, step="x")

    with pytest.raises(hy.ProgramFailed, match=words):
        launch(tmp_path, main, how, roles={"worker": 1}).wait(60)


def test_a_time_out_that_ends_while_its_last_decisions_are_carried_out_is_decided_upon_at_once() -> None:
    loop = object.__new__(ProgramLoop)
    loop._slots_to_start, loop._decided_at = deque(), 9.0
    loop._lock = SimpleNamespace(mirror=None)  # type: ignore[assignment]
    loop._machine = SimpleNamespace(due=lambda now: 10.0 if now <= 10.0 else None)  # type: ignore[assignment]
    loop._clock = SimpleNamespace(now=lambda: 14.0)  # type: ignore[assignment]
    assert loop._wait() < 0

"""Programs on real Spark executors of one core each: fed, killed, asked, stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import programs
from jobs import above, gone

pytestmark = [pytest.mark.spark, pytest.mark.programs]

ROLES = {"worker": 2}


LAUNCHED: list[hy.Program] = []


@pytest.fixture(scope="module")
def spark(executors: Any) -> Any:
    return executors


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """A test that fails keeps no slot from the next."""
    yield
    while LAUNCHED:
        LAUNCHED.pop().stop()


def launch(spark: Any, tmp_path: Path, main: Any = programs.who, args: Any = None, **how: Any) -> hy.Program:
    how = {"roles": ROLES, "engine": hy.Spark(spark, workers=2), **how}
    LAUNCHED.append(hy.launch(main, args, directory=tmp_path / "program", **how))
    return LAUNCHED[-1]


def notes(tmp_path: Path, count: int, restart: int = 0) -> dict[str, int]:
    """Task → its process, once there are so many."""
    folder, until = tmp_path / "program" / "notes", time.monotonic() + 60
    while time.monotonic() < until:
        found = {path.name: path.read_text() for path in folder.glob(f"*-{restart}-pid")} if folder.exists() else {}
        if len(found) == count and all(found.values()):
            return {name.removesuffix(f"-{restart}-pid"): int(text) for name, text in found.items()}
        time.sleep(0.02)
    raise AssertionError(f"only {found} came up")


def everyone(program: hy.Program) -> list[int]:
    return [task["agent"] for task in program.summary()["tasks"] if task["agent"]]


def frame(spark: Any, rows: int = 20000, partitions: int = 8) -> Any:
    return spark.range(0, rows, 1, partitions).withColumnRenamed("id", "a")


def slots_are_free(spark: Any) -> bool:
    """Whether a job gets both slots again: tasks of a barrier begin together, or never."""
    return len(spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()) == 2


class TestItsLife:
    def test_each_task_knows_who_it_is(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, roles={"chief": 1, "ps": 1}, until="all")
        assert program.wait(90).status == "completed"
        assert programs.values(program, "rank") == [0, -1]
        assert slots_are_free(spark)

    def test_parameter_servers_beside_the_driver_take_no_slot(self, spark: Any, tmp_path: Path) -> None:
        engine = hy.Spark(spark, workers=4, driver_workers=2)
        program = launch(spark, tmp_path, programs.serves, roles={"worker": 2, "ps": 2}, engine=engine, until="workers")
        assert program.wait(90).status == "completed"
        status = {(task["role"], task["index"]): task["status"] for task in program.summary()["tasks"]}
        assert status == {
            ("worker", 0): "completed",
            ("worker", 1): "completed",
            ("ps", 0): "ended",
            ("ps", 1): "ended",
        }
        assert gone(everyone(program)) and slots_are_free(spark)

    def test_an_idle_program_stops_at_once(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, programs.idle)
        pids = notes(tmp_path, 2)
        program.stop()
        assert program.done  # not so if it gives up
        assert gone([*pids.values(), *everyone(program)])
        assert slots_are_free(spark)

    @pytest.mark.long
    @pytest.mark.parametrize(
        "beside",
        [pytest.param(False, id="executors"), pytest.param(True, id="one beside the driver")],
    )
    def test_a_task_that_takes_too_long_is_ended(self, spark: Any, tmp_path: Path, beside: bool) -> None:
        engine = hy.Spark(spark, workers=3, driver_workers=1) if beside else hy.Spark(spark, workers=2)
        roles = {"worker": 2, "ps": 1} if beside else ROLES
        program = launch(spark, tmp_path, programs.idle, roles=roles, engine=engine, max_time=8.0, grace=0.5)
        with pytest.raises(hy.ProgramFailed, match="max_time=8 "):
            program.wait(120)
        assert program.status == "failed"
        pids = [int(path.read_text() or 0) for path in (tmp_path / "program" / "notes").glob("*-pid")]
        assert gone([*filter(None, pids), *everyone(program)]) and slots_are_free(spark)

    @pytest.mark.long
    def test_a_fed_task_that_takes_too_long_is_ended(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, _never_enough, max_time=15.0, grace=0.5)
        large = spark.range(0, 2_000_000, 1, 8).selectExpr("REPEAT('x', 1000) AS a")  # few fill what may wait
        with pytest.raises(hy.ProgramFailed, match="max_time=15 "):
            program.feed(large)
        assert slots_are_free(spark)

    def test_fewer_slots_than_roles(self, spark: Any, tmp_path: Path) -> None:
        engine = hy.Spark(spark, workers=3, start_timeout=4.0)
        program = launch(spark, tmp_path, roles={"worker": 3}, engine=engine)
        with pytest.raises(hy.ResourceError, match=r"3 processes, .*4 seconds .*slots for 2"):
            program.wait(60)
        assert slots_are_free(spark)


class TestFeeding:
    @pytest.mark.parametrize("kind", ["DataFrame", pytest.param("RDD", marks=pytest.mark.campaign)])
    def test_every_row_comes_once(self, spark: Any, tmp_path: Path, kind: str) -> None:
        program = launch(spark, tmp_path, programs.collects)
        data = frame(spark)
        rows = program.feed(data.rdd.map(tuple) if kind == "RDD" else data, epochs=2)
        assert program.wait(60).status == "completed"
        assert rows == sum(programs.values(program, "rows")) == 40000
        assert sum(programs.values(program, "total")) == 2 * sum(range(20000))
        assert min(programs.values(program, "rows")) > 0

    def test_a_failing_worker_fails_the_feed_with_its_error(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, programs.collects, {"fail_at": 1000})
        with pytest.raises(hy.ProgramFailed, match="ValueError: row of"):
            program.feed(frame(spark, 2_000_000, 8))
        with pytest.raises(hy.ProgramFailed, match="wrong kind"):
            program.wait(30)
        assert slots_are_free(spark)

    def test_a_worker_that_has_enough_does_not_hang_the_job(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, programs.collects, {"enough": 500})
        program.feed(frame(spark, 2_000_000, 8))
        assert program.wait(60).status == "completed"

    def test_a_worker_that_never_reads(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, programs.idle)
        with pytest.raises(hy.HopyardError, match="no row for 2 seconds"):
            program.feed(frame(spark, 100, 2), timeout=2.0)
        program.stop()
        assert slots_are_free(spark)

    @pytest.mark.parametrize("who", ["worker", pytest.param("executor", marks=pytest.mark.campaign)])
    def test_killed_while_it_is_fed(self, spark: Any, tmp_path: Path, who: str) -> None:
        program = launch(spark, tmp_path, _slow, {"kill": who})
        with pytest.raises(hy.ProgramFailed, match=r"worker 1 failed: .*(SIGKILL|lost)"):
            program.feed(frame(spark, 2_000_000, 8))
        assert program.status == "failed"

    @pytest.mark.long
    @pytest.mark.parametrize("who", ["executor", pytest.param("worker", marks=pytest.mark.campaign)])
    def test_a_restart_is_fed_again(self, spark: Any, tmp_path: Path, who: str) -> None:
        program = launch(spark, tmp_path, _slow, {"kill": who, "times": 1}, max_restarts=1)
        program.feed(frame(spark, 20000, 4))
        assert program.wait(60).status == "completed"
        assert program.summary()["restarts"] == 1 and sum(programs.values(program, "rows")) == 20000


class TestInference:
    def test_as_many_answers_as_rows_in_their_order(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, _doubles)
        found = program.infer(frame(spark, 5000, 5), schema="b long").collect()
        assert [row.b for row in found] == [2 * n for n in range(5000)]
        assert program.infer(frame(spark, 10, 2), schema="b long").count() == 10
        program.end_feed("infer")
        assert program.wait(60).status == "completed"

    def test_after_the_program_has_ended(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, _doubles)
        found = program.infer(frame(spark, 10, 2), schema="b long")
        program.stop()
        with pytest.raises(Exception, match=r"ended|over"):
            found.collect()
        with pytest.raises(hy.ProgramFailed, match="the program is over"):
            program.infer(frame(spark, 10, 2), schema="b long")


class TestKills:
    @pytest.mark.parametrize("how", ["kill", "agent"])
    @pytest.mark.parametrize("who", [("worker", 0), ("ps", 0)])
    def test_the_first_cause_is_reported(self, spark: Any, tmp_path: Path, who: tuple[str, int], how: str) -> None:
        args = {"who": who, "how": how}
        program = launch(spark, tmp_path, programs.misbehaves, args, roles={"worker": 1, "ps": 1})
        notes(tmp_path, 2)
        with pytest.raises(hy.ProgramFailed, match=f"{who[0]} 0 failed"):
            program.wait(60)
        assert gone(everyone(program))

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("who", "told"),
        [("executor", r"agent .* was lost"), pytest.param("worker", r"SIGKILL", marks=pytest.mark.campaign)],
    )
    def test_killed_while_it_answers(self, spark: Any, tmp_path: Path, who: str, told: str) -> None:
        program = launch(spark, tmp_path, _doubles, {"kill": who})
        answers = program.infer(frame(spark, 2_000_000, 8), schema="b long")
        with pytest.raises(Exception, match=r"worker [01] .*has ended"):
            answers.collect()
        failed = time.time()
        with pytest.raises(hy.ProgramFailed, match=rf"worker 1 failed: .*{told}") as caught:
            program.wait(60)
        assert caught.value.task == "worker 1"
        assert failed - float((tmp_path / "program" / "notes" / "worker-1-0-killed").read_text()) < 60
        assert gone(everyone(program)) and slots_are_free(spark)

    @pytest.mark.long
    def test_a_frozen_supervisor_is_replaced(self, spark: Any, tmp_path: Path) -> None:
        """Nothing of it answers any more; its executor has the only core that another could get."""
        program = launch(spark, tmp_path, _slow_start, max_restarts=1)
        pids = notes(tmp_path, 2)
        agent = next(task["agent"] for task in program.summary()["tasks"] if task["index"] == 0)
        supervisor = _parent_of(agent)
        for pid in (supervisor, agent):
            os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 180
        while program.summary()["restarts"] == 0 and time.monotonic() < until:
            time.sleep(0.1)
        again = notes(tmp_path, 2, restart=1)
        assert gone([supervisor, agent, *pids.values()]), "the old agent goes on working"
        assert not set(again.values()) & set(pids.values())
        (tmp_path / "program" / "go").touch()
        assert program.wait(60).status == "completed"
        assert program.summary()["restarts"] == 1
        assert slots_are_free(spark)

    @pytest.mark.campaign  # `test_a_restart_is_fed_again` has one killed too
    def test_a_killed_executor_restarts_the_program(self, spark: Any, tmp_path: Path) -> None:
        program = launch(spark, tmp_path, _slow_start, max_restarts=1)
        pids = notes(tmp_path, 2)
        executor = _executor_of(pids["worker-0"])
        os.kill(executor, signal.SIGKILL)
        assert gone([pids["worker-0"]])
        (tmp_path / "program" / "go").touch()
        assert program.wait(90).status == "completed"
        assert program.summary()["restarts"] == 1


def _executor_of(pid: int) -> int:
    while not os.readlink(f"/proc/{pid}/exe").endswith("/java"):
        pid = _parent_of(pid)
    return pid


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _slow_start(args: Any, ctx: Any) -> None:
    import os
    import time

    programs.note(ctx, "pid", str(os.getpid()))
    while not (ctx.directory / "go").exists():
        time.sleep(0.02)


def _doubles(args: Any, ctx: Any) -> None:
    """Answers; where `args` say so worker 1 is killed, or its executor, in the midst of it."""
    import os
    import signal
    import time

    feed, rows = ctx.feed("infer"), 0
    for batch in feed.batches(100):
        feed.answer({"b": batch["a"] * 2})
        rows += len(batch["a"])
        if args and ctx.index == 1 and rows >= 1000:
            programs.note(ctx, "killed", str(time.time()))
            os.kill(os.getpid() if args["kill"] == "worker" else above("java"), signal.SIGKILL)
            time.sleep(60)  # until its supervisor has seen it


def _never_enough(args: Any, ctx: Any) -> None:
    """Takes rows, slowly."""
    import time

    for _ in ctx.feed().batches(100):
        time.sleep(0.1)


def _slow(args: Any, ctx: Any) -> None:
    """Takes rows; worker 1 is killed, or its executor, in the midst of it."""
    import os
    import signal
    import time

    rows, victim = 0, os.getpid() if args["kill"] == "worker" else above("java")
    for batch in ctx.feed().batches(100):
        rows += len(batch["a"])
        if ctx.index == 1 and rows >= 1000 and ctx.restart < args.get("times", 99):
            os.kill(victim, signal.SIGKILL)
            time.sleep(60)  # until its supervisor has seen it
    ctx.report({"rows": rows})


@pytest.mark.long
def test_tensorboard_of_a_program(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logs = str(tmp_path / "logs")
    program = launch(spark, tmp_path, programs.summarizes, logs, tensorboard=logs)
    address, points = programs.page_of(program)
    assert (address, points) == (str(spark.conf.get("spark.driver.host")), programs.SUMMARIES)

"""Runs on real executors: the same bits as elsewhere, whatever is killed, and nothing left behind."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hopyard as hy
from gang_jobs import network
from hopyard.core.runs.events import Dispatch, Durable, Joined, Left
from hopyard.driver.pickling import dump
from hopyard.engines.spark.jobs import _OPEN, explained
from hopyard.engines.supervised import SupervisedAgents
from hopyard.errors import ResourceError
from hopyard.ports.engines import LaunchInfo
from hopyard.spec import Unit
from jobs import (
    CONFIGS,
    agents,
    alive,
    dataset,
    digests,
    driver,
    free_port,
    gone,
    journal,
    losses,
    memory,
    script,
    select,
    troubled,
    until,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(executors: Any) -> Any:
    return executors


@pytest.fixture
def engine(spark: Any) -> hy.Spark:
    return hy.Spark(spark, workers=2)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not memory(tmp_path)


def trouble(folder: Path, what: str, **more: Any) -> list[dict[str, Any]]:
    extra = {"at": 15, "do": what, "once": str(folder / "once"), **more}
    return [{**config, **extra} if n == 1 else config for n, config in enumerate(CONFIGS)]


def beyond_the_safe_step(directory: Path) -> list[Dispatch]:
    """Training that began before a State that was durable by then, with all ends of epochs before it.

    A State that a worker made before another one was lost, and that was stored after it, does not count: its trial may
    have gone back meanwhile.
    """
    durable: dict[int, set[int]] = {}
    newest = lost = 0
    found = []
    for line in journal(directory):
        if isinstance(line, Left):
            lost = newest
        elif isinstance(line, Durable):
            if line.ref.attempt > lost:
                durable.setdefault(line.ref.trial, set()).add(line.ref.step)
        elif isinstance(line, Dispatch):
            newest = max(newest, line.unit.lease)
            steps = durable.get(line.unit.trial, set())
            safe = max((s for s in steps if all(end in steps for end in range(4, s, 4))), default=0)
            if line.unit.kind == "train" and began(line.unit) < safe:
                found.append(line)
    return found


def began(unit: Unit) -> int:
    """Return the step that a unit of training starts from."""
    return unit.start.step if unit.start else 0


def test_the_same_bits_as_local_processes(tmp_path: Path, engine: hy.Spark, undisturbed: list[str]) -> None:
    (folder := tmp_path / "met").mkdir()
    configs = [{**config, "at": 3, "do": f"meet {folder}"} for config in CONFIGS]
    run = select(tmp_path / "spark", troubled, configs, engine=engine)
    assert digests(run) == undisturbed
    assert digests(select(tmp_path / "local", engine=hy.Local(2, devices=None))) == undisturbed
    assert len({line.pid for line in journal(tmp_path / "spark") if isinstance(line, Joined)}) == 2
    assert gone(agents(tmp_path / "spark"))
    assert not losses(tmp_path / "spark")


def noting(config: dict[str, Any]) -> Any:
    """Notes its process and the one above it."""
    Path(config["notes"], f"{os.getpid()} {os.getppid()}").touch()
    return troubled(config)


def test_a_started_engine_holds_no_core_between_its_runs(tmp_path: Path, spark: Any, undisturbed: list[str]) -> None:
    """Executors of one core, all of which the user's job takes; then workers are forks of what has stayed there, while
    Spark holds their cores anew."""
    templates = []
    with hy.Spark(spark, workers=2) as engine:
        for number in range(2):
            notes, met = tmp_path / f"notes-{number}", tmp_path / f"met-{number}"
            for folder in (notes, met):
                folder.mkdir()
            configs = [{**config, "at": 3, "do": f"meet {met}", "notes": str(notes)} for config in CONFIGS]
            run = select(tmp_path / str(number), noting, configs, engine=engine)
            assert digests(run) == undisturbed
            assert gone(agents(tmp_path / str(number)))
            templates.append({int(path.name.split()[1]) for path in notes.iterdir()})
            assert alive([*templates[-1]]) == [*templates[-1]]
            assert spark.sparkContext.parallelize(range(2), 2).map(lambda row: row).count() == 2
    assert templates[0] == templates[1] and len(templates[0]) == 2
    assert gone([*templates[0]])
    assert not losses(tmp_path / "1")


@pytest.mark.parametrize(
    "what", ["kill", *(pytest.param(what, marks=pytest.mark.long) for what in ("task", "executor", "stop"))]
)
def test_whatever_is_killed(tmp_path: Path, engine: hy.Spark, undisturbed: list[str], what: str) -> None:
    """An agent, Spark's Python worker above it, the executor's JVM above that; an agent that is stopped."""
    timeouts = hy.Timeouts(heartbeat_timeout=2.0 if what == "stop" else 15.0)  # a busy machine delays heartbeats too
    run = select(tmp_path / "run", troubled, trouble(tmp_path, what), engine=engine, timeouts=timeouts)
    assert run.status == "completed"
    assert digests(run) == undisturbed
    assert len(losses(tmp_path / "run")) == 1, losses(tmp_path / "run")
    assert gone(agents(tmp_path / "run"))
    assert not beyond_the_safe_step(tmp_path / "run")


def test_a_synchronous_search_gives_the_bits_and_decisions_of_this_process(tmp_path: Path, engine: hy.Spark) -> None:
    stop = hy.ASHA(2, sync=True)
    run = select(tmp_path / "run", stop=stop, exact=True, engine=engine)
    alone = select(tmp_path / "alone", stop=stop, exact=True)
    assert [(t.status, t.reason, t.digest) for t in run.trials] == [
        (t.status, t.reason, t.digest) for t in alone.trials
    ]
    assert [trial.status for trial in run.trials].count("stopped") == 2


@pytest.mark.long
def test_a_worker_lost_five_times(tmp_path: Path, spark: Any) -> None:
    configs = [{"lr": lr, "at": 15, "do": "kill"} for lr in (0.1, 0.03, 0.01, 0.3, 0.2)]
    for number, config in enumerate(configs):
        config["once"] = str(tmp_path / f"once-{number}")
    run = select(tmp_path / "run", troubled, configs, engine=hy.Spark(spark, workers=1))
    assert len(losses(tmp_path / "run")) == 5
    quiet = [{"lr": config["lr"]} for config in configs]
    assert digests(run) == digests(select(tmp_path / "quiet", troubled, quiet))


def test_a_worker_with_nothing_to_do_is_given_back(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, undisturbed: list[str]
) -> None:
    monkeypatch.setattr("hopyard.driver.runs.session.IDLE", 1.0)
    monkeypatch.setattr("hopyard.engines.supervisors.roster.SPARE_SECONDS", 0.2)
    configs = [CONFIGS[0], {**CONFIGS[1], "at": 15, "do": f"wait for {tmp_path / 'given back'}"}]
    run = select(tmp_path / "run", troubled, configs, engine=hy.Spark(spark, workers=2), wait=False)
    end = time.monotonic() + 60
    while not (left := [line for line in journal(tmp_path / "run") if isinstance(line, Left)]):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert spark.range(0, 10, 1, 1).mapInArrow(lambda batches: batches, "id long").count() == 10  # a core is free
    (tmp_path / "given back").touch()
    run.wait()
    assert digests(run) == undisturbed[:2]
    assert len(left) == 1 and left[0].reason == "nothing to do for 1 s: it was given back"
    assert not losses(tmp_path / "run")


def test_others_have_the_cores_of_a_run(tmp_path: Path, spark: Any, undisturbed: list[str]) -> None:
    """Executors of one core: jobs of the user go through beside two workers, of which one is lost, and comes back."""
    go, engine = tmp_path / "go", hy.Spark(spark, workers=2, release_cores=True)
    configs = trouble(tmp_path, "kill")
    configs[0] = {**configs[0], "at": 15, "do": f"wait for {go}"}
    run = select(tmp_path / "run", troubled, configs, engine=engine, wait=False)
    for _ in range(2):
        end = time.monotonic() + 60
        while not (tmp_path / "once").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert spark.range(0, 12, 1, 12).mapInArrow(lambda batches: batches, "id long").count() == 12
    assert run.status == "running"
    go.touch()
    assert digests(run.wait()) == undisturbed
    assert len(losses(tmp_path / "run")) == 1
    assert gone(agents(tmp_path / "run"))


def test_output_of_an_agent_is_in_its_log(tmp_path: Path, engine: hy.Spark) -> None:
    def recipe(config: dict[str, Any]) -> Any:
        print(f"lr is {config['lr']}")
        return troubled(config)

    select(tmp_path / "run", recipe, engine=engine)
    text = "".join(path.read_text() for path in (tmp_path / "run" / "logs").iterdir())
    assert "lr is 0.01" in text


def test_more_workers_than_slots(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hopyard.engines.supervised.FEWER_SECONDS", 0.0)
    configs = [{"lr": 0.1, "at": 2, "do": "sleep"}] * 4
    with caplog.at_level(logging.WARNING):
        run = select(tmp_path / "run", slow, configs, engine=hy.Spark(spark, workers=5))
    assert run.status == "completed"
    (text,) = [record.getMessage() for record in caplog.records if "wait for a slot" in record.getMessage()]
    # said once, as soon as one is there
    assert re.search(r"workers up: (2; 3|1; 4) wait for a slot of Spark: more executors \(spark\.exec", text)
    end = time.monotonic() + 60  # Spark tells of the end of a job some time after it
    while (left := spark.sparkContext.statusTracker().getActiveJobsIds()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left  # those that waited are gone too


def slow(config: dict[str, Any]) -> Any:
    time.sleep(0.5)
    return troubled({"lr": config["lr"]})


def test_no_slot_at_all(tmp_path: Path, spark: Any) -> None:
    """A job of the user's has both cores."""
    (folder := tmp_path / "busy").mkdir()
    over = folder / "over"

    def busy(batches: Any) -> Any:
        (folder / str(os.getpid())).touch()
        while not over.exists():
            time.sleep(0.05)
        yield from batches

    def work() -> None:
        spark.range(0, 2, 1, 2).mapInArrow(busy, "id long").collect()

    job = threading.Thread(target=work)
    job.start()
    try:
        end = time.monotonic() + 60
        while len(list(folder.iterdir())) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        with pytest.raises(hy.ResourceError, match=r"Spark gave no slot within 1 seconds .*spark\.task\.cpus"):
            select(tmp_path / "run", engine=hy.Spark(spark, workers=1, start_timeout=1.0))
    finally:
        over.touch()
        job.join(60)


def test_the_run_that_holds_the_slots_is_named(tmp_path: Path, spark: Any) -> None:
    """Bug: a program whose feed had failed held all slots, and nothing said so."""
    engine = hy.Spark(spark, workers=2)
    program = hy.launch(
        lambda args, ctx: list(ctx.feed().rows(1)), roles={"worker": 2}, engine=engine, directory=tmp_path / "p"
    )
    with pytest.raises(Exception, match=r"no_such"):
        program.feed(spark.range(8).selectExpr("no_such + 1"))
    assert program in hy.Program.running()
    until = time.monotonic() + 60
    while len(program.summary()["tasks"]) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(hy.ResourceError, match=rf"those of {tmp_path}/p/logs hold 2: .*Program\.running\(\)"):
        select(tmp_path / "run", engine=hy.Spark(spark, workers=1, start_timeout=1.0))
    program.stop()
    select(tmp_path / "again", engine=engine)


def test_a_run_waits_for_those_of_its_process(
    tmp_path: Path,
    spark: Any,
    undisturbed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bug: it was given up after start_timeout, though a run of the same process had the slots and would end."""
    hours = [0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours[0])
    monkeypatch.setattr("hopyard.engines.supervised.time", clock)
    first = trouble(tmp_path, f"wait for {tmp_path / 'file'}")
    runs = [select(tmp_path / "first", troubled, first, engine=hy.Spark(spark, workers=2), wait=False)]
    until((tmp_path / "once").exists)
    until(lambda: sum(isinstance(line, Joined) for line in journal(tmp_path / "first")) == 2)
    with caplog.at_level(logging.WARNING, "hopyard.engines.supervised"):
        runs += [select(tmp_path / name, engine=hy.Spark(spark, workers=2), wait=False) for name in ("second", "third")]
        until(lambda: len(_OPEN) == 3)
        hours[0] = 1
        until(lambda: caplog.text.count(f"those of {tmp_path}/first/logs hold 2") == 2)
    assert [run.status for run in runs] == ["running"] * 3
    (tmp_path / "file").touch()
    for run in runs:
        assert digests(run.wait()) == undisturbed


@pytest.mark.long
def test_gangs_of_two_runs_do_not_wait_for_each_other(tmp_path: Path, spark: Any) -> None:
    """Bug: each had one of the two slots that both need."""
    runs = [
        hy.fit(
            network,
            {"lr": 0.05},
            dataset(),
            epochs=2,
            engine=hy.Spark(spark, workers=2),
            parallel=hy.AllReduce(),
            directory=tmp_path / str(number),
            wait=False,
        )
        for number in range(3)
    ]
    first, *others = [digests(run.wait()) for run in runs]
    assert others == [first] * 2


def test_executors_that_cannot_reach_the_driver(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(hy.ResourceError, match=r"cannot reach .*nobody\.invalid:\d+ .*hy\.Spark\(address="):
        select(tmp_path / "run", engine=hy.Spark(spark, workers=1, address="nobody.invalid"))


def test_another_python_on_the_executors(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.9")  # what Spark says of this process to its workers
    said = r"executors run another Python than this process: .*3\.11.*3\.9.*Set PYSPARK_PYTHON"
    said = said.replace("3\\.11", rf"{sys.version_info.major}\.{sys.version_info.minor}")
    with pytest.raises(hy.ResourceError, match=said) as caught:
        select(tmp_path / "run", engine=hy.Spark(spark, workers=1))
    assert caught.value.exit_code == 4


def test_executors_whose_python_lacks_hopyard(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver's environment is not activated, and PYSPARK_PYTHON not set."""
    import pyspark

    bare = tmp_path / "python"
    parts = ":".join(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={parts} exec {sys.executable} -S -m pyspark.daemon "$3"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(hy.ResourceError, match="executors' Python") as caught:
        select(tmp_path / "run", engine=hy.Spark(spark, workers=1))
    for words in (f"which is {str(bare)!r}", "PYSPARK_PYTHON", "not activated", f"for example {sys.executable}"):
        assert words in str(caught.value)


def test_a_port_of_its_own(tmp_path: Path, spark: Any, undisturbed: list[str]) -> None:
    port = free_port()
    assert digests(select(tmp_path / "run", engine=hy.Spark(spark, workers=2, port=port))) == undisturbed
    with socket.create_server(("127.0.0.1", port)), pytest.raises(hy.ResourceError, match=f"port {port} on 127.0.0.1"):
        select(tmp_path / "again", engine=hy.Spark(spark, workers=2, port=port))


def test_a_pickle_of_it_leaves_the_session_and_values_of_env_behind(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    engine = hy.Spark(spark, workers=3, env={"A": "b"}, threads=2, address="here", port=7, start_timeout=3.0)
    assert cloudpickle.loads(dump(engine, "engine")).env.missing == ("A",)
    monkeypatch.setenv("A", "c")
    copy = cloudpickle.loads(dump(engine, "engine"))
    assert copy.session is None
    assert (copy.workers, copy.env, copy.threads, copy.address, copy.port, copy.start_timeout) == (
        3,
        {"A": "c"},
        2,
        "here",
        7,
        3.0,
    )


def test_keys_are_in_no_plan_and_no_repr(spark: Any) -> None:
    from hopyard.engines.spark.task import supervise
    from hopyard.engines.supervisors.messages import Prepare
    from hopyard.engines.supervisors.ticket import Ticket

    prepare = Prepare('{"secret_key": "the secret"}', 1, {"PASSWORD": "x"})
    ticket = Ticket("127.0.0.1", 1, "the token", prepare)
    frame = spark.range(0, 1, 1, 1).mapInArrow(supervise(ticket), "host string")
    plan = frame._jdf.queryExecution().toString()
    assert "hopyard_slot" in plan
    for text in (plan, repr(ticket), repr(prepare)):
        assert "the secret" not in text and "the token" not in text and "PASSWORD" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, r"Spark\(workers=\) must be .*, got 0"),
        ({"workers": 1, "threads": True}, r"Spark\(threads=\) must be .*, got True"),
        ({"workers": 1, "port": 65534}, r"Spark\(port=\) must be .*, got 65534"),
        ({"workers": 1, "address": ""}, r"Spark\(address=\) must be .*, got ''"),
        ({"workers": 1, "env": {"A": 1}}, r"Spark\(env=\)\['A'\], of type int"),
        ({"workers": 1, "start_timeout": 0}, r"Spark\(start_timeout=\) must be .*, got 0"),
    ],
)
def test_values_that_are_not_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(hy.SpecError, match=message):
        hy.Spark(None, **arguments)


def test_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(hy.SpecError, match=r"no active Spark session; .*hy\.resume\(directory, engine=hy\.Spark"):
        hy.Spark(None, workers=1).endpoint  # noqa: B018
    with pytest.raises(hy.SpecError, match=r"Spark\(…\) must be given a SparkSession, got str"):
        hy.Spark("local", workers=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
         r"another Python than this process: \[PYTHON_VERSION_MISMATCH\] .*Set PYSPARK_PYTHON"),
        ("E\nModuleNotFoundError: No module named 'hopyard'", "Hopyard is not installed in the executors' Python"),
        ('java.io.IOException: Cannot run program "python9": error=2', "executors cannot start Python"),
        ("Failed to connect to worker-7/10.0.0.7:7337 Connection refused", "^$"),
    ],
)  # fmt: skip
def test_errors_of_spark_in_our_words(text: str, said: str) -> None:
    assert re.search(said, explained(text))


HEAD = """
import os
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from light_java import warm_settings
builder = SparkSession.builder.master("local-cluster[1,2,1024]")
for name, value in {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
                    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
                    **warm_settings()}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
"""


def processes(session: int) -> list[int]:
    """What runs in the session of a driver, itself too."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.campaign)])
def test_the_driver_is_killed(tmp_path: Path, spark: Any, undisturbed: list[str], name: str) -> None:
    once = tmp_path / "once"
    body = f"select(Path('run'), troubled, {trouble(tmp_path, 'hang')!r}, engine=hy.Spark(spark, workers=2))\n"
    process = driver([str(script(tmp_path / "job.py", HEAD + body))], tmp_path)
    end = time.monotonic() + 90
    while not once.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert once.exists(), process.communicate(timeout=5)
    os.kill(process.pid, getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if name == "SIGKILL" else -2), err
    assert gone(agents(tmp_path / "run"))
    assert agents(tmp_path / "run")
    end = time.monotonic() + 60  # Spark's own processes
    while (left := processes(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
    run = hy.resume(tmp_path / "run")  # in the session that is active here
    assert digests(run) == undisturbed
    assert not beyond_the_safe_step(tmp_path / "run")


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class Bare:
    """A agents of two agents that dial nobody, and where they are."""

    def __init__(self, spark: Any, folder: Path) -> None:
        keys = dict.fromkeys(("server_key", "public_key", "secret_key"), "0" * 40)
        card = json.dumps({"slot": 0, "address": "tcp://127.0.0.1:9", **keys}).encode()
        self.spark = spark
        agents = hy.Spark(spark, workers=2).open(LaunchInfo(lambda slot: card, lambda slot: folder / f"{slot}.log"))
        assert isinstance(agents, SupervisedAgents)
        self.agents = agents
        self.supervisors = self.agents._supervisors
        for slot in (0, 1):
            self.agents.start(slot)
        self.executor: dict[int, int] = {}
        self.worker: dict[int, int] = {}
        self.supervisor: dict[int, int] = {}
        self.agent: dict[int, int] = {}
        for slot in (0, 1):
            self.find(slot)

    def find(self, slot: int) -> None:
        supervisor = until(lambda: self.supervisors._roster.of(slot))
        self.executor[slot] = int(supervisor.executor.rpartition("-")[2])
        self.agent[slot] = until(lambda: self._agent_below(self.executor[slot]))
        self.supervisor[slot] = parent(self.agent[slot])
        self.worker[slot] = parent(self.supervisor[slot])

    @staticmethod
    def _agent_below(top: int) -> int:
        level = [top]
        while level:
            below = []
            for pid in level:
                for file in Path(f"/proc/{pid}/task").glob("*/children"):
                    try:
                        below += [int(child) for child in file.read_text().split()]
                    except (FileNotFoundError, ProcessLookupError):
                        continue
            level = alive(below)
            for pid in level:
                if b"hopyard.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return 0

    def held(self) -> int:
        """Tasks that run now."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)

    def jobs(self) -> int:
        return len(self.spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.fixture
def bare(tmp_path: Path, spark: Any) -> Iterator[Bare]:
    made = Bare(spark, tmp_path)
    yield made
    made.agents.close()
    assert gone([*made.agent.values(), *made.supervisor.values()])
    until(lambda: not made.jobs())


def test_jobs_step_aside_and_come_back(bare: Bare, spark: Any) -> None:
    """Executors of one core: a job of twelve tasks beside two agents."""
    assert len(set(bare.executor.values())) == 2

    def of_the_user() -> int:
        return int(spark.range(0, 12, 1, 12).mapInArrow(lambda batches: batches, "id long").count())

    for _ in range(2):
        bare.agents.release_cores([0, 1])
        until(lambda: not bare.jobs())  # what Spark tells of jobs is a moment late
        bare.agents.release_cores([0, 1])
        assert of_the_user() == 12
        assert len(alive([*bare.agent.values(), *bare.supervisor.values()])) == 4
        bare.agents.reacquire_cores()
        bare.agents.reacquire_cores()
        until(lambda: bare.held() == 2)
        assert bare.jobs() == 2
    found: list[int] = []
    job = threading.Thread(target=lambda: found.append(of_the_user()))
    job.start()
    job.join(1.0)
    assert not found
    bare.agents.release_cores([1])
    job.join(60)
    assert found == [12]
    assert bare.jobs() == 1
    assert bare.agents.lost() == []
    assert len(alive(list(bare.agent.values()))) == 2


@pytest.mark.parametrize(
    ("aside", "what"),
    [
        pytest.param(False, "executor", marks=pytest.mark.campaign),  # a run loses one too
        (True, "supervisor"),
        (True, "worker"),
        *(pytest.param(False, what, marks=pytest.mark.long) for what in ("agent", "supervisor", "worker")),
        *(pytest.param(True, what, marks=pytest.mark.long) for what in ("agent", "executor")),
    ],
)
def test_killing_processes_beside_a_bare_agent(bare: Bare, what: str, aside: bool) -> None:
    if aside:
        bare.agents.release_cores([0, 1])
    os.kill(getattr(bare, what)[1], signal.SIGKILL)
    if aside and what == "worker":
        time.sleep(0.5)
        assert alive([bare.agent[1], bare.supervisor[1]]) == [bare.agent[1], bare.supervisor[1]]
        assert bare.agents.lost() == []
        return
    ((slot, reason),) = until(bare.agents.lost)
    assert slot == 1
    assert ("was killed by SIGKILL" if what == "agent" else " ended") in reason
    assert ("dynamic allocation" in reason) == (aside and what == "executor")
    assert gone([bare.agent[1]])
    bare.agents.start(1)
    bare.find(1)
    if aside:
        until(lambda: not bare.jobs())
        assert alive([bare.agent[1]])
        bare.agents.reacquire_cores()
    until(lambda: bare.held() == 2)
    assert bare.agents.lost() == []


def test_a_task_that_does_not_step_aside(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.spark.jobs.RELEASE_SECONDS", 0.3)
    os.kill(bare.worker[1], signal.SIGSTOP)
    try:
        with pytest.raises(ResourceError, match=r"slots (0, )?1: Spark did not"):
            bare.agents.release_cores([0, 1])
    finally:
        os.kill(bare.worker[1], signal.SIGCONT)
    until(lambda: not bare.jobs())
    monkeypatch.undo()
    bare.agents.release_cores([0, 1])


def test_jobs_that_wait_for_a_slot_are_not_waited_for(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    bare.agents.start(2)
    until(lambda: bare.jobs() == 3)
    monkeypatch.setattr("hopyard.engines.spark.jobs.RELEASE_SECONDS", 3600.0)  # longer than a test may take
    bare.agents.close()
    until(lambda: not bare.jobs())


def test_places_that_are_given_back_are_free_for_others(bare: Bare, spark: Any) -> None:
    bare.agents.start(2)  # there is no core for it
    until(lambda: bare.jobs() == 3)
    assert bare.agents.waiting() == 1
    bare.agents.give_back([0, 2])
    until(lambda: bare.jobs() == 1)
    assert gone([bare.agent[0], bare.supervisor[0]])
    assert spark.range(0, 4, 1, 2).count() == 4  # beside the agent that stays
    assert alive([bare.agent[1]]) and bare.agents.lost() == [] and bare.agents.waiting() == 0
    bare.agents.start(0)
    bare.find(0)
    assert bare.agents.lost() == []

"""Started engines with agents on hosts and executors: supervisors and templates outlive a run, nothing else does."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hopyard as hy
from hopyard.engines.spark import jobs as spark_jobs
from hopyard.engines.supervised import Warm
from hopyard.engines.supervisors import host, pool, roster
from hopyard.engines.supervisors.messages import (
    AgentBegan,
    AgentEnded,
    EndAgent,
    EndTask,
    Free,
    HostWarning,
    Leave,
    Prepare,
    Printed,
    Start,
)
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import Holder, attend, dial
from hopyard.engines.supervisors.ticket import Ticket, new, write
from hopyard.engines.templates import Templates
from hopyard.ports.engines import LaunchInfo
from hosts import played_ssh
from jobs import (
    CONFIGS,
    alive,
    digests,
    driver,
    free_port,
    gone,
    linear,
    losses,
    script,
    select,
    troubled,
    until,
)
from played_spark import Session
from played_supervisors import CARD, TOKEN, Played, agents_of, parent

FIRST, SECOND = Prepare("{}", 1, {}, (), True), Prepare("{}", 2, {}, (), True)


# ------------------------------------------------------------------------------------------ places


class Places:
    """Note what is done to them."""

    def __init__(self, lasting: bool) -> None:
        self.supervisors: Any = SimpleNamespace(lasting=lasting)
        self.usable, self.events = True, list[str]()

    def rest(self) -> None:
        self.events.append("rest")

    def close(self) -> None:
        self.events.append("close")


def renew(places: Any) -> None:
    places.events.append("renew")


def test_places_go_from_one_run_to_the_next() -> None:
    warm: Any = Warm()
    cold = warm.take(Places, renew)
    assert not cold.supervisors.lasting
    warm.give_back(cold)
    assert cold.events == ["close"]
    warm.start()
    first = warm.take(Places, renew)
    other = warm.take(Places, renew)  # of a run at the same time
    assert first.supervisors.lasting and other is not first
    warm.give_back(first)
    warm.give_back(other)
    assert other.events == ["close"]
    assert warm.take(Places, renew) is first and first.events == ["rest", "renew"]
    warm.give_back(first)
    first.usable = False
    assert warm.take(Places, renew) is not first and first.events[-1] == "close"
    last = warm.take(Places, renew)
    warm.give_back(last)
    warm.stop()
    assert last.events == ["rest", "close"] and not warm.started


def test_a_run_that_goes_on_when_its_engine_is_stopped_ends_its_places(caplog: pytest.LogCaptureFixture) -> None:
    warm: Any = Warm()
    warm.start()
    places = warm.take(Places, renew)
    with caplog.at_level(logging.WARNING):
        warm.stop()
    assert places.events == []
    said = "the engine was stopped, and a run of it will go on: its workers stay, and end with it"
    assert [record.getMessage() for record in caplog.records] == [said]
    warm.give_back(places)
    assert places.events == ["close"]
    warm.start()
    warm.stop()
    assert len(caplog.records) == 1


def test_slow_closing_placements_are_not_waited_for() -> None:
    """Bug: a run that began meanwhile did."""
    closing, may_end = threading.Event(), threading.Event()

    class Slow(Places):
        def close(self) -> None:
            closing.set()
            assert may_end.wait(20)
            super().close()

    warm: Any = Warm()
    warm.start()
    slow = warm.take(Slow, renew)
    warm.give_back(slow)
    thread = threading.Thread(target=warm.stop)
    thread.start()
    assert closing.wait(20)
    assert warm.take(Places, renew).events == [] and thread.is_alive()
    may_end.set()
    thread.join(20)
    assert slow.events == ["rest", "close"]


def test_in_a_fork_of_its_process_a_with_block_stops_an_engine_too() -> None:
    """Bug: it went on for ever there."""
    engine = hy.Local(1)
    standby = Templates()
    object.__setattr__(engine, "_standby", standby)
    standby.begin_run()
    with engine:
        standby._process += 1  # as it is in a fork
        assert not standby.started
        standby.end_run()  # that of the other process
        with engine:
            assert standby.started and standby._run_count == 0
        assert not standby.started


def test_a_copy_is_not_started_and_the_outermost_with_stops_an_engine() -> None:
    for engine in (hy.Hosts(["a:1"]), hy.Spark(Session(1), workers=1)):
        with engine:
            with engine:
                pass
            assert engine._standby.started
            copies = [copy.copy(engine), *([] if engine.name == "spark" else [copy.deepcopy(engine)])]
            assert not any(other._standby.started for other in (*copies, pickle.loads(pickle.dumps(engine))))
        assert not engine._standby.started


# ------------------------------------------------------------------------------------------ the driver's side


def lasting(folder: Path, *, keep_idle: bool) -> Supervisors:
    logs = lambda slot: folder / f"{slot}.log"  # noqa: E731
    return Supervisors("127.0.0.1", 0, TOKEN, logs, prepare=FIRST, keep_idle=keep_idle, lasting=True)


@pytest.fixture(params=[True, False], ids=["hosts", "spark"])
def supervisors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisors]:
    made = lasting(tmp_path, keep_idle=request.param)
    yield made
    Played.all_leave()
    made.close()


def rests(supervisors: Supervisors, *played: Played, seconds: float = 60.0) -> None:
    """End a run, in whose course these have an agent."""
    thread = threading.Thread(target=supervisors.rest)
    thread.start()
    for each in played:
        order = each.hear()
        assert isinstance(order, EndAgent)
        each.say(Printed(order.slot, "its last words\n"))
        each.say(Free(order.slot))
    thread.join(seconds)
    assert not thread.is_alive()


def test_supervisors_stand_by_for_the_next_run(supervisors: Supervisors, tmp_path: Path) -> None:
    """On Spark without their tasks, which others of the next run hold for them."""
    on_spark = not supervisors._roster._keep_idle
    supervisors.start(0)
    one = Played(supervisors, 1)
    assert (one.hear(), one.hear()) == (FIRST, Start(0))
    rests(supervisors, one)
    assert (tmp_path / "0.log").read_text() == "its last words\n"
    assert supervisors.usable and (not on_spark or one.hear() == EndTask())
    (tmp_path / "second").mkdir()
    supervisors.renew(lambda slot: tmp_path / "second" / f"{slot}.log", SECOND)
    supervisors.start(7)
    assert (one.hear(), one.hear()) == (SECOND, Start(7))
    one.say(Printed(7, "anew\n"))
    until(lambda: (tmp_path / "second" / "7.log").exists())
    if on_spark:
        assert supervisors.due == 1
        holder = Played(supervisors, 2)
        assert holder.hear() == SECOND
        one.say(AgentEnded(7, "it was killed"))
        assert until(supervisors.lost) == [(7, "it was killed")]
        supervisors.start(7)
        assert one.hear() == Start(7), "it is the one that has a template"
        rests(supervisors, one)
        assert holder.hear() == Leave()
    else:
        rests(supervisors, one)
    supervisors.dismiss()
    assert one.hear() == Leave()


@pytest.fixture
def on_spark(tmp_path: Path) -> Iterator[Supervisors]:
    made = lasting(tmp_path, keep_idle=False)
    yield made
    Played.all_leave()
    made.close()


def test_a_supervisor_that_nobody_needs_stays_without_its_task(
    on_spark: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_spark.start(0)
    one, other = Played(on_spark, 1), Played(on_spark, 2)
    assert (one.hear(), one.hear(), other.hear()) == (FIRST, Start(0), FIRST)
    on_spark.end(0)
    assert one.hear() == EndAgent(0)
    one.say(Free(0))
    until(lambda: not any(each.ending for each in on_spark._roster.supervisors.values()))
    monkeypatch.setattr(roster, "SPARE_SECONDS", -1.0)
    assert on_spark.lost() == [] and on_spark.due == 0
    assert one.hear() == EndTask() and other.hear() == Leave()
    on_spark.start(0)
    assert one.hear() == Start(0)


def test_others_keep_the_cores_that_they_have_for_good(on_spark: Supervisors) -> None:
    on_spark.start(0)
    one = Played(on_spark, 1)
    assert (one.hear(), one.hear()) == (FIRST, Start(0))
    assert on_spark.release_cores([0]) == {1: 0}
    assert one.hear() == EndTask()
    ended = threading.Thread(target=on_spark.rest, args=([0],))
    ended.start()
    assert one.hear() == EndAgent(0)
    one.say(Free(0))
    ended.join(60)
    on_spark.renew(lambda slot: Path(), SECOND)
    on_spark.start(0)
    assert (one.hear(), one.hear()) == (SECOND, Start(0))
    assert on_spark.due == 0


def test_jobs_that_do_not_end_have_no_part_in_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the next run asked Spark for so many tasks fewer."""
    for name in ("COMING_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(spark_jobs, name, 0.0)
    session, launch = Session(0), LaunchInfo(lambda slot: CARD.encode(), lambda slot: tmp_path / "log")
    supervisors = lasting(tmp_path, keep_idle=False)
    jobs = spark_jobs.Jobs(session, 0, supervisors, Ticket("127.0.0.1", supervisors.port, TOKEN))
    jobs.begin(launch)
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "cancelJobsWithTag", lambda tag: None)
        jobs.supervisors.start(0)
        jobs.submit()
        tag = jobs._tag
        jobs.rest()
    jobs.begin(launch)
    supervisors.renew(launch.log, SECOND)
    jobs.supervisors.start(0)
    jobs.submit()
    assert set(jobs._jobs) == {2} and jobs._cancelled == {1}
    session.sparkContext.cancelJobsWithTag(tag)
    until(lambda: not jobs._cancelled)
    assert set(jobs._jobs) == {2}
    jobs.close()
    until(lambda: not jobs._jobs)


def test_a_supervisor_that_comes_between_two_runs(supervisors: Supervisors) -> None:
    """A task would hold a core that others may want."""
    supervisors.rest()
    late = Played(supervisors, 1)
    if not supervisors._roster._keep_idle:
        assert late.hear() == Leave()
        return
    until(lambda: supervisors.admitted_count)
    supervisors.renew(lambda slot: Path(), SECOND)
    assert late.hear() == SECOND


def test_a_supervisor_that_does_not_end_its_agent_has_no_part_in_the_next_run(
    supervisors: Supervisors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CLOSE_SECONDS", 0.05)
    supervisors.start(0)
    one = Played(supervisors, 1)
    assert (one.hear(), one.hear()) == (FIRST, Start(0))
    supervisors.rest()
    assert supervisors.abandoned() == {1}
    supervisors.renew(lambda slot: tmp_path / "second.log", SECOND)
    assert supervisors.admitted_count == 0
    supervisors.start(0)
    one.say(Printed(0, "of the first run\n"))
    other = Played(supervisors, 2)
    assert (other.hear(), other.hear()) == (SECOND, Start(0))
    other.say(Printed(0, "of the second\n"))
    until(lambda: (tmp_path / "second.log").exists())
    assert (tmp_path / "second.log").read_text() == "of the second\n"


def test_a_slot_waits_while_its_template_imports(supervisors: Supervisors) -> None:
    """Else its silence would count against it."""
    supervisors.start(0)
    one = Played(supervisors, 1)
    assert (one.hear(), one.hear()) == (FIRST, Start(0))
    assert supervisors.waits(0) and not supervisors.missing
    one.say(AgentBegan(0))
    until(lambda: not supervisors.waits(0))


def test_a_supervisor_that_never_says_that_its_agent_began_is_given_up(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: one that was frozen meanwhile kept its slot waiting for ever. Its slot is lost, and the next one goes to
    another supervisor."""
    supervisors.start(0)
    one = Played(supervisors, 1)
    assert (one.hear(), one.hear()) == (FIRST, Start(0))
    assert supervisors.lost() == [] and supervisors.waits(0)
    with monkeypatch.context() as patch:
        patch.setattr(roster, "BEGIN_SECONDS", -1.0)
        ((slot, reason),) = supervisors.lost()
    assert slot == 0 and re.fullmatch(r"its supervisor on there has not started it for \d+ seconds", reason)
    assert supervisors.abandoned() == {1} and not supervisors.waits(0) and one.hear() == Leave()
    supervisors.start(0)
    other = Played(supervisors, 2)
    assert other.hear() == FIRST and supervisors.waits(0), "the first one may still start an agent of that name"
    one.leave()
    assert other.hear() == Start(0)


def test_a_place_is_not_lost_whose_agents_could_not_reach_the_driver_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a supervisor on a host left for good then."""
    monkeypatch.setattr(host, "AGAIN_SECONDS", 0.005)
    driver_side = lasting(tmp_path, keep_idle=True)
    task, its = socket.socketpair()
    words: tuple[Any, ...] = Ticket("127.0.0.1", driver_side.port, TOKEN), [], its, os.getpid()
    thread = threading.Thread(target=host.supervise, args=words, kwargs={"standing": False})
    with its, task, socket.create_server(("127.0.0.1", 0)) as port:
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        driver_side.renew(lambda slot: tmp_path / "log", Prepare(CARD, 1, {}, (), False))  # where nobody answers
        thread.start()
        until(lambda: driver_side.admitted_count >= 2)
        driver_side.renew(lambda slot: tmp_path / "log", Prepare(json.dumps({"address": address}), 1, {}, (), False))
        port.settimeout(20)
        port.accept()[0].close()
        until(lambda: len(driver_side._roster.supervisors) == 1)
        driver_side.close()
        thread.join(60)
    assert not thread.is_alive()


def test_warnings_of_hosts_are_logged_once(supervisors: Supervisors, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for job in (1, 2):
            Played(supervisors, job).say(HostWarning("workers are not forked\x1b[2J"))
        until(lambda: supervisors.admitted_count == 2)
        until(lambda: "not forked" in caplog.text)
    assert caplog.text.count(r"there: workers are not forked\x1b[2J") == 1


# ------------------------------------------------------------------------------------------ agents

CARDS = LaunchInfo(lambda slot: CARD.encode(), lambda slot: Path("no log"))


def test_a_session_that_was_stopped_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(1)
    with hy.Spark(session, workers=1, address="127.0.0.1") as engine:
        monkeypatch.setattr(session.sparkContext, "isStopped", lambda: True)
        with pytest.raises(hy.SpecError, match=r"session was stopped"):
            engine.open(CARDS)


@pytest.mark.parametrize("way", ["spark", "hosts"])
def test_a_run_without_any_worker_says_once_what_it_waits_for(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: nothing for two minutes."""
    monkeypatch.setattr("hopyard.engines.supervised.NONE_SECONDS", -1.0)
    monkeypatch.setattr(spark_jobs, "COMING_SECONDS", 0.0)
    write(tmp_path / "ticket", new("127.0.0.1", free_port()))
    engine: Any = hy.Spark(Session(0), workers=1, address="127.0.0.1")
    if way == "hosts":
        engine = hy.Hosts(join=tmp_path / "ticket", workers=1)
    agents = engine.open(CARDS)
    agents.start(0)
    with caplog.at_level(logging.WARNING):
        assert agents.lost() == agents.lost() == []
    agents.close()
    (record,) = caplog.records
    said = {
        "spark": r"Spark gave no slot yet; 120 seconds are waited \(Spark\(start_timeout=…\)\): it has no .*",
        "hosts": r"no host has joined yet; 120 seconds .*\): run `hopyard agent --join .*ticket` on each.*",
    }
    assert re.fullmatch(said[way], record.getMessage())


# ------------------------------------------------------------------------------------------ a supervisor


@pytest.mark.slow
def test_a_template_for_each_environment_and_none_that_is_unsafe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real supervisor in a thread, with agents that dial nobody."""
    monkeypatch.setattr("hopyard.engines.supervisors.supervisor._AgentRunner._reach", lambda self, prepare: None)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, threading, time\n"
        "if 'template' in sys.orig_argv and 'MKL_TROUBLE' in os.environ:\n"
        "    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environments: list[dict[str, str]] = [{}, {"KERAS_BACKEND": "jax"}, {}, {"MKL_TROUBLE": "1"}]
    driver_side = lasting(tmp_path, keep_idle=True)
    ticket = Ticket("127.0.0.1", driver_side.port, TOKEN)
    task, its = socket.socketpair()
    holder = Holder(os.getpid(), its, "parent process", "parent process")
    thread = threading.Thread(target=attend, args=(ticket, dial(ticket), holder, []))
    thread.start()
    parents, agents, before = [], list[int](), set(agents_of(os.getpid()))
    with task, caplog.at_level(logging.WARNING):
        for number, env in enumerate(environments):
            driver_side.renew(lambda slot: tmp_path / "log", Prepare(CARD, 1, env, (), True))
            driver_side.start(number)
            until(lambda: not driver_side.waits(number))  # noqa: B023
            agents += until(lambda: set(agents_of(os.getpid())) - {*before, *agents})  # noqa: B023
            parents.append(parent(agents[-1]))
            driver_side.rest()
            assert not alive(agents)
        assert parents[0] == parents[2] != parents[1]
        assert parents[3] == os.getpid()
        assert caplog.text.count("each imports it: threads are left by what was imported") == 1
        driver_side.close()
    thread.join(60)
    assert not thread.is_alive() and not alive([pid for pid in parents if pid != os.getpid()])


# ------------------------------------------------------------------------------------------ runs


def noting(config: dict[str, Any]) -> Any:
    """Notes its process, the template of which that is a fork, and the supervisor above it."""
    me, above = os.getpid(), os.getppid()
    supervisor = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
    Path(config["notes"], str(me)).write_text(f"{me} {above} {supervisor}")
    return troubled(config) if "do" in config else linear(config)


class Place:
    """An engine that was started, and what is below it."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.folder = way, folder
        self.standing: subprocess.Popen[bytes] | None = None
        self.session: Session | None = None
        self.engine: Any
        if way == "task":
            self.session = Session(2)
            self.engine = hy.Spark(self.session, workers=2, address="127.0.0.1")
        elif way == "login":
            self.engine = hy.Hosts(["a:1", "b:1"], ssh=played_ssh(folder), devices=None)
        else:
            write(folder / "ticket", new("127.0.0.1", free_port()))
            words = ["-P", "-m", "hopyard", "agent", "--join", str(folder / "ticket"), "--slots", "2"]
            self.standing = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
            self.engine = hy.Hosts(join=folder / "ticket", workers=2)
        self.number = 0

    def run(self, **trouble: Any) -> tuple[list[str], list[list[int]]]:
        """Return the digests of one more run, and (agent, template, supervisor) of each of its agents."""
        self.number += 1
        notes = self.folder / f"notes-{self.number}"
        notes.mkdir()
        configs = [{**config, "notes": str(notes)} for config in CONFIGS]
        configs[1] |= trouble
        (met := self.folder / f"met-{self.number}").mkdir()
        if not trouble:
            for config in configs:
                config |= {"at": 3, "do": f"meet {met}"}
        run = select(self.directory, noting, configs, engine=self.engine)
        return digests(run), [[int(word) for word in path.read_text().split()] for path in notes.iterdir()]

    @property
    def directory(self) -> Path:
        return self.folder / f"run-{self.number}"

    def close(self) -> None:
        self.engine.stop()
        if self.standing is not None:
            self.standing.kill()
            self.standing.wait()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return digests(select(tmp_path_factory.mktemp("expected") / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["task", "login", pytest.param("by hand", marks=pytest.mark.long)])
def test_two_runs_share_templates(tmp_path: Path, way: str, expected: list[str]) -> None:
    """Workers of the second run, and those that take the place of one that was killed, are forks of the templates of
    the first. One that is killed with its supervisor and template comes from others. Nothing stays after `stop`."""
    place = Place(way, tmp_path)
    try:
        with place.engine:
            found, first = place.run()
            assert found == expected
            templates = {template for _, template, _ in first}
            supervisors = {supervisor for *_, supervisor in first}
            assert len(templates) == len(supervisors) == 2
            assert not alive([agent for agent, *_ in first]) and alive([*templates]) == [*templates]
            if place.session is not None:  # all cores are free
                place.session.sparkContext.wait_for_tasks()
                assert [task.poll() for task in place.session.sparkContext.tasks] == [0, 0]

            found, second = place.run(at=15, do="kill", once=str(tmp_path / "once"))
            assert found == expected
            assert {template for _, template, _ in second} <= templates
            assert not {agent for agent, *_ in first} & {agent for agent, *_ in second}
            (reason,) = losses(place.directory)
            assert reason.endswith("was killed by SIGKILL") and "forked" not in reason

            victim = min(supervisors)
            os.kill(victim, signal.SIGKILL)
            (orphan,) = {template for _, template, supervisor in first if supervisor == victim}
            assert gone([victim, orphan])
            found, third = place.run()
            assert found == expected
            assert {template for _, template, _ in third} & templates == templates - {orphan}
            stay = 2 if place.standing else 3  # hosts that join wait for the next driver
            everything = {pid for each in (first, second, third) for pids in each for pid in pids[:stay]}
        assert gone([*everything])
        assert place.standing is None or place.standing.poll() is None
    finally:
        place.close()


ENGINES = {
    "login": "hy.Hosts(['a:1'], ssh={ssh!r}, devices=None)",
    "task": "hy.Spark(Session(1), workers=1, address='127.0.0.1')",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["login", pytest.param("task", marks=pytest.mark.long)])
def test_a_driver_killed_between_two_runs_leaves_nothing_behind(tmp_path: Path, way: str) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    body = f"""
import time
from played_spark import Session
from played_supervisors import CARD, TOKEN, Played, agents_of, parent
from engines.test_warm import noting
with {ENGINES[way].format(ssh=played_ssh(tmp_path))} as engine:
    select(Path("run"), noting, [{{"lr": 0.1, "notes": {str(notes)!r}}}], engine=engine)
    Path("done").touch()
    time.sleep(60)
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    try:
        until(lambda: (tmp_path / "done").exists() or process.poll() is not None, 60)
        ((agent, template, supervisor),) = [
            [int(word) for word in path.read_text().split()] for path in notes.iterdir()
        ]
        assert not alive([agent]) and alive([template, supervisor])
    finally:
        process.kill()
        _, errors = process.communicate(timeout=20)
    assert gone([template, supervisor]), errors

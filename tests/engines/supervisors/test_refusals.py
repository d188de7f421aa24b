"""Supervisors that cannot work for a run: they are told why, and the run goes on with others, if there are any."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.certificate import make_certificate
from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.messages import Leaving, Prepare, Refuse, Start, SupervisorHello
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.errors import ResourceError
from hosts import played_ssh
from jobs import until
from played_supervisors import CARD, TOKEN, Played

VERSION = "hopyard.engines.supervisors.record.__version__"


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    made = Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / f"{slot}.log", expected=2, keep_idle=True)
    yield made
    Played.all_leave()
    made.close()


def other(supervisors: Supervisors, host: str = "beta", **more: Any) -> Played:
    """A supervisor of another version that is refused."""
    played = Played(supervisors, 0, version="0.0.1", host=host, executor=f"{host}-7", **more)
    assert isinstance(played.hear(), Refuse) and played.hear() is None
    return played


def test_a_run_ends_when_as_many_are_refused_as_are_expected(
    supervisors: Supervisors, caplog: pytest.LogCaptureFixture
) -> None:
    supervisors.start(0)
    for _ in range(3):  # a host that stands by dials again
        other(supervisors, process=1)
    assert supervisors.lost() == [] and caplog.text.count("beta has another version") == 1
    other(supervisors, "gamma", process=1)
    with pytest.raises(ResourceError, match=r"beta has .*install.*; gamma has .*install"):
        supervisors.lost()


def test_another_minor_version_of_python_is_refused(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.supervisors.record.PYTHON", "3.99")
    refusal = Played(supervisors, host="beta").hear()
    assert isinstance(refusal, Refuse)
    assert refusal.reason.startswith("beta runs agents with Python 3.") and "the driver with 3.99" in refusal.reason


def test_the_slot_of_an_unfit_supervisor_waits_for_another_one(
    supervisors: Supervisors, caplog: pytest.LogCaptureFixture
) -> None:
    supervisors.start(3)
    one = Played(supervisors, host="beta", process=1)
    assert one.hear() == Start(3)
    one.say(Leaving("beta has no torch", unfit=True))
    until(lambda: supervisors.waits(3))
    one.leave()
    two = Played(supervisors, host="beta", process=2)
    assert two.hear() == Start(3)
    assert supervisors.lost() == [] and supervisors.refusals == ["beta has no torch"]
    two.say(Leaving("beta has no torch", unfit=True))
    with pytest.raises(ResourceError, match=r"^beta has no torch$"):
        until(supervisors.lost)
    assert caplog.text.count("beta has no torch") == 1


def test_a_run_goes_on_with_others(supervisors: Supervisors) -> None:
    supervisors.start(3)
    good = Played(supervisors, host="alpha")
    assert good.hear() == Start(3)
    for number in range(1, 4):
        other(supervisors, process=number)
    unfit = Played(supervisors, host="gamma", process=1)
    unfit.say(Leaving("gamma has no torch", unfit=True))
    until(lambda: len(supervisors.refusals) == 2)
    assert supervisors.lost() == [] and supervisors.admitted_count == 1


def test_refusals_are_of_one_run(tmp_path: Path) -> None:
    supervisors = Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / "log", expected=2, lasting=True)
    try:
        for _ in range(2):
            other(supervisors, process=1)
            assert len(supervisors.refusals) == 1 and supervisors.refused(0) and not supervisors.refused(1)
            supervisors.rest()
            supervisors.renew(lambda slot: tmp_path / "log", Prepare(CARD, 1, {}))
            assert not supervisors.refusals
    finally:
        Played.all_leave()
        supervisors.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_host_that_stands_by_says_it_once_and_dials_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dials: list[int] = []
    monkeypatch.setattr(
        "hopyard.engines.supervisors.pool.version_fault",
        lambda hello: dials.append(hello.process) or ("" if len(dials) > 4 else "b has Hopyard 1, the driver 2"),
    )
    certificate = make_certificate()
    supervisors = Supervisors(
        "127.0.0.1", 0, TOKEN, lambda slot: tmp_path / "log", certificate=certificate, expected=3, keep_idle=True
    )
    tickets.write(tmp_path / "ticket", Ticket("127.0.0.1", supervisors.port, TOKEN, certificate=certificate))
    join = [sys.executable, "-P", "-m", "hopyard", "agent", "--join", str(tmp_path / "ticket"), "--slots", "2"]
    process = subprocess.Popen([*join, "--devices", "none"], stderr=subprocess.PIPE, text=True)
    try:
        with caplog.at_level(logging.WARNING):
            until(lambda: supervisors.admitted_count == 2)
        assert len(set(dials)) == 2 and supervisors.lost() == []
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
        supervisors.close()
    assert errors.count("b has Hopyard 1, the driver 2") == 1 == caplog.text.count("b has Hopyard 1, the driver 2")


def launch(folder: Path, required: tuple[str, ...] = ()) -> Any:
    from hopyard.ports.engines import LaunchInfo

    return LaunchInfo(
        lambda slot: CARD.encode(), lambda slot: folder / f"{slot}.log", frameworks=required, required=required
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["another version", "a framework"])
def test_a_login_to_a_host_that_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Here the only one. The warning and the error have the sentence."""
    if what == "another version":
        monkeypatch.setattr(VERSION, "9.9")
    required = ("no_such_framework",) if what == "a framework" else ()
    agents = hy.Hosts(["beta:2"], ssh=played_ssh(tmp_path)).open(launch(tmp_path, required))
    expected = "the driver has 9.9" if what == "another version" else "has no no_such_framework in"
    try:
        for slot in range(2):
            agents.start(slot)
        with pytest.raises(ResourceError, match=expected):
            until(agents.lost)
    finally:
        agents.close()
    assert caplog.text.count(expected) == 1


@pytest.mark.slow
def test_a_run_on_spark_whose_executors_lack_a_framework(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from played_spark import Session

    session = Session(2)
    agents = hy.Spark(session, workers=2, address="127.0.0.1").open(launch(tmp_path, ("no_such_framework",)))
    try:
        for slot in range(2):
            agents.start(slot)
        with pytest.raises(ResourceError, match="has no no_such_framework in"):
            until(agents.lost)
    finally:
        agents.close()
        session.sparkContext.wait_for_tasks()


@pytest.mark.slow
def test_a_refused_task_of_spark_makes_no_storm_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on with the other one, and ends at once when it is over."""
    pytest.importorskip("pyspark")
    from played_spark import Session

    monkeypatch.setattr("hopyard.engines.spark.jobs.AGAIN_SECONDS", 3600.0)

    def refused(hello: SupervisorHello) -> str:
        return "" if hello.job == 1 else "b has Hopyard 1, the driver 2"

    monkeypatch.setattr("hopyard.engines.supervisors.pool.version_fault", refused)
    session = Session(2)
    agents: Any = hy.Spark(session, workers=2, address="127.0.0.1").open(launch(tmp_path))
    try:
        for slot in range(2):
            agents.start(slot)
        supervisors = agents._supervisors
        until(lambda: supervisors.admitted_count and supervisors.refusals)
        tasks = session.sparkContext.tasks
        until(lambda: sum(task.poll() is not None for task in tasks) == 1)
        for _ in range(200):
            assert agents.lost() == []
            time.sleep(0.01)
        assert len(tasks) == 2 and supervisors.missing == 1
    finally:
        agents.close()
        session.sparkContext.wait_for_tasks()
    assert not agents._placement._jobs

"""MLflow gets each point of a run once: followers that die at any request, servers that fail, hang and forget."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from api_servers import Handler, hang
from hopyard.driver.runs.run import Run
from hopyard.engines.local import python_path
from hopyard.store.layout import Layout
from hopyard.tracking.follower import Refused, follow
from hopyard.tracking.mlflow import rest
from hopyard.tracking.reading import ReadAgain
from jobs import script, select
from mlflow_server import MlflowServer, mlflow_server
from tracking.mlflow_runs import DRIVER, EXPERIMENT, QUICK, cut, news, send, tracker


def test_what_mlflow_has_of_a_run(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    runs = expected["runs"]
    assert set(runs) == {"run", "trial 0", "trial 1", "trial 2"}
    parent = runs["run"]
    assert (parent["status"], parent["tags"]["hopyard.best"]) == ("FINISHED", str(run.best.id))
    assert parent["params"]["epochs"] == "2" and parent["inputs"][0]["dataset"]["name"] == "arrays in memory"
    assert parent["outputs"] and expected["models"] == ["LOGGED_MODEL_READY"]
    files = [path.rpartition("/")[2] for path in expected["files"]]
    assert {"report.txt", "gantt.html", "plot.html", "MLmodel", "config.json"} <= set(files)
    for trial in run.trials:
        child = runs[f"trial {trial.id}"]
        assert child["tags"]["mlflow.parentRunId"] == "run" and child["tags"].get("hopyard.digest", "") == trial.digest
        assert child["status"] == ("FAILED" if trial.status == "failed" else "FINISHED")
        assert ("the moon" in child["tags"].get("hopyard.reason", "")) == (trial.status == "failed")
        assert child["start"] < child["end"] and child["params"]["lr"] == str(trial.config["lr"])
        points = {(key, step): value for key, at, step, value in child["points"] if not key.startswith("best_")}
        assert points == {(key, epoch): v for epoch, each in trial.history.items() for key, v in each.items()}
    send(run, tracker(run, played))
    count = played.requests
    send(run, tracker(run, played))
    assert played.requests == count + 2  # the experiment, and what is there
    assert played.content() == expected


@pytest.mark.parametrize(
    ("place", "lines", "every"),
    [("after", 15, 9), *(pytest.param(*each, 1, marks=pytest.mark.long) for each in (("before", 15), ("after", 4)))],
)
def test_a_follower_that_dies_at_any_request_loses_and_doubles_nothing(
    run: Run, expected: dict[str, Any], place: str, lines: int, every: int
) -> None:
    died = True
    for at in itertools.count(step=every):
        with mlflow_server() as played:
            setattr(played, place, lambda number, handler, at=at: number == at and cut(handler))
            try:
                send(run, tracker(run, played), lines)
                died = False
            except OSError:
                send(run, tracker(run, played))
            assert played.content() == expected, f"request {at}"
        if not died:
            break
    assert at > 25


def test_one_that_goes_on_after_errors_sends_the_same(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    draws = random.Random(0)

    def fail(number: int, handler: Handler) -> bool:
        status = draws.choice([500, 429, *[0] * 14])
        if status:
            handler.send(status, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "try again"})
        return bool(status)

    played.before = fail
    mlflow, failed = tracker(run, played), 0
    for each in news(run, 4):
        sent = False
        while not sent:
            try:
                mlflow.update(each)
                sent = True
            except ConnectionError as error:
                failed += 1
                assert "try again" in str(error) and ("500" in str(error) or "429" in str(error))
    assert failed > 3 and played.content() == expected


def test_a_server_that_is_down_then_comes_back(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    answers = iter([cut] * 20)
    played.before = lambda number, handler: next(answers, lambda handler: False)(handler)
    follow(Layout(run.directory), "mlflow", lambda: tracker(run, played), QUICK)
    assert played.requests > 20 and played.content() == expected


def test_a_call_that_was_given_up_and_succeeds_later_leaves_no_second_run(
    run: Run, played: MlflowServer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Any] = []

    def slow(number: int, handler: Handler) -> bool:
        if handler.path.endswith("runs/create") and not late:
            late.append(handler.body)
            hang(handler)
        return bool(late) and number == 2

    played.before = slow
    with monkeypatch.context() as patch, pytest.raises(OSError, match="runs/create"):
        patch.setattr(rest, "TIMEOUT", 0.2)
        send(run, tracker(run, played))
    send(run, tracker(run, played))
    played._runs_create(late[0])
    send(run, tracker(run, played))
    assert played.content() == expected


def test_connections_that_the_server_closes_while_a_model_is_made(
    run: Run, played: MlflowServer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(number: int, handler: Handler) -> bool:
        handler.close_connection = True  # and the answer does not say so
        return False

    played.after = close
    with pytest.raises(ConnectionError):
        send(run, tracker(run, played))
    monkeypatch.setattr(rest, "IDLE", 0.0)
    send(run, tracker(run, played))
    assert played.content() == expected


def test_a_search_of_many_pages(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    played.page = 1
    send(run, tracker(run, played))
    send(run, tracker(run, played))
    assert played.content() == expected and played.called().count("runs/search") == 1 + 4


def test_a_trial_takes_three_requests_and_one_more_for_each_update_that_it_lives_in(
    run: Run, played: MlflowServer
) -> None:
    def requests(trial: int) -> int:
        (number,) = [number for number, each in played.runs.items() if each["name"] == f"trial {trial}"]
        own = [body for _, _, _, body, _ in played.server.requests if isinstance(body, dict)]
        tags = [{tag["key"]: tag["value"] for tag in body.get("tags", ())} for body in own]
        created = sum(each.get("hopyard.trial") == str(trial) and "hopyard.points" not in each for each in tags)
        return created + sum(body.get("run_id") == number for body in own)

    every = list(news(run, 1))
    whole = [record for each in every for record in each.records]
    starts = [n for n, each in enumerate(every) if any(type(r).__name__ == "TrialStarted" for r in each.records)]
    mlflow = tracker(run, played)
    first = [record for each in every[: starts[0] + 1] for record in each.records]
    mlflow.update(every[starts[0]]._replace(records=tuple(first)))
    mlflow.update(every[-1]._replace(records=tuple(whole[len(first) :])))
    assert len(run.trials) == 3 and [requests(trial) for trial in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("until", [8, pytest.param(20, marks=pytest.mark.long)])
def test_a_driver_that_died_and_went_on(run: Run, played: MlflowServer, expected: dict[str, Any], until: int) -> None:
    for each in news(run, 2000, until):
        tracker(run, played).update(each)
    statuses = {each["status"] for each in played.content()["runs"].values()}
    assert "KILLED" in statuses and "RUNNING" not in statuses
    send(run, tracker(run, played))
    assert played.content() == expected


def test_points_that_a_server_has_lost_are_sent_again(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    every = list(news(run, 4))
    mlflow = tracker(run, played)
    for each in every[:-2]:
        mlflow.update(each)
    for known in played.runs.values():  # as a database that was restored from an earlier copy
        known["metrics"].clear()
        known["tags"].pop("hopyard.points", None)
    answers = iter([cut])
    played.before = lambda number, handler: next(answers, lambda handler: False)(handler)
    with pytest.raises(ConnectionError):
        mlflow.update(every[-2])
    with pytest.raises(ReadAgain):  # upon which a follower begins anew
        mlflow.update(every[-2])
    send(run, tracker(run, played))
    assert played.content() == expected


def test_what_people_delete_stays_deleted(run: Run, played: MlflowServer) -> None:
    every = list(news(run, 4))
    mlflow = tracker(run, played)
    for each in every[:-2]:
        mlflow.update(each)
    (child,) = [number for number, each in played.runs.items() if each["name"] == "trial 0"]
    played.runs[child]["stage"] = "deleted"
    send(run, tracker(run, played))
    assert set(played.content()["runs"]) == {"run", "trial 1", "trial 2"}
    for known in played.runs.values():
        known["stage"] = "deleted"
    with pytest.raises(Refused, match="deleted"):
        send(run, tracker(run, played))


def test_an_experiment_that_is_deleted_meanwhile_is_final(run: Run, played: MlflowServer) -> None:
    every = list(news(run, 4))
    mlflow = tracker(run, played)
    mlflow.update(every[0])
    (number,) = set(played.experiments) - {"0"}
    played.experiments[number]["stage"] = "deleted"
    with pytest.raises(ConnectionError, match="active"):  # the next look at the experiment tells
        for each in every[1:]:
            mlflow.update(each)
    with pytest.raises(Refused, match=r"'flights' was deleted.*MLFLOW_EXPERIMENT_NAME"):
        mlflow.update(every[-1])
    with pytest.raises(Refused, match="MLFLOW_EXPERIMENT_ID = 77"):
        send(run, tracker(run, played, MLFLOW_EXPERIMENT_ID="77"))


def test_a_run_that_has_ended_stays_so_while_its_journal_is_read_again(run: Run, played: MlflowServer) -> None:
    send(run, tracker(run, played))
    count = len(played.called())
    send(run, tracker(run, played), 4)
    assert "runs/update" not in played.called()[count:]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, "0.csv"), (3, "0.csv and 2 more"), (20, "0.csv and at least 19 more")]
)
def test_the_name_of_the_data(played: MlflowServer, tmp_path: Path, count: int, expected: str) -> None:
    run = select(tmp_path / "run", epochs=1)
    about = json.loads(Layout(run.directory).about.read_bytes())
    about["sources"] = [f"/data/{number}.csv" for number in range(count)]
    Layout(run.directory).about.write_text(json.dumps(about))
    tracker(run, played).update(next(news(run)))
    assert played.content()["runs"]["run"]["inputs"][0]["dataset"]["name"] == expected


class Killed:
    """Followers in processes of their own, each killed by the server at a request that is drawn.

    Args:
        played: the server.
        directory: of the run.
        seed: of the draws.
    """

    def __init__(self, played: MlflowServer, directory: Path, seed: int) -> None:
        self.played, self.directory, self.random = played, directory, random.Random(seed)
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    def start(self, requests: int) -> subprocess.Popen[bytes]:
        """Start one that is killed within its next requests, before or after one is carried out; 0: it lives."""
        at = self.played.requests + self.random.randrange(requests) if requests else -1

        def kill(number: int, handler: Handler) -> bool:
            if number != at or self.process is None:
                return False
            self.process.kill()
            self.process.wait()
            self.kills += 1
            return cut(handler)

        self.played.before, self.played.after = self.random.sample([kill, lambda number, handler: False], 2)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hopyard.tracking", f"mlflow={self.played.url}", str(self.directory)],
            env={**os.environ, **EXPERIMENT, "PYTHONPATH": python_path()},
        )
        return self.process


@pytest.mark.long
def test_a_follower_that_is_killed(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    killed = Killed(played, Path(run.directory), seed=0)
    killed.start(requests=12).wait(60)
    assert killed.start(requests=0).wait(60) == 0
    assert killed.kills == 1 and played.content() == expected


@pytest.mark.long
def test_drivers_and_followers_that_are_killed_fifty_times(played: MlflowServer, tmp_path: Path) -> None:
    directory, program = tmp_path / "run", script(tmp_path / "program.py", DRIVER)
    killed, kills = Killed(played, directory, seed=1), 0
    environ = {**os.environ, "PYTHONPATH": python_path()}
    layout = Layout(directory)
    while kills + killed.kills < 50:
        driver = subprocess.Popen(
            [sys.executable, str(program), str(directory), "40"], env=environ, start_new_session=True
        )
        end = time.monotonic() + killed.random.uniform(3, 6)
        while time.monotonic() < end:
            if layout.exists and layout.journal.stat().st_size:
                layout.logs.mkdir(exist_ok=True)
                follower = killed.start(requests=8)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    follower.wait(killed.random.uniform(0.5, 2))
                kills += follower.poll() is None
                follower.kill()
                follower.wait()
            time.sleep(0.05)
        kills += driver.poll() is None
        driver.kill()
        driver.wait()
    subprocess.run([sys.executable, str(program), str(directory), "40"], check=True, env=environ)
    assert killed.start(requests=0).wait(120) == 0
    assert killed.kills >= 5
    run = hy.load(directory)
    with mlflow_server() as other:
        send(run, tracker(run, other))
        expected = other.content()
    assert len(expected["runs"]) == 9 and played.content() == expected

"""MLflow gets each point of a run once: followers that die at any request, servers that fail, hang and forget."""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib.metadata
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from api_servers import Handler, hang
from hopyard.driver.runs.run import Run
from hopyard.engines.followers import REGISTER, without_password
from hopyard.engines.local import python_path
from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.store.standing import status_of
from hopyard.tracking.follower import News, Pace, Refused, follow
from hopyard.tracking.mlflow import model, pyfunc, rest
from hopyard.tracking.mlflow.tracker import Mlflow, connect
from hopyard.tracking.reading import Changed, Reading
from jobs import SLOW, script, select, table, troubled
from mlflow_server import MlflowServer, mlflow_server

CONFIGS: list[dict[str, Any]] = [{"lr": 0.1, "a+b": 1}, {"lr": 0.03}, {"lr": 0.01, "at": 2, "do": "raise"}]
EXPERIMENT = {"MLFLOW_EXPERIMENT_NAME": "flights"}
QUICK = Pace(look=0.01, pause=0.01, longest=0.05)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = select(tmp_path_factory.mktemp("tracked") / "run", troubled, CONFIGS)
    Layout(run.directory).logs.mkdir()  # as whoever starts followers does
    return run


@pytest.fixture
def played() -> Iterator[MlflowServer]:
    with mlflow_server() as server:
        yield server


def tracker(run: Run, played: MlflowServer, **environ: str) -> Mlflow:
    return connect(played.url, Layout(run.directory), EXPERIMENT | environ)


def news(run: Run, lines: int = 2000, until: int | None = None) -> Iterator[News]:
    """What a follower sends that reads so many lines at a time. `until`: of a run whose driver died after this one."""
    reading = Reading(Layout(run.directory))
    count = 0
    while not reading.whole:
        count += lines
        records = reading.more(lines if until is None else min(lines, lines - count + until))
        machine, last = reading.machine, reading.last
        assert machine is not None and last is not None
        reading.whole |= until is not None and count >= until
        status = status_of(machine.status, False, last) if reading.whole else "running"
        yield News(tuple(records), machine, status, last.at)


def send(run: Run, mlflow: Mlflow, lines: int = 2000) -> None:
    for each in news(run, lines):
        mlflow.update(each)


@pytest.fixture(scope="module")
def expected(run: Run) -> dict[str, Any]:
    """What a server has of the run at the end."""
    with mlflow_server() as played:
        send(run, tracker(run, played))
        return played.content()


def cut(handler: Handler) -> bool:
    """End the connection instead of an answer."""
    handler.close_connection = True
    return True


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
    with pytest.raises(Changed):  # upon which a follower begins anew
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


def test_credentials_and_certificates(run: Run, tmp_path: Path, expected: dict[str, Any]) -> None:
    with mlflow_server(tmp_path) as played:
        played.accept("ann", "secret")
        authority = {"MLFLOW_TRACKING_SERVER_CERT_PATH": str(played.authority)}
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            send(run, tracker(run, played))
        with pytest.raises(Refused, match=r"401: You are not.*MLFLOW_TRACKING_TOKEN"):
            send(run, tracker(run, played, MLFLOW_TRACKING_TOKEN="secret", **authority))
        user = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "secret"}
        for each in news(run, until=8):
            tracker(run, played, MLFLOW_TRACKING_INSECURE_TLS="true", **user).update(each)
        played.accepted = "Bearer other"
        send(run, tracker(run, played, MLFLOW_TRACKING_TOKEN="other", **authority))
        assert played.content() == expected
        with pytest.raises(Refused, match="nowhere"):
            tracker(run, played, MLFLOW_TRACKING_SERVER_CERT_PATH="/nowhere")


def test_a_token_with_the_end_of_its_line(run: Run, played: MlflowServer) -> None:
    played.accepted = "Bearer s3cret"
    tracker(run, played, MLFLOW_TRACKING_TOKEN="s3cret\n").update(next(news(run)))


@pytest.mark.parametrize(
    ("status", "headers", "match"),
    [
        (302, {"Location": "https://me:s3cret@sign.in/?token=s3cret"}, "302: redirects to sign.in are not followed"),
        (307, {"Location": "/login"}, "redirects to itself"),
        (404, {}, "404: <html>"),
        (413, {}, "413"),
    ],
)
def test_errors_that_do_not_pass_are_final(
    run: Run, played: MlflowServer, status: int, headers: dict[str, str], match: str
) -> None:
    def refuse(number: int, handler: Handler) -> bool:
        if number:
            handler.send(status, b"<html>", headers)
        return bool(number)

    played.before = refuse
    with pytest.raises(Refused, match=match) as refused:
        send(run, tracker(run, played))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("status", [408, 425, 429, 503])
def test_others_may_pass(run: Run, played: MlflowServer, status: int) -> None:
    played.before = lambda number, handler: bool(handler.send(status, b"busy")) or True
    with pytest.raises(ConnectionError, match="busy"):
        send(run, tracker(run, played))


def test_answers_that_are_not_of_mlflow(run: Run, played: MlflowServer) -> None:
    def page(number: int, handler: Handler) -> bool:
        handler.send(200, b"<html>sign in</html>", {"Content-Type": "text/html"})
        return True

    played.before = page
    with pytest.raises(ConnectionError, match=r"no JSON: <html>sign in"):
        send(run, tracker(run, played))


def test_artifacts_that_the_server_does_not_pass_on_are_left_out(
    run: Run, played: MlflowServer, expected: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    proper = played._run

    def elsewhere(run: dict[str, Any]) -> Any:
        fields = proper(run)
        fields["info"]["artifact_uri"] = "s3://bucket/0"
        return fields

    played._run = elsewhere  # type: ignore[method-assign]
    send(run, tracker(run, played))
    content = played.content()
    assert content["files"] == content["models"] == [] and "s3://bucket/0" in caplog.text
    assert content["runs"]["run"]["status"] == "FINISHED" and content["runs"]["trial 0"] == expected["runs"]["trial 0"]


@pytest.mark.parametrize(
    ("large", "left"), [("report.txt", "report, pictures and model are"), ("model", "the best mo")]
)
def test_what_is_too_large_is_left_out_until_it_is_not(
    run: Run, played: MlflowServer, expected: dict[str, Any], caplog: pytest.LogCaptureFixture, large: str, left: str
) -> None:
    def refuse(number: int, handler: Handler) -> bool:
        if handler.command == "PUT" and large in handler.path:
            handler.send(413, b"too large")
            return True
        return False

    played.before = refuse
    mlflow = tracker(run, played)
    send(run, mlflow)
    (*_, last) = news(run)
    count = played.requests
    mlflow.update(last._replace(records=()))
    assert left in caplog.text and "413: too large" in caplog.text
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    assert played.requests == count  # nor is it tried again
    played.before = lambda number, handler: False
    send(run, tracker(run, played))
    assert played.content() == expected


def test_a_server_that_refuses_a_large_file_before_it_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
                connection.shutdown(socket.SHUT_WR)  # and then it is closed, with a reset as there is more to read

        thread = threading.Thread(target=answer)
        thread.start()
        with rest.Rest(f"http://127.0.0.1:{listener.getsockname()[1]}", {}) as service, pytest.raises(Refused) as error:
            service._ask("PUT", "/file", b"x" * (32 << 20), {})
        thread.join()
    assert "413: big" in str(error.value)


def test_the_status_does_not_wait_for_uploads(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    played.before = lambda number, handler: handler.command == "PUT" and cut(handler)
    with pytest.raises(ConnectionError):
        send(run, tracker(run, played))
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    played.before = lambda number, handler: False
    send(run, tracker(run, played))
    assert played.content() == expected


def test_a_run_that_has_ended_stays_so_while_its_journal_is_read_again(run: Run, played: MlflowServer) -> None:
    send(run, tracker(run, played))
    count = len(played.called())
    send(run, tracker(run, played), 4)
    assert "runs/update" not in played.called()[count:]


@pytest.mark.parametrize("name", ["flights", "Ann's"])
def test_a_model_is_registered_after_the_run_too(run: Run, played: MlflowServer, name: str) -> None:
    send(run, tracker(run, played))
    assert not played.versions
    for own in (name, name, "another"):
        send(run, tracker(run, played, **{REGISTER: own}))
    count = played.requests
    send(run, tracker(run, played))
    assert [each["name"] for each in played.versions] == [name, "another"] and len(played.models) == 1
    assert played.requests == count + 2  # nothing is left to be done


def test_the_model_predicts_what_the_best_trial_does(run: Run, played: MlflowServer, tmp_path: Path) -> None:
    for _ in range(2):
        mlflow = connect(played.url, Layout(run.directory), {**EXPERIMENT, REGISTER: "flights"})
        send(run, mlflow)
    (model,) = played.models.values()
    assert played.content()["versions"] == [("flights", model["tags"])]
    for path, content in played.artifacts.items():
        if "/models/" in path:
            file = tmp_path / path.partition("/artifacts/")[2]
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
    x, _ = table(8)
    assert (pyfunc._load_pyfunc(str(tmp_path / "data")).predict(x) == run.best.predict(x)).all()


def test_a_model_that_cannot_be_built_is_left_out_and_said(
    played: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = select(tmp_path / "run")
    recipe = Layout(run.directory).recipe
    whole = recipe.read_bytes()
    recipe.write_bytes(b"nonsense")
    send(run, tracker(run, played))
    assert not played.models and "the best model is left out" in caplog.text
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    recipe.write_bytes(whole)
    send(run, tracker(run, played))  # by a follower elsewhere, or later
    assert played.content()["models"] == ["LOGGED_MODEL_READY"]


def test_a_model_is_tried_again_once_there_is_room(
    run: Run, played: MlflowServer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, every = tracker(run, played), list(news(run))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr("hopyard.driver.saved_files.sync", full)
        mlflow.update(every[0])
    mlflow.update(every[0])
    assert played.content() == expected


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("versions", "framework", "expected"),
    [
        ({"torch": "2.13.0+cpu"}, "torch", "torch==2.13.0"),
        ({"tensorflow-cpu": "2.21.0"}, "tensorflow", "tensorflow-cpu==2.21.0"),
        ({"tensorflow": "2.21.0"}, "tensorflow", "tensorflow==2.21.0"),
        ({}, "jax", "jax"),
    ],
)
def test_requirements_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], framework: str, expected: str
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert model.requirement(framework) == expected


@pytest.mark.parametrize(
    ("target", "environ", "error", "match"),
    [
        ("", {}, SpecError, "MLFLOW_TRACKING_URI"),
        ("http://host:port", {}, Refused, "http://host:port is no URL"),
        ("http://", {}, Refused, "HOST"),
        ("http://host/a b", {}, Refused, "%XX"),
        ("http://me:s3cret@[bad", {}, Refused, r"http://me@\[bad is no URL"),
        ("http://host", {"MLFLOW_TRACKING_TOKEN": "s3\ncret"}, Refused, "MLFLOW_TRACKING_TOKEN must have printable"),
        ("https://host", {"MLFLOW_TRACKING_SERVER_CERT_PATH": "/nowhere"}, Refused, "CERT_PATH = /nowhere"),
    ],
)
def test_targets_that_are_none(target: str, environ: dict[str, str], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as raised:
        connect(target, Layout(Path()), environ)
    assert "cret" not in str(raised.value)


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


@pytest.mark.slow
def test_a_follower_that_is_killed(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    killed = Killed(played, Path(run.directory), seed=0)
    killed.start(requests=12).wait(60)
    assert killed.start(requests=0).wait(60) == 0
    assert killed.kills == 1 and played.content() == expected


DRIVER = (
    SLOW
    + """
search = hy.Configs([{"lr": 0.1 / (1 + number)} for number in range(8)])
hy.select(slow, None, dataset(), search=search, epochs=40, metric="val_loss", mode="min", engine=hy.Inline(),
          directory=sys.argv[1], resume=True)
"""
)


@pytest.mark.long
def test_drivers_and_followers_that_are_killed_fifty_times(played: MlflowServer, tmp_path: Path) -> None:
    directory, program = tmp_path / "run", script(tmp_path / "program.py", DRIVER)
    killed, kills = Killed(played, directory, seed=1), 0
    environ = {**os.environ, "PYTHONPATH": python_path()}
    layout = Layout(directory)
    while kills + killed.kills < 50:
        driver = subprocess.Popen([sys.executable, str(program), str(directory)], env=environ, start_new_session=True)
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
    subprocess.run([sys.executable, str(program), str(directory)], check=True, env=environ)
    assert killed.start(requests=0).wait(120) == 0
    assert killed.kills >= 5
    run = hy.load(directory)
    with mlflow_server() as other:
        send(run, tracker(run, other))
        expected = other.content()
    assert len(expected["runs"]) == 9 and played.content() == expected


def test_a_url_with_user_and_password(run: Run, played: MlflowServer) -> None:
    played.accepted = "Basic " + base64.b64encode(b"me@work:s:3/t").decode()
    own = played.url.replace("://", "://me%40work:s%3A3%2Ft@")
    shown = without_password(own)
    assert "s%3A3" not in shown
    environ, layout = {**EXPERIMENT, "MLFLOW_TRACKING_URI": own}, Layout(run.directory)
    connect(shown, layout, environ).update(next(news(run)))
    connect(shown, layout, {**EXPERIMENT, "MLFLOW_TRACKING_PASSWORD": "s:3/t"}).update(next(news(run)))
    with pytest.raises(Refused, match="401") as refused:
        connect(shown, layout, EXPERIMENT).update(next(news(run)))
    assert "work" not in str(refused.value)

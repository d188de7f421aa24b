"""What MLflow answers: who may write there, which errors pass, and what errors must not tell."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from api_servers import Handler
from hopyard.driver.runs.run import Run
from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.text import without_passwords
from hopyard.tracking.follower import Refused
from hopyard.tracking.mlflow import rest
from hopyard.tracking.mlflow.sheets import BATCH_PARAMS, BATCH_POINTS, NAME, PARAM, TAG, Batch, Point
from hopyard.tracking.mlflow.tracker import connect
from mlflow_server import MlflowServer, mlflow_server
from tracking.mlflow_runs import EXPERIMENT, news, send, tracker


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


def test_a_url_with_user_and_password(run: Run, played: MlflowServer) -> None:
    played.accepted = "Basic " + base64.b64encode(b"me@work:s:3/t").decode()
    own = played.url.replace("://", "://me%40work:s%3A3%2Ft@")
    shown = without_passwords(own)
    assert "s%3A3" not in shown
    environ, layout = {**EXPERIMENT, "MLFLOW_TRACKING_URI": own}, Layout(run.directory)
    connect(shown, layout, environ).update(next(news(run)))
    connect(shown, layout, {**EXPERIMENT, "MLFLOW_TRACKING_PASSWORD": "s:3/t"}).update(next(news(run)))
    with pytest.raises(Refused, match="401") as refused:
        connect(shown, layout, EXPERIMENT).update(next(news(run)))
    assert "work" not in str(refused.value)


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


def test_the_largest_batch_is_less_than_a_megabyte(played: MlflowServer) -> None:
    point, key = Point("字" * NAME, 1.7976931348623157e308, 1795850766032, 1_000_000), "字" * (NAME - 2)
    params = {f"{key}{number:02}": "字" * PARAM for number in range(BATCH_PARAMS)}
    tags = {f"hopyard.{number}": "字" * TAG for number in range(10)}
    with rest.Rest(played.url, {}) as service:
        own = service.create("0", "run", 0, {})
        service.send(own.id, Batch(params, [point] * BATCH_POINTS, tags))
    assert 900_000 < int(played.server.requests[-1][4]["Content-Length"]) < 1_000_000


@pytest.mark.parametrize("slow", [False, True])
def test_an_answer_without_end(run: Run, played: MlflowServer, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    monkeypatch.setattr(rest, "TIMEOUT" if slow else "LARGEST", 0.3 if slow else 1 << 20)
    ended = threading.Event()

    def endless(number: int, handler: Handler) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while not ended.wait(0.05 * slow):
                handler.wfile.write(b" " if slow else b" " * (1 << 16))
        handler.close_connection = True
        return True

    played.before = endless
    with pytest.raises(OSError, match="and more to come"):
        send(run, tracker(run, played))
    ended.set()


def test_the_experiment_behind_the_url(run: Run, played: MlflowServer) -> None:
    for environ in ({}, {"MLFLOW_EXPERIMENT_NAME": "other"}, {"MLFLOW_EXPERIMENT_ID": "77"}):
        send(run, connect(f"{played.url}#flights%2Flate", Layout(run.directory), environ))
    assert [each["name"] for each in played.experiments.values()] == ["Default", "flights/late"]
    assert len({each["experiment"] for each in played.runs.values()}) == 1

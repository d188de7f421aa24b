"""The calls of the API, and its configuration, against a server that answers as it is told."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from api_servers import (
    ApiServer,
    hang,
    kubeconfig,
    listing,
    ok,
    refuse,
    tls_server,
)
from hopyard.engines.kubernetes import api as apis
from hopyard.engines.kubernetes import configuration
from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.errors import SpecError, UsageError

pytestmark = pytest.mark.usefixtures("outside")


def test_calls_are_those_of_the_reference(api: Api, server: ApiServer) -> None:
    jobs, secrets = "/apis/batch/v1/namespaces/hop/jobs", "/api/v1/namespaces/hop/secrets"
    api.create("jobs", {"kind": "Job"})
    api.create("secrets", {"kind": "Secret"})
    api.get("jobs", "a")
    api.patch("secrets", "a", {"metadata": {}})
    api.delete("jobs", "a")
    api.list("pods", labels="hopyard.dev/places=a,b", fields="status.phase!=Failed")
    strict = {"fieldValidation": "Strict"}
    assert [request[:4] for request in server.requests] == [
        ("POST", jobs, strict, {"kind": "Job"}),
        ("POST", secrets, strict, {"kind": "Secret"}),
        ("GET", f"{jobs}/a", {}, None),
        ("PATCH", f"{secrets}/a", {}, {"metadata": {}}),
        ("DELETE", f"{jobs}/a", {}, {"propagationPolicy": "Background"}),
        (
            "GET", "/api/v1/namespaces/hop/pods",
            {"labelSelector": "hopyard.dev/places=a,b", "fieldSelector": "status.phase!=Failed"}, None,
        ),
    ]  # fmt: skip
    headers = [request[4] for request in server.requests]
    assert headers[3]["Content-Type"] == "application/merge-patch+json"
    assert {each["authorization"] for each in headers} == {"Bearer secret"}
    assert all(each["User-Agent"].startswith("hopyard/") for each in headers)


def test_log_version_and_allowed(api: Api, server: ApiServer) -> None:
    server.answers["call"] = [
        lambda handler: handler.send(200, "caf\u00e9\n".encode() + b"\xff"),
        ok({"major": "1", "minor": "30+"}),
        ok({"status": {"allowed": True}}, 201),
        ok({"status": {"allowed": False, "reason": "no"}}, 201),
    ]
    assert api.log("a-0-x") == "café\n\ufffd"
    assert server.requests[0][1] == "/api/v1/namespaces/hop/pods/a-0-x/log"
    assert server.requests[0][2] == {"container": "hopyard", "tailLines": "200"}
    assert api.version() == (1, 30)
    assert api.allowed("create", "jobs") and not api.allowed("get", "pods", "log")
    asked = [request[3]["spec"]["resourceAttributes"] for request in server.requests[2:]]
    assert asked == [
        {"namespace": "hop", "verb": "create", "group": "batch", "resource": "jobs"},
        {"namespace": "hop", "verb": "get", "group": "", "resource": "pods", "subresource": "log"},
    ]


def test_what_is_not_there_is_deleted(api: Api, server: ApiServer) -> None:
    server.answers["call"] = [refuse(404, "NotFound", 'jobs "a" not found'), refuse(403, "Forbidden", "no")]
    api.delete("jobs", "a")
    with pytest.raises(ApiError, match="403"):
        api.delete("jobs", "a")


@pytest.mark.parametrize(
    ("answer", "status", "reason", "text", "away", "retry_after"),
    [
        (refuse(403, "Forbidden", 'jobs is forbidden: User "x"'), 403, "Forbidden", "jobs is forbidden", False, 0),
        (refuse(409, "AlreadyExists", "there"), 409, "AlreadyExists", "there", False, 0),
        (refuse(422, "Invalid", "bad\x1b[0m\nfield"), 422, "Invalid", r"bad\x1b\[0m field|bad field", False, 0),
        (refuse(429, "TooManyRequests", "slow", {"Retry-After": "7"}), 429, "TooManyRequests", "slow", True, 7),
        (refuse(429, "TooManyRequests", "slow", retryAfterSeconds=3), 429, "TooManyRequests", "slow", True, 3),
        (refuse(500, "InternalError", "etcd"), 500, "InternalError", "etcd", True, 0),
        (lambda handler: handler.send(503, b"<html>no upstream"), 503, "", "no upstream", True, 0),
        (lambda handler: handler.send(503, b"", {"Retry-After": "2"}), 503, "", "no text", True, 2),
        (lambda handler: handler.send(502, ["odd"]), 502, "", "odd", True, 0),
        (lambda handler: handler.send(403, {"error": "odd"}), 403, "", "odd", False, 0),
        (
            refuse(503, "ServiceUnavailable", "date", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
            503,
            "ServiceUnavailable",
            "date",
            True,
            0,
        ),
        (lambda handler: handler.send(200, b"<html>log in"), 0, "", "gave no JSON but .*log in", True, 0),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), 0, "", "cannot be reached", True, 0),
    ],
)
def test_errors(
    api: Api, server: ApiServer, answer: Any, status: int, reason: str, text: str, away: bool, retry_after: float
) -> None:
    server.answers["call"] = [answer]
    with pytest.raises(ApiError, match=text) as caught:
        api.create("jobs", {"kind": "Job"})
    error = caught.value
    assert (error.status, error.reason, error.away, error.retry_after) == (status, reason, away, retry_after)
    assert len(server.requests) == 1  # the caller decides whether it asks again


def test_a_server_that_says_nothing_or_is_away(
    api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apis, "READ_SECONDS", 0.2)
    server.answers["call"] = [hang]
    with pytest.raises(ApiError, match=r"cannot be reached.*[Tt]imed? ?out") as caught:
        api.get("jobs", "a")
    assert (caught.value.status, caught.value.away) == (0, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
    with pytest.raises(ApiError, match=f"127.0.0.1:{port} cannot be reached.*refused"):
        Api().version()


def test_many_threads(api: Api, server: ApiServer) -> None:
    server.default["call"] = lambda handler: handler.send(200, {"name": handler.path.rpartition("/")[2]})
    wrong: list[Any] = []

    def ask(number: int) -> None:
        for turn in range(20):
            name = f"{number}-{turn}"
            if api.get("jobs", name) != {"name": name}:
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(server.requests) == 160


def test_namespace_and_server(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig(tmp_path / "config", server.url)
    assert [Api(*each).namespace for each in ((), ("here", "mine"), ("bare",), ("bare", "mine"))] == [
        "hop", "mine", "default", "mine",
    ]  # fmt: skip
    assert (Api().server, Api().host) == (server.url, "127.0.0.1")


def test_several_kubeconfigs_are_one(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path / "one", "http://one", **{"current-context": "there"})
    two = {"contexts": [{"name": "there", "context": {"cluster": "c", "user": "u", "namespace": "two"}}]}
    (tmp_path / "two").write_text(json.dumps(two))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert Api().namespace == "two"


@pytest.mark.parametrize(
    ("text", "context", "match"),
    [
        (None, None, "no kubeconfig .*config.*in no pod.*KUBECONFIG"),
        (None, "here", r"context='here'.*no kubeconfig .*config"),
        ("{}", None, r"no current context.*one of \[\]"),
        ("a: [", None, "cannot be read"),
        ("- a", None, "cannot be read"),
        ("", None, "cannot be read"),
        ({}, "heer", r"context=\) = 'heer'.*did you mean 'here'.*'here', 'bare'"),
        ({"current-context": "gone"}, None, "current-context = 'gone'.*'here', 'bare'"),
        ({"current-context": ""}, None, r"no current context.*\['here', 'bare'\]"),
        ({"clusters": []}, None, "context 'here'.*cannot be used.*name c"),
        ({"cluster": {"certificate-authority": "gone.crt"}}, None, "context 'here'.*cannot be used.*gone.crt"),
    ],
)
def test_configurations_that_cannot_be(text: Any, context: str | None, match: str, tmp_path: Path) -> None:
    if isinstance(text, dict):
        kubeconfig(tmp_path / "config", "https://127.0.0.1:1", **text)
    elif text is not None:
        (tmp_path / "config").write_text(text)
    with pytest.raises(SpecError, match=match) as caught:
        Api(context)
    assert "\n" not in str(caught.value)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(number: int) -> Any:
        raise KeyError(number)

    for name in ("KUBECONFIG", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    with pytest.raises(SpecError, match=r"no kubeconfig ~/\.kube/config"):
        Api()


def test_the_client_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "kubernetes" or name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UsageError, match=r"pip install 'hopyard\[kubernetes\]'"):
        Api()


def test_a_pod_has_its_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    context, _ = tls_server(account)
    server = ApiServer(context=context)
    monkeypatch.setattr(configuration, "ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
    try:
        with pytest.raises(SpecError, match=r"no usable credentials.*token.*serviceAccountName"):
            Api()
        (account / "token").write_text("t1")
        assert Api().namespace == "default"
        (account / "namespace").write_text("team\n")
        api = Api()
        assert (api.namespace, api.server) == ("team", server.url)
        server.answers["call"] = [ok(listing()), refuse(401, "Unauthorized", "Unauthorized"), ok(listing())]
        api.list("pods")
        (account / "token").write_text("t2")
        api.list("pods")  # a token that the server no longer takes is read again
        assert [each[4]["authorization"] for each in server.requests] == ["bearer t1", "bearer t1", "bearer t2"]
        server.answers["call"] = [refuse(401, "Unauthorized", "Unauthorized")] * 2
        with pytest.raises(ApiError, match="401 Unauthorized"):
            api.list("pods")
    finally:
        server.close()


def test_an_authority_of_another_cluster(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    context, _ = tls_server(tmp_path / "one")
    _, other = tls_server(tmp_path / "two")
    server = ApiServer(context=context)
    try:
        data = base64.b64encode(other.read_bytes()).decode()
        kubeconfig(tmp_path / "config", server.url, cluster={"certificate-authority-data": data})
        with pytest.raises(ApiError, match=r"not trusted: self-signed certificate"):
            Api().version()
    finally:
        server.close()


@pytest.mark.slow
def test_a_plugin_gives_tokens(server: ApiServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (number + 1))\n"
        "status = {'token': f't{number}', 'expirationTimestamp': '2020-01-01T00:00:00Z'}\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps(kind | {'status': status}))\n"
    )
    version = "client.authentication.k8s.io/v1"
    user = {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(plugin)]}}
    kubeconfig(tmp_path / "config", server.url, user=user)
    api = Api()
    api.list("pods")
    api.list("pods")  # the token has expired at once
    tokens = [each[4]["authorization"] for each in server.requests]
    assert tokens[0] != tokens[1] and all(each.startswith("Bearer t") for each in tokens)


@pytest.mark.slow
def test_the_client_is_imported_late() -> None:
    names = ", ".join(f"hopyard.engines.kubernetes.{name}" for name in ("api", "watcher", "manifests", "reasons"))
    code = f"import sys, {names}; raise SystemExit(bool({{'kubernetes', 'urllib3'}} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

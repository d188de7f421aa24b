"""HTTPS around the API: connections, users, hooks and faults."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from kube.api.access import ADMIN, NODE, unauthorized
from kube.api.errors import Cut, Refused, bad_request, forbidden
from kube.api.execution import stream
from kube.api.routes import Answer, Request
from kube.faults import Fault

if TYPE_CHECKING:
    from kube.server import Cluster

OPEN = ("/version", "/healthz", "/readyz", "/livez")
"""What anybody may ask."""


class Listener(ThreadingHTTPServer):
    """Accepts connections until it is closed, and then ends them all."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, cluster: Cluster, address: str, port: int, context: ssl.SSLContext) -> None:
        self.cluster = cluster
        self.closing = threading.Event()
        self._context = context
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((address, port), Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True, name="kube-api")
        self._thread.start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in a thread of its own."""
        try:
            request.getpeername()  # raises for one that was reset, of which `wrap_socket` would leave a socket open
            request.settimeout(30)
            connection = self._context.wrap_socket(request, server_side=True)
            connection.settimeout(None)
        except OSError:  # whoever dialled speaks no TLS, does not trust us, or is gone
            return
        with self._lock:
            self._sockets.add(connection)
        try:
            if not self.closing.is_set():
                Handler(connection, client_address, self)
        except OSError:
            pass
        finally:
            with self._lock:
                self._sockets.discard(connection)
            connection.close()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._sockets:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Listener

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do(self) -> None:
        """Answer one request, or end the connection."""
        cluster = self.server.cluster
        try:
            request = self._request()
            if cluster.is_lost(request.user):
                raise Cut
            if request.path.endswith("/exec"):
                self._execute(request)
                return
            self._write(self._answer(request), request)
        except Refused as refusal:
            headers = {}
            if "retryAfterSeconds" in refusal.details:
                headers["Retry-After"] = str(refusal.details["retryAfterSeconds"])
            self._send(refusal.code, json.dumps(refusal.status).encode(), "application/json", headers)
        except Cut:
            self.close_connection = True
        except OSError:
            self.close_connection = True
        except Exception as error:
            cluster.failures.append(error)
            status = Refused(500, "InternalError", f"a fault of tests/kube: {traceback.format_exc()}").status
            self._send(500, json.dumps(status).encode(), "application/json", {})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

    def _answer(self, request: Request) -> Answer:
        """Return the answer; requests of all but kubelets are listed, hooked, and meet faults."""
        cluster = self.server.cluster
        if request.user.startswith(NODE):
            return cluster.api.answer(request)
        cluster.requests.append((self.command, self.path))
        hook = cluster.on_request
        if hook is not None:
            hook("before", request)
        fault = cluster.faults.take(f"{self.command} {self.path}")
        answer = cluster.api.answer(request) if fault is None else self._meet(fault, request)
        if hook is not None:
            hook("after", request)
        return answer

    def _execute(self, request: Request) -> None:
        """Run a command in a pod, for whoever may."""
        self._answer(Request("GET", request.path, {}, {}, "", request.user))  # raises for whoever may not
        words = parse_qs(urlsplit(self.path).query).get("command", [])
        execute = self.server.cluster.execute
        if execute is None or self.headers.get("Upgrade", "").lower() != "websocket":
            raise bad_request("this cluster runs no commands in pods, or by WebSocket alone")
        pod = request.path.split("/")[-2]
        try:
            process = execute(pod, words)
        except (KeyError, StopIteration):
            raise bad_request(f"cannot exec into a container of pod {pod}, which does not run") from None
        stream(self, process)

    def _meet(self, fault: Fault, request: Request) -> Answer:
        """Do to a request what a fault says."""
        is_watch = "watch" in request.query
        if fault.kind == "half-open":
            self._hold(is_watch)
        if fault.kind == "lost":
            self.server.cluster.api.answer(request)
        if not isinstance(fault.kind, int):
            raise Cut
        refusal = fault.refusal()
        if fault.kind == 410 and is_watch:
            return Answer(200, iter([json.dumps({"type": "ERROR", "object": refusal.status}).encode() + b"\n"]))
        raise refusal

    def _request(self) -> Request:
        """Read a request.

        Raises:
            Refused: 400, 401, 403 or 415.
        """
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        user = self.server.cluster.user_of(token) if scheme.lower() == "bearer" else None
        if user is None and url.path not in OPEN:
            raise unauthorized()
        other = self.headers.get("Impersonate-User")
        if other and user != ADMIN:
            raise forbidden("users", "", other, f'User "{user}" cannot impersonate resource "users" in API group ""')
        kind = self.headers.get("Content-Type", "").partition(";")[0]
        if data and kind and not kind.endswith("json"):
            message = (
                "the body of the request was in an unknown format - accepted media types include: application/json"
            )
            raise Refused(415, "UnsupportedMediaType", message)
        try:
            body = json.loads(data) if data else {}
        except ValueError as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from None
        return Request(self.command, url.path, query, body, kind, other or user or "system:anonymous")

    def _write(self, answer: Answer, request: Request) -> None:
        headers = (
            {"Warning": ", ".join(f'299 - "{_quoted(one)}"' for one in answer.warnings)} if answer.warnings else {}
        )
        if isinstance(answer.body, str):
            self._send(answer.code, answer.body.encode(), "text/plain", headers)
        elif isinstance(answer.body, dict):
            self._send(answer.code, json.dumps(answer.body).encode(), "application/json", headers)
        else:
            self._stream(
                answer.body, "text/plain" if request.path.endswith("/log") else "application/json", request.user
            )

    def _send(self, code: int, data: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _headers(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _stream(self, parts: Iterator[bytes], kind: str, user: str) -> None:
        self._headers(kind)
        for part in parts:
            if part:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
            elif self._gone() or self.server.cluster.is_lost(user):
                raise Cut
        self.wfile.write(b"0\r\n\r\n")

    def _hold(self, is_watch: bool) -> None:
        """Say nothing until the other side, or the server, ends."""
        if is_watch:
            self._headers("application/json")
        while not self._gone():
            self.server.closing.wait(0.05)

    def _gone(self) -> bool:
        """Whether the client has closed its connection, or the server is closing."""
        if self.server.closing.is_set():
            return True
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""Requests of a kubelet to an API server: plain JSON, one connection each."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
"""An object of Kubernetes, as JSON."""
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
SECONDS = 30.0


class RefusedError(Exception):
    """The API server answered with an error; `code` is its status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Client:
    """The API server at `url`. The certificate of https is not checked: tests only."""

    def __init__(self, url: str, token: str = "") -> None:
        self._address, self._token = urlsplit(url), token
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: that takes long
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._lock = threading.Lock()
        self._watches: set[socket.socket] = set()
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] = {},
    ) -> Object:
        """Return the answer to a request. Raises RefusedError, OSError or HTTPException."""
        with contextlib.closing(self._connection(SECONDS)) as connection:
            answer = self._send(connection, method, path, body, kind, query)
            return dict(json.loads(answer.read() or b"{}"))

    def patch_status(self, path: str, status: Mapping[str, Any]) -> None:
        """Merge into the status of an object: strategically where the server can, else replacing lists."""
        try:
            self.call("PATCH", f"{path}/status", {"status": status}, kind=STRATEGIC)
        except RefusedError as error:
            if error.code != 415:
                raise
            self.call("PATCH", f"{path}/status", {"status": status}, kind=MERGE)

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[Object]:
        """Yield the events of a watch, until the server or `close` ends it."""
        with contextlib.closing(self._connection(330)) as connection:
            connection.connect()
            line: socket.socket = connection.sock
            with self._lock:
                if self._closed:
                    return
                self._watches.add(line)
            try:
                answer = self._send(
                    connection, "GET", path, None, "", {"watch": "true", "timeoutSeconds": "300", **query}
                )
                with answer:
                    while event := answer.readline():
                        yield json.loads(event)
            finally:
                with self._lock:
                    self._watches.discard(line)

    def close(self) -> None:
        """End the watches of all threads."""
        with self._lock:
            self._closed = True
            for line in self._watches:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def _connection(self, seconds: float) -> HTTPConnection:
        """Return a connection that is not open yet."""
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "http":
            return HTTPConnection(host, port, timeout=seconds)
        return HTTPSConnection(host, port, timeout=seconds, context=self._context)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: Object | None,
        kind: str,
        query: Mapping[str, str],
    ) -> HTTPResponse:
        """Return the answer, whose body is not read yet."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        target = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, target, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            text = answer.read().decode(errors="replace")
            try:
                message = str(json.loads(text)["message"])
            except (ValueError, KeyError, TypeError):
                message = text
            raise RefusedError(answer.status, message)
        return answer


AWAY = (OSError, HTTPException, ValueError)
"""What a request raises when the API server is away, or falls silent in the midst of an answer."""

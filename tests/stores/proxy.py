"""A proxy in front of a server of S3 that answers slowly, or with errors of its own."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stores.servers import S3

ERRORS = {
    500: "<Code>InternalError</Code><Message>We encountered an internal error. Please try again.</Message>",
    503: "<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>",
}
"""As S3 has them."""
OWN = {"connection", "expect", "transfer-encoding"}
"""Headers of one connection, which a proxy does not pass on."""


@dataclass
class Faults:
    """What the proxy does to requests, at present. Of `share` it answers with `status`, and passes the others on."""

    status: int = 0
    share: float = 0.0
    delay: float = 0.0
    refused: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(0))


@contextmanager
def proxy(server: S3) -> Iterator[tuple[S3, Faults]]:
    """Put a proxy before a server. Gives the server as its clients see it, and the faults."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has gone
                self.close_connection = True

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            time.sleep(faults.delay)
            if faults.dice.random() < faults.share:
                faults.refused += 1
                answer = f"<Error>{ERRORS[faults.status]}</Error>".encode()
                return self._answer(faults.status, {"Content-Length": str(len(answer))}, answer)
            connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            finally:
                connection.close()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in OWN}
            if self.command != "HEAD":
                headers["Content-Length"] = str(len(answer))
            return self._answer(response.status, headers, answer)

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{listener.server_port}"
        environment = {**server.environment, "AWS_ENDPOINT_URL": endpoint}
        try:
            yield replace(server, endpoint=endpoint, environment=environment), faults
        finally:
            listener.shutdown()
            thread.join()

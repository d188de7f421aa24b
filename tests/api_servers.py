"""An HTTP server that plays the Kubernetes API as a test tells it: it answers from a list, and remembers requests."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer, which is written in two parts, takes 40 ms
    server: ApiServer

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one(self) -> None:
        at = urlsplit(self.path)
        self.query = dict(parse_qsl(at.query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        raw = self.headers["Content-Type"] == "application/octet-stream"
        self.body = body if raw else json.loads(body) if body else None
        kind = "watch" if "watch" in self.query else "call"
        with self.server.lock:
            self.server.requests.append((self.command, at.path, self.query, self.body, dict(self.headers)))
            waiting = self.server.answers[kind]
            answer = waiting.pop(0) if waiting else self.server.default[kind]
        try:
            answer(self)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | dict(headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class ApiServer(ThreadingHTTPServer):
    """Answers requests from `answers`, and others by `default`."""

    daemon_threads = True

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), Handler)
        self.lock, self.over = threading.Lock(), threading.Event()
        self.requests: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []
        self.answers: dict[str, list[Answer]] = {"call": [], "watch": []}
        self.default: dict[str, Answer] = {"call": ok(listing()), "watch": events()}
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://{host}:{self.server_address[1]}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that are cut."""

    def counted(self, kind: str) -> int:
        """Return how many lists, or watches, were asked for."""
        with self.lock:
            return sum(("watch" in query) == (kind == "watch") for _, _, query, _, _ in self.requests)

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


def pod(name: str, version: int = 1, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": status}


def listing(*objects: dict[str, Any], version: int = 1) -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {"resourceVersion": str(version)}, "items": list(objects)}


def failure(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details,
    }  # fmt: skip


def ok(body: Any, status: int = 200) -> Answer:
    return lambda handler: handler.send(status, body)


def refuse(code: int, reason: str, message: str, headers: Mapping[str, str] | None = None, **details: Any) -> Answer:
    return lambda handler: handler.send(code, failure(code, reason, message, **details), headers)


def events(*pairs: tuple[str, dict[str, Any]], end: bool = False) -> Answer:
    """Stream events, then end the watch, or leave it open until the server closes."""

    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for kind, body in pairs:
            handler.chunk(json.dumps({"type": kind, "object": body}).encode() + b"\n")
        if not end:
            handler.server.over.wait(60)
            handler.close_connection = True
        else:
            handler.chunk(b"")

    return answer


def hang(handler: Handler) -> None:
    """Say nothing."""
    handler.server.over.wait(60)
    handler.close_connection = True


def cut(handler: Handler) -> None:
    """End the connection in the middle of an event."""
    handler.begin_stream()
    handler.wfile.write(b'40\r\n{"type": "ADDED", "obj')
    handler.wfile.flush()
    handler.close_connection = True


def kubeconfig(path: Path, server: str, **more: Any) -> Path:
    """Write a kubeconfig (JSON is YAML) with the contexts "here", of the namespace "hop", and "bare"."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server, **more.pop("cluster", {})}}],
        "users": [{"name": "u", "user": more.pop("user", {"token": "secret"})}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "hop"}},
            {"name": "bare", "context": {"cluster": "c", "user": "u"}},
        ],
        **more,
    }
    path.write_text(json.dumps(config))
    return path


def tls_server(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the context of a server at 127.0.0.1, and the file of the authority that has signed its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube-apiserver")])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    authority, private = folder / "ca.crt", folder / "server.key"
    authority.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, private)
    return context, authority

"""The subresource exec: a command in a pod, by the WebSocket protocol of Kubernetes (v5.channel.k8s.io, without input).

Each message begins with the number of its channel. Sources: RFC 6455, section 5; KEP-4006, "Transition from SPDY to
WebSockets".
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from typing import IO

PROTOCOL = "v5.channel.k8s.io"
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OUTPUT, ERRORS, STATUS = 1, 2, 3
"""Channels."""
BINARY, CLOSE = 2, 8
"""Kinds of frames."""


def stream(handler: BaseHTTPRequestHandler, process: subprocess.Popen[bytes]) -> None:
    """Switch a connection to a WebSocket, and send what a process prints and how it ended."""
    key = hashlib.sha1((handler.headers["Sec-WebSocket-Key"] + MAGIC).encode(), usedforsecurity=False).digest()
    handler.send_response(101)
    for name, value in {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": base64.b64encode(key).decode(),
        "Sec-WebSocket-Protocol": PROTOCOL,
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.close_connection = True
    lock = threading.Lock()

    def send(kind: int, data: bytes) -> None:
        size = len(data)
        head = bytes([0x80 | kind, size]) if size < 126 else bytes([0x80 | kind, 126]) + size.to_bytes(2, "big")
        with lock:
            handler.wfile.write(head + data)
            handler.wfile.flush()

    def copy(channel: int, pipe: IO[bytes]) -> None:
        while data := pipe.read1(1 << 12):  # type: ignore[attr-defined]
            send(BINARY, bytes([channel]) + data)

    assert process.stdout is not None and process.stderr is not None
    copies = [
        threading.Thread(target=copy, args=(channel, pipe))
        for channel, pipe in ((OUTPUT, process.stdout), (ERRORS, process.stderr))
    ]
    with process:
        for thread in copies:
            thread.start()
        for thread in copies:
            thread.join()
    send(BINARY, bytes([STATUS]) + json.dumps(_status(process.returncode)).encode())
    send(CLOSE, (1000).to_bytes(2, "big"))


def _status(code: int) -> dict[str, object]:
    """Return the Status that says how a command ended."""
    base = {"metadata": {}, "kind": "Status", "apiVersion": "v1"}
    if not code:
        return {**base, "status": "Success"}
    return {
        **base,
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }

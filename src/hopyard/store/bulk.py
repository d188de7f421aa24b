"""Bytes by network, for who shares neither memory nor disk: States from peer to peer, and to the driver's store.

A request and its answer are two frames each: a header (MessagePack) and the bytes. The run's token in the header lets
a client in; with a server key all of it goes by CURVE. The answer carries the BLAKE3 of its bytes, which the client
checks. The wire of words (`driver.wire`) takes nothing large, so that no answer waits behind a State.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq

from hopyard.errors import ResourceError
from hopyard.hosts import LOOPBACK, is_loopback
from hopyard.spec import Ref
from hopyard.store.tree import digest

log = logging.getLogger(__name__)

SECONDS = 60.0
"""A server that does not answer for so long is not there. Writing States of 1 GB to a slow disk may take as long."""
DIAL_SECONDS = 5.0


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request: what is to be done, and with which State."""

    token: str
    what: str
    ref: Ref | None = None
    where: str = ""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Its answer. `fault`: "", "missing", "room", or "other"."""

    fault: str = ""
    text: str = ""
    digest: str = ""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a server is: `tcp://host:port`, its CURVE key or "" for plain bytes, and the token that lets clients in."""

    address: str
    key: str = ""
    token: str = ""


Handler = Callable[[Ask, memoryview], Any]
"""(request, its bytes) → bytes of the answer; FileNotFoundError and ResourceError reach the client as such."""

_ask = msgspec.msgpack.Decoder(Ask)
_reply = msgspec.msgpack.Decoder(Reply)
_encode = msgspec.msgpack.Encoder().encode


class Server:
    """Answers requests in a thread of its own, one after the other.

    Args:
        host: name under which clients reach this one; a loopback address binds to it alone.
        port: 0: any.
        token: of the run.
        handlers: what → function.
        encrypt: all of it by CURVE.

    Raises:
        ResourceError: the port is taken.
    """

    def __init__(
        self, host: str, token: str, handlers: Mapping[str, Handler], *, port: int = 0, encrypt: bool = False
    ) -> None:
        self._token = token
        self._handlers = dict(handlers)
        self._context = zmq.Context()
        # not REP: garbage of one peer that is gone again makes it lose its answer to the next
        self._socket = self._context.socket(zmq.ROUTER)
        key = ""
        if encrypt:
            public, secret = zmq.curve_keypair()
            self._socket.curve_secretkey, self._socket.curve_publickey = secret, public
            self._socket.curve_server = True
            key = public.decode()
        self._socket.setsockopt(zmq.LINGER, 1000)
        try:
            self.place = Place(f"tcp://{host}:{bound(self._socket, host, port)}", key, token)
        except ResourceError:
            self._socket.close()
            self._context.term()
            raise
        self._door = self._context.socket(zmq.PAIR)
        self._knock = self._context.socket(zmq.PAIR)
        self._door.bind(f"inproc://{id(self)}")
        self._knock.connect(f"inproc://{id(self)}")
        self._thread = threading.Thread(target=self._run, name="hopyard-bulk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a request that is being answered is answered."""
        self._knock.send(b"")
        self._thread.join()
        self._knock.close()
        self._context.term()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._door, zmq.POLLIN)
        try:
            while True:
                events = dict(poller.poll())
                if self._door in events:
                    return
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    continue
                if len(frames) != 4 or frames[1].bytes:
                    continue  # no request: of none of our clients
                reply, data = self._answer(frames[2:])
                answer = [frames[0].bytes, b"", _encode(reply), data]
                self._socket.send_multipart(answer, copy=len(data) < 1 << 16)
        finally:
            self._socket.close()
            self._door.close()

    def _answer(self, frames: list[Any]) -> tuple[Reply, Any]:
        try:
            ask = _ask.decode(frames[0].buffer)
            if not hmac.compare_digest(ask.token.encode(), self._token.encode()):
                log.warning("a stranger asked for a State; it got none")
                return Reply("other", "not of this run"), b""
            data = self._handlers[ask.what](ask, memoryview(frames[1].buffer).cast("B"))
        except FileNotFoundError as error:
            return Reply("missing", str(error)), b""
        except ResourceError as error:
            return Reply("room", str(error)), b""
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must not wait for ever
            return Reply("other", f"{type(error).__name__}: {error}"), b""
        return Reply(digest=digest(data) if len(data) else ""), data


def bound(socket_: Any, host: str, port: int) -> int:
    """The port that a socket listens on: for this host alone where nobody else has to reach it.

    Raises:
        ResourceError: the port is taken.
    """
    where = f"tcp://{LOOPBACK}" if is_loopback(host) else "tcp://*"
    try:
        if port:
            socket_.bind(f"{where}:{port}")
            return port
        return int(socket_.bind_to_random_port(where))
    except zmq.ZMQError as error:
        raise ResourceError(f"port {port} on {host}: {error}; give another port=, or port=0 for any") from error


class Client:
    """Asks servers; one connection each, kept. May be used by several threads, one at a time.

    Args:
        public, secret: CURVE keys of the run's clients.
        seconds: to wait for an answer.
    """

    def __init__(self, public: str = "", secret: str = "", seconds: float = SECONDS) -> None:
        self._keys = public, secret
        self._seconds = seconds
        self._context = zmq.Context()
        self._sockets: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ask(self, place: Place, ask: Ask, data: memoryview | bytes = b"") -> Any:
        """The bytes of the answer, a buffer.

        Raises:
            FileNotFoundError: the server has no such thing.
            ResourceError: it has no room for it.
            ConnectionError: it is not there, does not answer, answered with another error, or with bytes that were
                damaged on the way. The same may work the next time.
        """
        with self._lock:
            line = self._line(place)
            try:
                line.send_multipart([_encode(ask), data], copy=len(data) < 1 << 16)
                head, body = line.recv_multipart(copy=False)
            except (zmq.ZMQError, ValueError) as error:
                self._sockets.pop(place.address).close(0)  # a request without its answer cannot be followed by another
                raise ConnectionError(f"{place.address} does not answer: {error}") from error
        reply = _reply.decode(head.buffer)
        if reply.fault == "missing":
            raise FileNotFoundError(reply.text)
        if reply.fault == "room":
            raise ResourceError(reply.text)
        if reply.fault:
            raise ConnectionError(f"{place.address}: {reply.text}")
        found = memoryview(body.buffer).cast("B")
        if reply.digest and digest(found) != reply.digest:
            raise ConnectionError(f"{place.address}: State {ask.ref} was damaged on its way")
        return found

    def close(self) -> None:
        """Hang up."""
        for line in self._sockets.values():
            line.close(0)
        self._sockets.clear()
        self._context.term()

    def _line(self, place: Place) -> Any:
        line = self._sockets.get(place.address)
        if line is None:
            line = self._context.socket(zmq.REQ)
            if place.key:
                public, secret = self._keys
                line.curve_serverkey = place.key.encode()
                line.curve_publickey, line.curve_secretkey = public.encode(), secret.encode()
            line.setsockopt(zmq.LINGER, 0)
            line.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a server that is not there
            line.setsockopt(zmq.SNDTIMEO, int(min(DIAL_SECONDS, self._seconds) * 1000))
            line.setsockopt(zmq.RCVTIMEO, int(self._seconds * 1000))
            line.connect(place.address)
            self._sockets[place.address] = line
        return line


class RemoteStore:
    """The driver's store, for workers that cannot reach it themselves."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync, over there. Raises ResourceError when there is no room."""
        self._client.ask(self._place, Ask(self._place.token, "put", ref), data)

    def get(self, ref: Ref) -> bytearray:
        """The bytes as stored. Raises FileNotFoundError."""
        return bytearray(self._client.ask(self._place, Ask(self._place.token, "get", ref)))

    def delete(self, ref: Ref) -> None:
        """No error when it is not there."""
        self._client.ask(self._place, Ask(self._place.token, "delete", ref))

    def refs(self) -> set[Ref]:
        """All that is stored."""
        found = self._client.ask(self._place, Ask(self._place.token, "refs"))
        return set(msgspec.msgpack.decode(found, type=list[Ref]))


class Depot:
    """Handlers of a Server over a store. Counts what it took."""

    def __init__(self, store: Any, first: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._first = first
        self.bytes = 0
        """That came in."""

    def handlers(self) -> dict[str, Handler]:
        """For `Server`."""
        return {"put": self._put, "get": self._get, "delete": self._delete, "refs": self._refs}

    def _put(self, ask: Ask, data: memoryview) -> bytes:
        if not self.bytes:
            self._first()
        self._store.put(ask.ref, data)
        self.bytes += len(data)
        return b""

    def _get(self, ask: Ask, data: memoryview) -> bytearray:
        found: bytearray = self._store.get(ask.ref)
        return found

    def _delete(self, ask: Ask, data: memoryview) -> bytes:
        self._store.delete(ask.ref)
        return b""

    def _refs(self, ask: Ask, data: memoryview) -> bytes:
        return msgspec.msgpack.encode(list(self._store.refs()))

"""The driver's end of the wire: a socket that agents dial.

ZeroMQ with CURVE keys made for the run: whoever does not know them is dropped before a byte of theirs is decoded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from hopyard.agent.connection import KEEPALIVE
from hopyard.core.delivery import Delivery, Head, Unconfirmed
from hopyard.core.messages import (
    FRAME_LIMIT,
    WIRE,
    Beat,
    Card,
    Down,
    End,
    GaveUp,
    Hello,
    Setup,
    Store,
    Up,
    framed,
    pack,
    unframed,
    unpack_up,
)
from hopyard.core.programs.messages import Host
from hopyard.core.runs.liveness import COMPUTING, PHASES, Sample, Stall
from hopyard.driver.links import Gone
from hopyard.driver.timeouts import Timeouts
from hopyard.errors import HopyardError, ResourceError
from hopyard.ports import AgentEngine, Agents, LaunchInfo, OutOfMemory
from hopyard.system.network import address_to_bind, joined

log = logging.getLogger(__name__)

BEATS = 6
"""Heartbeats in `heartbeat_timeout`, and in `stall_timeout`, at least."""
LOOK_AT_LEAST = 1.0
"""Seconds after which all agents are looked at though nothing arrived: not every time-out of an engine has a
descriptor that ends the waiting."""
LOOK_SECONDS = 0.05
"""Between two looks at all agents, at most, however much arrives: each look costs some µs for each of them."""
UNCONFIRMED = 600.0
"""Seconds in which an agent that need not make progress, as one of a program, must confirm what it is told."""
_POLLIN, _EVENTS, _RCVMORE = int(zmq.POLLIN), int(zmq.EVENTS), int(zmq.RCVMORE)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain numbers: to combine two of pyzmq's costs more than the call for which it is done."""
BEAT_SECONDS = 2.5
"""Between heartbeats, at most: a worker that hangs is found within two of them."""


SIDE_MESSAGES: tuple[type[Any], ...] = (Store,)
"""What an agent is told in the middle of a unit."""


class Peer:
    """An agent that has dialled, by two sockets: one for units, and one that it reads at any time."""

    __slots__ = ("delivery", "excused", "main", "name", "side", "slot")

    def __init__(self, slot: int, name: bytes, patience: float) -> None:
        self.slot = slot
        self.name = name
        self.main, self.side = b"w" + name, b"s" + name
        self.delivery = Delivery(patience)
        self.excused = -math.inf
        """Until when nobody could expect that it confirms what it was told."""

    def mute(self, now: float, stall_timeout: float | None) -> str:
        """Why it counts as out of reach; "" when it does not."""
        seconds = now - max(self.delivery.since, self.excused)
        if seconds < (UNCONFIRMED if stall_timeout is None else stall_timeout):
            return ""
        limit = f"at most {UNCONFIRMED:g} are waited" if stall_timeout is None else f"stall_timeout={stall_timeout:g}"
        return (
            f"has not confirmed for {seconds:.0f} seconds what it was told, though its heartbeats come ({limit}): its "
            "connection may be broken"
        )


class Router:
    """A socket for agents that dial home. What is sent to an agent arrives, once and in order, and so does what the
    agent sends (`core/delivery.py`), as long as both live.

    Args:
        engine: brings agents up.
        setup: slot's device → what each agent is told once: of a run, or of a program.
        log_of: slot → its log.
        heartbeat_timeout: seconds after which an agent that says nothing is lost.
        stall_timeout: seconds after which one that makes no progress is lost; None: it need not make any.
    """

    def __init__(
        self,
        engine: AgentEngine,
        setup: Callable[[str], Setup | Host],
        log_of: Callable[[int], Path],
        heartbeat_timeout: float,
        stall_timeout: float | None = None,
    ) -> None:
        self._setup = setup
        self._heartbeat_timeout = heartbeat_timeout
        self._stall_timeout = stall_timeout
        self._beat = beat = min(
            heartbeat_timeout / BEATS, BEAT_SECONDS, math.inf if stall_timeout is None else stall_timeout / BEATS
        )
        self._context = zmq.Context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        server_public, server_secret = zmq.curve_keypair()
        public, secret = zmq.curve_keypair()
        self._auth.configure_curve_callback(domain="*", credentials_provider=_Allowed(public))
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_secretkey = server_secret
        self._router.curve_publickey = server_public
        self._router.curve_server = True
        self._router.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        for option, value in KEEPALIVE.items():
            self._router.setsockopt(option, value)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # who dials again, as its connection broke, is let in at once
        try:
            host, port = engine.address
            port = _bound(self._router, host, port)

            def card(slot: int) -> bytes:
                keys = server_public.decode(), public.decode(), secret.decode()
                home = f"tcp://{joined(host, port)}"
                return msgspec.json.encode(Card(slot, home, *keys, beat=beat, stall=stall_timeout or 0.0)) + b"\n"

            self._agents: Agents = engine.open(LaunchInfo(card, log_of))
        except BaseException:
            self._close_sockets()
            raise
        self._timeouts = Timeouts(heartbeat_timeout, stall_timeout)
        self._peers: dict[int, Peer] = {}
        self._by_name: dict[bytes, Peer | None] = {}
        """By name, without the letter of a socket; None: of a slot that was started anew since."""
        self._unconfirmed: set[Peer] = set()
        """Who is to be told that its messages are confirmed."""
        self._overfull: dict[int, Gone] = {}
        """By slot, until it is told, or the slot has another process."""
        self._setups: dict[str, bytes] = {}
        """Device → what agents with such a device are told once; it may be large, and they be many."""
        self._poller: tuple[zmq.Poller, list[int]] = zmq.Poller(), []
        """And the files that it looks at, beside the socket."""
        self._checked = time.monotonic()
        self._looked = self._checked
        self._lag = 0.0

    @property
    def agents(self) -> Agents:
        """The agents as their engine sees them."""
        return self._agents

    def start(self, slot: int) -> None:
        """Bring up an agent."""
        self._forget(slot)
        self._timeouts.start(slot)
        self._agents.start(slot)

    def end(self, slot: int) -> None:
        """End an agent; what it still sends is dropped."""
        self._forget(slot)
        self._agents.end(slot)

    def send(self, slot: int, message: Down) -> None:
        """Say something to an agent; to one that is gone it is said in vain."""
        if (peer := self._peers.get(slot)) is not None:
            self._send(peer, pack(message), isinstance(message, SIDE_MESSAGES))

    def receive(self, seconds: float, also: int = -1) -> list[Up | Gone]:
        """All that arrived. Something to read from the file `also` ends the waiting, too."""
        self._send_confirmations()
        wait = max(0.0, min(seconds, LOOK_AT_LEAST, self._heartbeat_timeout / 4))
        ready = dict(self._polled(also).poll(math.ceil(wait * 1000)))
        arrived: list[Up | Gone] = list(self._arrived()) if self._router in ready else []
        now = time.monotonic()
        look = not arrived or len(ready) > 1 or not 0 <= now - self._looked < LOOK_SECONDS
        if look:
            self._looked = now
            self._add_lost(arrived)
        if look or self._overfull:
            arrived += self._resend(now)
        lag = now - self._checked - wait
        if lag > self._heartbeat_timeout / 2:  # this process itself did not run: nobody else is to blame
            self._lag += lag
            self._timeouts.excuse(now)
            for peer in self._peers.values():
                peer.excused = now
        self._checked = now
        if look:
            arrived += self._timed_out(now)
        return arrived

    def _polled(self, also: int) -> zmq.Poller:
        """Looks at the socket and at all files of which one becomes readable when there is something to do."""
        files = [also, *self._agents.watch()]
        if files != self._poller[1]:
            poller = zmq.Poller()
            for file in files:
                if file >= 0:
                    poller.register(file, zmq.POLLIN)
            poller.register(self._router, zmq.POLLIN)
            self._poller = poller, files
        return self._poller[0]

    def _add_lost(self, arrived: list[Up | Gone]) -> None:
        """Add those that ended to what arrived.

        Raises:
            ResourceError: no agent can ever come up, and nothing arrived.
        """
        try:
            lost = self._agents.lost()
        except ResourceError:
            if not arrived:
                raise
            return  # it says so again next time
        gone = {message.slot for message in arrived if isinstance(message, Gone)}
        for slot, reason in lost:
            self._forget(slot)
            if slot not in gone:
                arrived.append(Gone(slot, reason, isinstance(reason, OutOfMemory)))

    def _timed_out(self, now: float) -> list[Gone]:
        """Slots that are silent, or make no progress."""
        found = []
        for slot, why in self._timeouts.expired(now, self._agents.waits):
            peer = self._peers.get(slot)
            if reason := why or ("" if peer is None else peer.mute(now, self._stall_timeout)):
                found.append(Gone(slot, reason))
        for gone in found:
            self._forget(gone.slot)
        return found

    def _forget(self, slot: int) -> None:
        """What this slot's process still says, or was told, is of no interest any more."""
        self._timeouts.forget(slot)
        self._overfull.pop(slot, None)
        peer = self._peers.pop(slot, None)
        if peer is not None:
            self._by_name[peer.name] = None
            self._unconfirmed.discard(peer)

    def stalls(self) -> dict[int, Stall]:
        """Those that are past `liveness.SHOWN`."""
        return self._timeouts.stalls()

    def _arrived(self) -> Iterator[Up | Gone]:
        """All that has arrived."""
        router = self._router
        while int(router.get(_EVENTS)) & _POLLIN:  # an exception, after the last one, would cost twice as much
            name, data = router.recv(_NOBLOCK), router.recv(_NOBLOCK)
            if router.get(_RCVMORE):
                while router.get(_RCVMORE):
                    router.recv(_NOBLOCK)
            elif name[:1] == b"b":
                self._heartbeat(name, data)
            else:
                yield from self._numbered(name, data)

    def _heartbeat(self, name: bytes, body: bytes) -> None:
        """A heartbeat, the only message without a number: the agent lives, and has come so far."""
        message = self._read(name, body)
        if message is None:
            return
        if not isinstance(message, Beat):
            log.warning("dropped a message: %s of slot %d has no number", type(message).__name__, message.slot)
            return
        peer = self._by_name.get(name[1:])
        if message.slot not in self._timeouts or (peer is None and name[1:] in self._by_name):
            return  # of an agent that was ended
        self._timeouts.heard(message.slot)
        if peer is not None:
            peer.delivery.heard(message.taken)
        if not message.phase < len(PHASES):
            log.warning("dropped a heartbeat of slot %d: it has no phase %d", message.slot, message.phase)
            return
        now, phase = time.monotonic(), PHASES[message.phase]
        if peer is not None and phase in COMPUTING:  # a compiler may hold the interpreter for long
            peer.excused = now
        self._timeouts.advanced(message.slot, Sample(now, message.advanced, phase, message.cpu_seconds))

    def _numbered(self, name: bytes, data: bytes) -> Iterator[Up | Gone]:
        """What a numbered message brings: itself, or nothing, or more that waited for it."""
        try:
            head, body = unframed(data)
        except HopyardError as error:
            log.warning("dropped a message: %s", error)
            return
        if name[1:] not in self._by_name:
            self._admit(name, head, body)
            return
        peer = self._by_name[name[1:]]
        if peer is None or peer.slot not in self._timeouts:
            return  # of an agent that was ended
        self._timeouts.heard(peer.slot)
        self._unconfirmed.add(peer)
        for each in peer.delivery.receive(head, body):
            if (message := self._read(name, each)) is not None:
                yield message
        if body and not head.number and isinstance(message := self._read(name, body), GaveUp):
            self._forget(peer.slot)
            yield Gone(peer.slot, message.reason)

    def _read(self, name: bytes, body: bytes) -> Up | None:
        """The message of whoever has this name; None: it is none of theirs."""
        try:
            message = unpack_up(body)
            if not name[1:].startswith(b"%d." % message.slot):
                raise HopyardError(f"slot {message.slot} speaks under the name {name!r}")
        except HopyardError as error:
            log.warning("dropped a message: %s", error)
            return None
        return message

    def _admit(self, name: bytes, head: Head, body: bytes) -> None:
        """An agent dialled: it is told what it is for."""
        message = self._read(name, body)
        if not isinstance(message, Hello) or message.slot not in self._timeouts:
            return  # of an agent that was never started, or was ended
        if message.format != WIRE:
            log.error("slot %d speaks format %d, this driver %d", message.slot, message.format, WIRE)
            return
        if (old := self._peers.get(message.slot)) is not None:
            self._by_name[old.name] = None
        self._overfull.pop(message.slot, None)
        peer = Peer(message.slot, name[1:], 2 * self._beat)
        self._peers[message.slot] = self._by_name[peer.name] = peer
        self._timeouts.heard(message.slot)
        peer.delivery.receive(head, body)
        peer.delivery.confirm()
        device = self._agents.device(message.slot)
        if device not in self._setups:
            self._setups[device] = pack(self._setup(device))
        self._send(peer, self._setups[device])

    def confirm(self) -> None:
        """All that `receive` gave is on disk: what is sent from now on says so."""
        for peer in self._unconfirmed:
            peer.delivery.confirm()

    def _send_confirmations(self) -> None:
        """Confirm to those to whom nothing was sent since."""
        for peer in self._unconfirmed:
            if peer.delivery.untold:
                self._write(peer.side, peer.delivery.confirmation(), b"")
        self._unconfirmed.clear()

    def _resend(self, now: float) -> list[Gone]:
        """Send again what was not confirmed in time. Those who have confirmed too little are gone."""
        for peer in self._peers.values():
            if now >= peer.delivery.due:
                for head, body in peer.delivery.overdue(now):
                    self._write(peer.side, head, body)
        overfull = list(self._overfull.values())
        for gone in overfull:
            self._forget(gone.slot)
        return overfull

    def _send(self, peer: Peer, body: bytes, aside: bool = False) -> None:
        try:
            self._write(peer.side if aside else peer.main, peer.delivery.send(body, time.monotonic()), body)
        except Unconfirmed as error:
            self._peers.pop(peer.slot, None)
            self._by_name[peer.name] = None
            self._overfull[peer.slot] = Gone(peer.slot, f"does not hear what it is told: {error}")

    def _write(self, name: bytes, head: Head, body: bytes) -> None:
        self._router.send(name, _SNDMORE)
        self._router.send(framed(head, body))

    def paused(self) -> float:
        """What `receive` found of it."""
        lag, self._lag = self._lag, 0.0
        return lag

    def close(self) -> None:
        """Tell all to end, see that they do."""
        for slot in list(self._peers):
            self.send(slot, End())
        self._agents.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._router.close()
        self._auth.stop()
        self._context.term()


def _bound(router: zmq.Socket[bytes], host: str, port: int) -> int:
    """The port that the socket listens on, for those who dial `host`.

    Raises:
        ResourceError: the port is taken.
    """
    address = address_to_bind(host)
    router.ipv6 = ":" in address
    where = f"tcp://[{address}]" if router.ipv6 else f"tcp://{address or '*'}"
    try:
        if not port:
            return int(router.bind_to_random_port(where))
        router.bind(f"{where}:{port}")
    except zmq.ZMQError as error:
        raise ResourceError(f"port {port} on {host}: {error}; give another port=, or port=0 for any") from error
    return port


class _Allowed:
    """The keys of this run, and no others (ZAP)."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        from zmq.utils import z85

        return key == self._public or key == z85.decode(self._public)

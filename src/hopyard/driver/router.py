"""The driver's end of the wire: a ZeroMQ socket to which agents connect.

Its CURVE keys are made for the run: a peer that does not know them is dropped before a byte of its messages is decoded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from hopyard.agent.connection import KEEPALIVE
from hopyard.core.delivery import Delivery, Header, Unconfirmed
from hopyard.core.liveness import COMPUTING, PHASES, Sample, Stall
from hopyard.core.messages import (
    FRAME_LIMIT,
    WIRE,
    Beat,
    Card,
    Down,
    End,
    GaveUp,
    GiveUpUnit,
    Hello,
    Published,
    Setup,
    StoreState,
    Up,
    framed,
    pack,
    unframed,
    unpack_up,
)
from hopyard.core.programs.messages import HostTasks
from hopyard.driver.commit import Gone
from hopyard.driver.strangers import HANDSHAKE_SECONDS, Strangers
from hopyard.driver.timeouts import SlotTimers
from hopyard.errors import HopyardError, ResourceError
from hopyard.ports.engines import AgentEngine, Agents, GivesBack, LaunchInfo, OutOfMemory
from hopyard.system.limits import allow_files
from hopyard.system.network import BACKLOG, TAKEN, address_to_bind, joined

log = logging.getLogger(__name__)

BEATS = 6
"""Least number of heartbeats in `heartbeat_timeout`, and in `stall_timeout`."""
LOOK_AT_LEAST = 1.0
"""Seconds after which all agents are checked even if nothing arrived: not every time-out of an engine has a descriptor
that ends the waiting."""
LOOK_SECONDS = 0.05
"""Least seconds between two checks of all agents while messages or heartbeats arrive."""
LOOK_SHARE = 0.02
"""The part of the time that these checks may take: one costs some µs for each agent."""
SOCKETS = 3
"""Connections of an agent: of its main thread, of its other threads, and of its companion."""
FILES, LEAST_FILES = 12, 5
"""Files of the driver for each agent: as many as may be open at once while all start (pipes, descriptors of processes,
what is under way to a template), and as many as are open for long. `OTHER_FILES` are those of the driver itself."""
OTHER_FILES = 64
UNCONFIRMED = 600.0
"""Seconds in which an agent that need not make progress, such as one of a program, must confirm a message."""
_POLLIN, _EVENTS, _RCVMORE = int(zmq.POLLIN), int(zmq.EVENTS), int(zmq.RCVMORE)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""Plain integers: to combine two of pyzmq's flags costs more than the call for which it is done."""
BEAT_SECONDS = 2.5
"""Most seconds between two heartbeats: a worker that hangs is found within two of them."""


SIDE_MESSAGES: tuple[type[Any], ...] = (StoreState, Published, GiveUpUnit)
"""Messages that an agent reads in the middle of a unit."""


class ConnectedAgent:
    """An agent that has connected, with two sockets: one for units, and one that it reads at any time."""

    __slots__ = ("delivery", "excused", "main", "name", "side", "slot")

    def __init__(self, slot: int, name: bytes, patience: float) -> None:
        self.slot = slot
        self.name = name
        self.main, self.side = b"w" + name, b"s" + name
        self.delivery = Delivery(patience)
        self.excused = -math.inf
        """The time until which nobody could expect it to confirm messages."""

    def mute(self, now: float, stall_timeout: float | None) -> str:
        """Return why it counts as out of reach; "" when it does not."""
        seconds = now - max(self.delivery.outbox.since, self.excused)
        if seconds < (UNCONFIRMED if stall_timeout is None else stall_timeout):
            return ""
        limit = f"at most {UNCONFIRMED:g} are waited" if stall_timeout is None else f"stall_timeout={stall_timeout:g}"
        return (
            f"has not confirmed for {seconds:.0f} seconds what it was told, though its heartbeats come ({limit}): its "
            "connection may be broken"
        )


class Router:
    """The socket to which agents connect. Messages to an agent arrive once and in order, and so do messages from it
    (`core/delivery.py`), as long as both live.

    Args:
        engine: starts the agents.
        setup: device of a slot → the message that its agent gets once, about a run or a program.
        log_of: slot → its log.
        heartbeat_timeout: seconds after which an agent that sends nothing is lost.
        stall_timeout: seconds after which an agent that makes no progress is lost; None: it need not make any.
        frameworks: what agents import before they are ready.
        required: those of them without which no agent can work.
        open_ended: whether the agents may stay until the user ends them.
        together: how many agents must be up for any of them to be of use.
    """

    def __init__(
        self,
        engine: AgentEngine,
        setup: Callable[[str], Setup | HostTasks],
        log_of: Callable[[int], Path],
        heartbeat_timeout: float,
        stall_timeout: float | None = None,
        frameworks: tuple[str, ...] = (),
        required: tuple[str, ...] = (),
        open_ended: bool = False,
        together: int = 1,
    ) -> None:
        self._setup = setup
        self._heartbeat_timeout = heartbeat_timeout
        self._stall_timeout = stall_timeout
        self._beat = beat = min(
            heartbeat_timeout / BEATS, BEAT_SECONDS, math.inf if stall_timeout is None else stall_timeout / BEATS
        )
        _allow_files(engine.workers)
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
        self._router.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_SECONDS * 1000))
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.BACKLOG, BACKLOG)
        for option, value in KEEPALIVE.items():
            self._router.setsockopt(option, value)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an agent whose connection broke is let in again at once
        self._strangers: Strangers | None = None
        try:
            host, port = engine.endpoint
            port = _bound(self._router, host, port)
            self._strangers = Strangers(self._router, port, SOCKETS * engine.workers)

            def card_of(slot: int) -> bytes:
                keys = server_public.decode(), public.decode(), secret.decode()
                url = f"tcp://{joined(host, port)}"
                return msgspec.json.encode(Card(slot, url, *keys, beat=beat, stall=stall_timeout or 0.0)) + b"\n"

            self._agents: Agents = engine.open(LaunchInfo(card_of, log_of, frameworks, open_ended, required, together))
        except BaseException:
            self._close_sockets()
            raise
        self._timeouts = SlotTimers(heartbeat_timeout, stall_timeout)
        self._peers: dict[int, ConnectedAgent] = {}
        self._by_name: dict[bytes, ConnectedAgent | None] = {}
        """Name without the letter of a socket → its peer; None: the slot was started anew since."""
        self._unconfirmed: set[ConnectedAgent] = set()
        """Peers whose messages are to be confirmed."""
        self._overfull: dict[int, Gone] = {}
        """Slot → its end, until `receive` returns it or the slot has another process."""
        self._setups: dict[str, bytes] = {}
        """Device → the packed setup for agents with it: it may be large, and they be many."""
        self._poller: tuple[zmq.Poller, list[int]] = zmq.Poller(), []
        """The poller, and the files that it looks at beside the socket."""
        self._checked = time.monotonic()
        self._looked = self._checked
        self._look_seconds = LOOK_SECONDS
        self._lag = 0.0

    @property
    def agents(self) -> Agents:
        """The agents as their engine sees them."""
        return self._agents

    def start(self, slot: int) -> None:
        """Start an agent."""
        self._forget(slot)
        self._timeouts.start(slot)
        self._agents.start(slot)

    def end(self, slot: int) -> None:
        """End an agent; what it still sends is dropped."""
        self._forget(slot)
        self._agents.end(slot)

    def waiting(self) -> int:
        """Return how many slots wait for a place in a cluster that others use too."""
        assert isinstance(self._agents, GivesBack)
        return self._agents.waiting()

    def give_back(self, slots: Collection[int]) -> None:
        """End these agents, and leave their places to others."""
        assert isinstance(self._agents, GivesBack)
        for slot in slots:
            self._forget(slot)
        self._agents.give_back(slots)

    def send(self, slot: int, message: Down) -> None:
        """Send a message to an agent; one that is gone does not get it."""
        if (peer := self._peers.get(slot)) is not None:
            self._send(peer, pack(message), isinstance(message, SIDE_MESSAGES))

    def receive(self, seconds: float, wake_file: int = -1) -> list[Up | Gone]:
        """Return all that arrived. The waiting ends, too, when there is something to read from `wake_file`."""
        self._send_confirmations()
        wait = max(0.0, min(seconds, LOOK_AT_LEAST, self._heartbeat_timeout / 4))
        ready = dict(self._polled(wake_file).poll(math.ceil(wait * 1000)))
        arrived: list[Up | Gone] = list(self._arrived()) if self._router in ready else []
        now = time.monotonic()
        look = self._router not in ready or len(ready) > 1 or not 0 <= now - self._looked < self._look_seconds
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
            took = time.monotonic() - now
            self._look_seconds = min(LOOK_AT_LEAST, max(LOOK_SECONDS, took / LOOK_SHARE))
        return arrived

    def _polled(self, wake_file: int) -> zmq.Poller:
        """Return a poller of the socket and of all files that become readable when there is something to do."""
        files = [wake_file, *self._agents.watch()]
        if files != self._poller[1]:
            poller = zmq.Poller()
            for file in files:
                if file >= 0:
                    poller.register(file, zmq.POLLIN)
            poller.register(self._router, zmq.POLLIN)
            self._poller = poller, files
        return self._poller[0]

    def _add_lost(self, arrived: list[Up | Gone]) -> None:
        """Add the slots that ended to `arrived`.

        Raises:
            ResourceError: no agent can ever come up, and nothing arrived.
        """
        try:
            lost = self._agents.lost()
        except ResourceError:
            if not arrived:
                raise
            return  # the engine raises it again next time
        gone = {message.slot for message in arrived if isinstance(message, Gone)}
        for slot, reason in lost:
            self._forget(slot)
            if slot not in gone:
                arrived.append(Gone(slot, reason, isinstance(reason, OutOfMemory)))

    def _timed_out(self, now: float) -> list[Gone]:
        """Return the slots that are silent, or make no progress."""
        timed_out = []
        for slot, why in self._timeouts.expired(now, self._agents.waits):
            peer = self._peers.get(slot)
            if reason := why or ("" if peer is None else peer.mute(now, self._stall_timeout)):
                timed_out.append(Gone(slot, reason))
        for gone in timed_out:
            self._forget(gone.slot)
        return timed_out

    def _forget(self, slot: int) -> None:
        """Drop what is known of this slot's process; nothing that it still sends counts."""
        self._timeouts.forget(slot)
        self._overfull.pop(slot, None)
        peer = self._peers.pop(slot, None)
        if peer is not None:
            self._by_name[peer.name] = None
            self._unconfirmed.discard(peer)

    def stalls(self) -> Mapping[int, Stall]:
        """Return the slots that are past `liveness.SHOWN`."""
        return self._timeouts.stalls()

    def _arrived(self) -> Iterator[Up | Gone]:
        """Yield all that has arrived."""
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
        """Handle a heartbeat, the only message without a number: the agent lives, and has come so far."""
        message = self._read(name, body)
        if message is None:
            return
        if not isinstance(message, Beat):
            log.warning("dropped a message: %s of slot %d has no number", type(message).__name__, message.slot)
            return
        peer = self._by_name.get(name[1:])
        if message.slot not in self._timeouts or (peer is None and name[1:] in self._by_name):
            return  # its agent was ended
        self._timeouts.on_message(message.slot)
        if peer is not None:
            peer.delivery.outbox.confirm(message.taken)
        if not message.phase < len(PHASES):
            log.warning("dropped a heartbeat of slot %d: it has no phase %d", message.slot, message.phase)
            return
        now, phase = time.monotonic(), PHASES[message.phase]
        if peer is not None and phase in COMPUTING:  # a compiler may hold the interpreter for long
            peer.excused = now
        self._timeouts.advanced(message.slot, Sample(now, message.advanced, phase, message.cpu_seconds))

    def _numbered(self, name: bytes, data: bytes) -> Iterator[Up | Gone]:
        """Yield what a numbered message brings: itself, nothing, or also messages that waited for it."""
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
            return  # its agent was ended
        self._timeouts.on_message(peer.slot)
        self._unconfirmed.add(peer)
        for next_body in peer.delivery.receive(head, body):
            if (message := self._read(name, next_body)) is not None:
                yield message
        if body and not head.number and isinstance(message := self._read(name, body), GaveUp):
            self._forget(peer.slot)
            yield Gone(peer.slot, message.reason)

    def _read(self, name: bytes, body: bytes) -> Up | None:
        """Return the message of the sender with this name; None: it is not valid, or not that sender's."""
        try:
            message = unpack_up(body)
            if not name[1:].startswith(b"%d." % message.slot):
                raise HopyardError(f"slot {message.slot} speaks under the name {name!r}")
        except HopyardError as error:
            log.warning("dropped a message: %s", error)
            return None
        return message

    def _admit(self, name: bytes, head: Header, body: bytes) -> None:
        """Admit an agent that connected, and send it its setup."""
        message = self._read(name, body)
        if not isinstance(message, Hello) or message.slot not in self._timeouts:
            return  # its agent was never started, or was ended
        if message.format != WIRE:
            log.error("slot %d speaks format %d, this driver %d", message.slot, message.format, WIRE)
            return
        if (old := self._peers.get(message.slot)) is not None:
            self._by_name[old.name] = None
        self._overfull.pop(message.slot, None)
        peer = ConnectedAgent(message.slot, name[1:], 2 * self._beat)
        self._peers[message.slot] = self._by_name[peer.name] = peer
        self._timeouts.on_message(message.slot)
        peer.delivery.receive(head, body)
        peer.delivery.confirm()
        device = self._agents.device(message.slot)
        if device not in self._setups:
            self._setups[device] = pack(self._setup(device))
        self._send(peer, self._setups[device])

    def confirm(self) -> None:
        """Confirm all that `receive` returned, which is on disk now, with whatever is sent from now on."""
        for peer in self._unconfirmed:
            peer.delivery.confirm()

    def _send_confirmations(self) -> None:
        """Send confirmations to the peers to which nothing else was sent since."""
        for peer in self._unconfirmed:
            if peer.delivery.unsent_confirmations:
                self._write(peer.side, peer.delivery.confirmation(), b"")
        self._unconfirmed.clear()

    def _resend(self, now: float) -> list[Gone]:
        """Send again what was not confirmed in time; return the peers that have confirmed too little, as gone."""
        for peer in self._peers.values():
            if now >= peer.delivery.outbox.due:
                for head, body in peer.delivery.overdue(now):
                    self._write(peer.side, head, body)
        overfull = list(self._overfull.values())
        for gone in overfull:
            self._forget(gone.slot)
        return overfull

    def _send(self, peer: ConnectedAgent, body: bytes, side: bool = False) -> None:
        try:
            self._write(peer.side if side else peer.main, peer.delivery.send(body, time.monotonic()), body)
        except Unconfirmed as error:
            self._peers.pop(peer.slot, None)
            self._by_name[peer.name] = None
            self._overfull[peer.slot] = Gone(peer.slot, f"does not hear what it is told: {error}")

    def _write(self, name: bytes, head: Header, body: bytes) -> None:
        self._router.send(name, _SNDMORE)
        self._router.send(framed(head, body))

    def paused(self) -> float:
        """Return the seconds since the last call in which this process did not run, as `receive` found."""
        lag, self._lag = self._lag, 0.0
        return lag

    def close(self) -> None:
        """Tell all agents to end, and see that they do."""
        for slot in list(self._peers):
            self.send(slot, End())
        self._agents.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        if self._strangers is not None:
            self._strangers.close()
        self._router.close()
        self._auth.stop()
        self._context.term()


def _bound(router: zmq.Socket[bytes], host: str, port: int) -> int:
    """Bind the socket for agents that connect to `host`; return its port.

    Raises:
        ResourceError: the port is in use.
    """
    address = address_to_bind(host)
    router.ipv6 = ":" in address
    endpoint = f"tcp://[{address}]" if router.ipv6 else f"tcp://{address or '*'}"
    try:
        if not port:
            return int(router.bind_to_random_port(endpoint))
        router.bind(f"{endpoint}:{port}")
    except zmq.ZMQError as error:
        raise ResourceError(f"port {port} on {host}: {error}; {TAKEN}") from error
    return port


def _allow_files(workers: int) -> None:
    """Let this process have as many files open as its agents need.

    Raises:
        ResourceError: it may not.
    """
    allowed, needed = allow_files(FILES * workers + OTHER_FILES), LEAST_FILES * workers + OTHER_FILES
    if allowed < needed:
        raise ResourceError(
            f"{workers} workers need {needed} open files in this process, which may open {allowed} more: ask for fewer "
            "workers, or raise the hard limit of open files (`ulimit -Hn`; systemd: LimitNOFILE=; Docker: --ulimit "
            "nofile=)"
        )


class _Allowed:
    """Lets in the key of this run, and no other (ZAP)."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        from zmq.utils import z85

        return key == self._public or key == z85.decode(self._public)

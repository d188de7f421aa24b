"""The wire against strangers, garbage and silence. Agents are played by sockets of the test."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from hopyard.agent.connection import dial
from hopyard.core.delivery import Header
from hopyard.core.liveness import PHASES
from hopyard.core.messages import (
    LIMIT,
    WIRE,
    Beat,
    Bulk,
    End,
    GaveUp,
    Hello,
    Ready,
    Setup,
    Unfit,
    framed,
    pack,
    unframed,
    unpack_down,
)
from hopyard.core.programs.messages import FeedFailed
from hopyard.core.runs.events import Done
from hopyard.driver.commit import Gone
from hopyard.driver.router import LOOK_AT_LEAST, LOOK_SECONDS, LOOK_SHARE, UNCONFIRMED, Router
from hopyard.driver.runs.ownership import Owned
from hopyard.driver.runs.session import _depot
from hopyard.driver.timeouts import GRACE
from hopyard.errors import ResourceError
from hopyard.spec import Encrypt, RunSpec
from hopyard.store.states import LocalStore, signed
from hopyard.system.network import _is_here, parted
from wires import Cards

BULK = Bulk("tls://192.0.2.7:7", "token", "certificate", "between hosts")
SETUP = Setup(
    RunSpec(epochs=1, partitions=1, validation=0), b"recipe", b"{}", "states", "/dev/shm", "run", 1, bulk=BULK
)


class Played:
    """An agent, as the test plays it."""

    def __init__(self, slot: int, socket: Any, side: Any, companion: Any) -> None:
        self.slot, self.socket, self.side, self.companion = slot, socket, side, companion
        self.number = 0

    def say(self, message: Any, number: int | None = None, confirmed: int = 0, flags: int = 0) -> None:
        """Numbered; under a number of its own, if it is given."""
        if number is None:
            number = self.number = self.number + 1
        body = message if isinstance(message, bytes) else pack(message)
        self.socket.send(framed(Header(number, confirmed), body), flags)

    def greet(self) -> Played:
        self.say(Hello(self.slot))
        return self

    def beat(self, taken: int = 0) -> None:
        self.companion.send(pack(Beat(self.slot, taken=taken)))

    def ready(self) -> None:
        self.say(Ready(self.slot, "here", 1))

    def told(self, milliseconds: int = 0) -> tuple[str, Header, Any] | None:
        """(socket, head, message) of what the driver said; the message is None in a mere confirmation."""
        for name, dealer in (("main", self.socket), ("side", self.side)):
            if dealer.poll(milliseconds // 2):
                head, body = unframed(dealer.recv())
                return name, head, unpack_down(body) if body else None
        return None


class Wire:
    def __init__(self, heartbeat_timeout: float = 60.0, stall_timeout: float | None = None) -> None:
        self.engine = Cards()
        self.devices: list[str] = []
        self.router = Router(self.engine, self._setup, lambda slot: Path("none"), heartbeat_timeout, stall_timeout)
        self._context = zmq.Context()
        self._dealers: list[Any] = []

    def _setup(self, device: str) -> Setup:
        self.devices.append(device)
        return SETUP

    def dial(self, slot: int, incarnation: int = 1, **keys: str) -> Played:
        """A process of the slot."""
        if slot not in self.engine.cards:
            self.router.start(slot)
        return Played(slot, *[self.socket(slot, f"{letter}{slot}.{incarnation}", **keys) for letter in "wsb"])

    def companion(self, slot: int, incarnation: int = 1) -> Played:
        """The companion of a process of the slot."""
        if slot not in self.engine.cards:
            self.router.start(slot)
        dealer = self.socket(slot, f"b{slot}.{incarnation}")
        return Played(slot, dealer, None, dealer)

    def socket(self, slot: int, name: str, **keys: str) -> Any:
        card = self.engine.cards[slot]
        dealer = self._context.socket(zmq.DEALER)
        self._dealers.append(dealer)
        dealer.setsockopt_string(zmq.IDENTITY, name)
        if keys.get("secure", "yes") == "yes":
            dealer.curve_serverkey = keys.get("server", card.server_key).encode()
            dealer.curve_publickey = keys.get("public", card.public_key).encode()
            dealer.curve_secretkey = keys.get("secret", card.secret_key).encode()
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.ipv6 = "[" in card.address
        dealer.connect(card.address)
        return dealer

    def told(self, agent: Played, seconds: float = 60.0) -> tuple[str, Header, Any]:
        """What the agent is told next, while the driver does what it does."""
        end = time.monotonic() + seconds
        while (found := agent.told(40)) is None:
            assert self.router.receive(0.0) == []
            assert time.monotonic() < end, "the driver says nothing"
        return found

    def hear(self, seconds: float = 60.0) -> list[Any]:
        """What comes first, or nothing."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.router.receive(0.05):
                return found
        return []

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close(0)
        self._context.term()
        self.router.close()


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(**more: Any) -> Wire:
        made.append(Wire(**more))
        return made[-1]

    yield make
    for each in made:
        each.close()


READY = Ready(0, "here", 1)


def test_an_agent_with_the_card_gets_its_setup(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(1).greet()
    agent.ready()
    assert it.hear() == [Ready(1, "here", 1)]
    assert it.told(agent) == ("main", Header(1, 1), SETUP)
    assert it.devices == ["cuda"]


def test_unauthenticated_peers_are_ignored(wire: Callable[..., Wire]) -> None:
    it = wire()
    public, secret = (key.decode() for key in zmq.curve_keypair())
    strangers = [
        it.dial(0, secure="no"),
        it.dial(0, public=public, secret=secret),  # knows where home is and its public key, but has keys of its own
        it.dial(0, server=public),
    ]
    for stranger in strangers:
        stranger.say(Hello(0), flags=zmq.NOBLOCK)
        stranger.say(READY, flags=zmq.NOBLOCK)
    assert it.hear(0.5) == []
    it.dial(0).greet().ready()
    assert it.hear() == [READY]
    assert it.hear(0.2) == []


def test_the_keys_are_those_of_this_run(wire: Callable[..., Wire]) -> None:
    one, other = wire(), wire()
    one.router.start(0)
    card = one.engine.cards[0]
    spy = other.dial(0, public=card.public_key, secret=card.secret_key)
    spy.say(Hello(0), flags=zmq.NOBLOCK)
    spy.say(READY, flags=zmq.NOBLOCK)
    assert other.hear(0.4) == []


def test_garbage_from_an_authenticated_peer_is_dropped_and_logged(
    wire: Callable[..., Wire], caplog: pytest.LogCaptureFixture
) -> None:
    it = wire()
    agent = it.dial(0).greet()
    dice = random.Random(0)
    good = pack(Done(at=0.0, slot=0, lease=1, parts=(), seconds=1.0, memory_key="größe"))
    count = 0
    with caplog.at_level(logging.WARNING):
        for junk in (b"", b"\x00", b"\xc1" * 50, b"\x91" * 100_000, b"\x82\xa4type\xa1\xff", bytes(1 << 20)):
            agent.socket.send(junk)
            agent.socket.send_multipart([junk, good])
            agent.companion.send(junk)
            agent.say(junk)
        for _ in range(500):
            data = bytearray(good)
            data[dice.randrange(len(data))] = dice.randrange(256)
            agent.say(bytes(data))
        agent.socket.send_multipart([b"one", b"two", b"three"])
        agent.say(READY, number=1 << 63)
        agent.ready()
        while READY not in (heard := it.hear()):
            assert heard
            count += len(heard)
    assert f"no message of format {WIRE}" in caplog.text
    assert "message: no head" in caplog.text
    assert count < 500


def test_unnumbered_messages_are_ignored(wire: Callable[..., Wire], caplog: pytest.LogCaptureFixture) -> None:
    it = wire()
    agent = it.dial(0).greet()
    with caplog.at_level(logging.WARNING):
        agent.companion.send(pack(READY))
        agent.say(Done(at=0.0, slot=0, lease=1, parts=(), seconds=1.0), number=0)
        assert it.hear(0.3) == []
    assert "Ready of slot 0 has no number" in caplog.text


def test_an_agent_cannot_speak_for_another_slot(wire: Callable[..., Wire]) -> None:
    it = wire()
    it.router.start(1)
    it.dial(1, 7).greet()
    agent = it.dial(0).greet()
    agent.say(Ready(1, "here", 1))
    agent.ready()
    assert it.hear() == [READY]


def test_agents_never_started_or_ended_are_ignored(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(0).greet()
    nobody = Played(7, it.socket(0, "w7.1"), it.socket(0, "s7.1"), it.socket(0, "b7.1"))
    nobody.greet().ready()
    it.told(agent)
    it.router.end(0)
    agent.ready()
    assert it.hear(0.4) == []
    assert it.engine.ended == [0]


def test_silence_loses_a_slot_and_a_beat_keeps_it(wire: Callable[..., Wire]) -> None:
    it = wire(heartbeat_timeout=0.4)
    silent, lively = it.dial(0).greet(), it.dial(1).greet()
    silent.ready()
    assert it.hear() == [READY]
    it.told(lively)
    heard: list[Any] = []
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        lively.beat()
        heard += it.router.receive(0.05)
    assert heard == [Gone(0, "said nothing for 0 seconds (heartbeat_timeout=0.4)")]


class Clock:
    """The driver's, set by hand."""

    def __init__(self, it: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._router = time.monotonic(), it.router
        monkeypatch.setattr("hopyard.driver.router.time.monotonic", lambda: self.now)

    def go(self, seconds: float) -> None:
        """Time passes, in which the driver runs."""
        self.now += seconds
        self._router._checked = self.now


def beats(it: Wire, companion: Any, beat: Beat) -> list[Any]:
    """What the driver makes of a heartbeat."""
    companion.socket.send(pack(beat))
    assert it.router._router.poll(5000)
    return it.router.receive(0.0)


def test_an_agent_without_progress_is_shown_and_then_lost(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = wire(stall_timeout=50.0)
    companion = it.companion(0)
    clock = Clock(it, monkeypatch)
    train, idle = PHASES.index("train"), PHASES.index("idle")
    assert beats(it, companion, Beat(0, 1, idle)) == []
    clock.go(40)
    assert beats(it, companion, Beat(0, 2, train)) == []
    clock.go(20)
    assert beats(it, companion, Beat(0, 3, train)) == []
    clock.go(29)
    assert beats(it, companion, Beat(0, 3, train, cpu_seconds=29.0)) == []
    assert it.router.stalls() == {}
    clock.go(1)
    assert beats(it, companion, Beat(0, 3, train)) == []
    assert it.router.stalls() == {0: ("train", 30.0)}
    clock.go(20)
    assert it.router.receive(0.0) == []  # told by heartbeats, not by their absence
    clock.go(LOOK_SECONDS + 0.01)  # beyond it however the sum is rounded
    reason = "made no progress for 50 seconds in phase 'train' (stall_timeout=50)"
    assert beats(it, companion, Beat(0, 3, train)) == [Gone(0, reason)]
    assert it.router.stalls() == {}


def test_heartbeats_do_not_make_the_driver_check_all_agents_each_time(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand agents send 400 a second, and a check goes over all of them."""
    it = wire()
    companion, checks = it.companion(0), []
    clock = Clock(it, monkeypatch)
    timed_out = it.router._timed_out

    def check(now: float) -> list[Gone]:
        checks.append(now)
        clock.now += 0.004  # which is how long a check takes
        return timed_out(now)

    monkeypatch.setattr(it.router, "_timed_out", check)
    it.router.receive(0.0)
    pause = 0.004 / LOOK_SHARE
    assert LOOK_SECONDS < pause < LOOK_AT_LEAST
    began = len(checks)
    for _ in range(10):
        clock.go(pause / 4)
        assert beats(it, companion, Beat(0)) == []
    assert 1 <= len(checks) - began <= 3


@pytest.mark.parametrize(("allowed", "refused"), [(5 * 2 + 64, False), (5 * 2 + 63, True)])
def test_too_few_open_files_for_the_workers_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, allowed: int, refused: bool
) -> None:
    monkeypatch.setattr("hopyard.driver.router.allow_files", lambda count: allowed)
    if refused:
        with pytest.raises(ResourceError, match=r"2 workers .*74 open files .*73 more"):
            Wire()
    else:
        Wire().close()


def test_a_driver_that_did_not_run_calls_nobody_hung(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = wire(stall_timeout=50.0)
    companion = it.companion(0)
    clock = Clock(it, monkeypatch)
    train = PHASES.index("train")
    assert beats(it, companion, Beat(0, 1, train)) == []
    clock.now += 3600  # the laptop slept
    assert beats(it, companion, Beat(0, 1, train)) == []
    clock.go(49)
    assert beats(it, companion, Beat(0, 1, train)) == []
    clock.go(1)
    assert [type(message) for message in beats(it, companion, Beat(0, 1, train))] == [Gone]


def test_an_agent_that_never_confirms_is_lost(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may drop idle connections silently, and leave that of the companion alone."""
    it = wire(stall_timeout=50.0)
    agent = it.dial(0).greet()
    it.told(agent)
    played = Played(0, agent.companion, None, agent.companion)
    clock = Clock(it, monkeypatch)
    idle, compiles = PHASES.index("idle"), PHASES.index("compile")
    for advanced in range(3):  # it confirms what it can, but not while it holds the interpreter in a compiler
        clock.go(30)
        assert beats(it, played, Beat(0, advanced, compiles)) == []
    clock.go(30)
    assert beats(it, played, Beat(0, 3, idle)) == []
    assert beats(it, played, Beat(0, 3, idle, taken=1)) == []
    clock.go(1000)
    assert beats(it, played, Beat(0, 3, idle, taken=1)) == []
    it.router.send(0, End())
    clock.go(49)
    assert beats(it, played, Beat(0, 3, idle, taken=1)) == []
    clock.go(2)
    (gone,) = beats(it, played, Beat(0, 3, idle, taken=1))
    assert isinstance(gone, Gone)
    assert gone.reason.startswith("has not confirmed for 51 seconds what it was told, though its heartbeats come")


def test_agents_of_programs_must_confirm_too(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: they need make no progress, and so they were never looked at: an order that got lost was waited for, for
    ever."""
    it = wire(stall_timeout=None)
    agent = it.dial(0).greet()
    it.told(agent)
    played = Played(0, agent.companion, None, agent.companion)
    clock = Clock(it, monkeypatch)
    assert beats(it, played, Beat(0, taken=1)) == []
    it.router.send(0, End())
    clock.go(UNCONFIRMED - 1)
    assert beats(it, played, Beat(0, taken=1)) == []
    clock.go(2)
    (gone,) = beats(it, played, Beat(0, taken=1))
    assert isinstance(gone, Gone) and gone.reason == (
        "has not confirmed for 601 seconds what it was told, though its heartbeats come (at most 600 are waited): its "
        "connection may be broken"
    )


def test_a_driver_that_did_not_run_waits_anew_for_what_is_not_confirmed(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = wire(stall_timeout=50.0)
    agent = it.dial(0).greet()
    it.told(agent)
    played = Played(0, agent.companion, None, agent.companion)
    clock = Clock(it, monkeypatch)
    clock.now += 3600
    assert beats(it, played, Beat(0)) == []
    clock.go(49)
    assert beats(it, played, Beat(0)) == []


def test_a_slot_that_was_overfull_and_is_started_again_keeps_its_new_process(wire: Callable[..., Wire]) -> None:
    it = wire()
    it.told(it.dial(0).greet())
    for _ in range(1001):
        it.router.send(0, End())
    it.router.end(0)
    it.router.start(0)
    new = it.dial(0, 2).greet()
    it.told(new)
    new.ready()
    assert it.hear() == [READY]


def test_connections_that_are_idle_are_kept_alive(wire: Callable[..., Wire]) -> None:
    it = wire()
    it.router.start(0)
    sockets = [dial(it._context, it.engine.cards[0], letter, {zmq.LINGER: 0}) for letter in "wsb"]
    it._dealers += sockets
    for each in (*sockets, it.router._router):
        assert each.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert each.getsockopt(zmq.TCP_KEEPALIVE_IDLE) == 30
        assert int(each.getsockopt(zmq.TCP_MAXRT)) > 0


def test_a_thousand_agents_may_come_at_once(wire: Callable[..., Wire]) -> None:
    """By default, ZeroMQ lets 100 connections wait; each agent makes three."""
    it = wire()
    assert int(it.router._router.getsockopt(zmq.BACKLOG)) >= 3 * 1000


@pytest.mark.parametrize("phase", [99, -1])
def test_a_phase_that_is_none_is_dropped(
    wire: Callable[..., Wire], caplog: pytest.LogCaptureFixture, phase: int
) -> None:
    it = wire(stall_timeout=50.0)
    companion = it.companion(0)
    with caplog.at_level(logging.WARNING):
        assert beats(it, companion, Beat(0, 1, phase)) == []
    assert "dropped a" in caplog.text


@pytest.mark.parametrize(
    ("heartbeat_timeout", "stall_timeout", "seconds"), [(15.0, 600.0, 2.5), (3.0, None, 0.5), (60.0, 6.0, 1.0)]
)
def test_heartbeats_are_as_frequent_as_the_timeouts_want(
    wire: Callable[..., Wire], heartbeat_timeout: float, stall_timeout: float | None, seconds: float
) -> None:
    it = wire(heartbeat_timeout=heartbeat_timeout, stall_timeout=stall_timeout)
    it.router.start(0)
    assert it.engine.cards[0].beat == seconds


@pytest.mark.slow
def test_the_largest_message_arrives_both_ways(wire: Callable[..., Wire]) -> None:
    """Header and encryption stand on top of what `pack` allows: a frame that the other end refuses breaks the
    connection, again and again."""
    it = wire()
    it.router.start(0)
    card = msgspec.structs.replace(it.engine.cards[0], incarnation=1)
    agent = Played(0, *[dial(it._context, card, letter, {zmq.LINGER: 0}) for letter in "wsb"])
    it._dealers += [agent.socket, agent.side, agent.companion]
    agent.greet()
    it.told(agent)
    rest = LIMIT - len(pack(Unfit(0, "x" * 100_000))) + 100_000
    largest = Unfit(0, "x" * rest)
    assert len(pack(largest)) == LIMIT
    agent.say(largest, confirmed=1)
    assert it.hear(20.0) == [largest]
    it.router.confirm()
    rest = LIMIT - len(pack(FeedFailed(feed="f", error="x" * 100_000))) + 100_000
    word = FeedFailed(feed="f", error="x" * rest)
    it.router.send(0, word)
    assert it.told(agent, 20.0)[2] == word


def test_unconfirmed_messages_are_resent(wire: Callable[..., Wire]) -> None:
    it = wire(heartbeat_timeout=0.9)
    agent = it.dial(0).greet()
    assert it.told(agent) == ("main", Header(1, 1), SETUP)
    assert it.told(agent) == ("side", Header(1, 1), SETUP)  # after 0.3 s
    it.router.send(0, End())
    assert it.told(agent) == ("main", Header(2, 1), End())
    agent.beat(taken=1)
    assert it.told(agent) == ("side", Header(2, 1), End())
    agent.beat(taken=2)
    it.router.receive(0.1)
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        agent.beat()
        assert it.router.receive(0.05) == []
        assert agent.told() is None


def test_a_message_that_comes_twice_counts_once_and_a_gap_waits(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(0).greet()
    it.told(agent)
    done = [Done(at=0.0, slot=0, lease=lease, parts=(), seconds=1.0) for lease in range(5)]
    for number in (3, 3, 2, 2, 3, 4, 6):
        agent.say(done[number - 2], number=number)
    heard: list[Any] = []
    while len(heard) < 3:
        heard += it.hear()
    assert heard == done[:3]
    agent.say(done[3], number=5)
    assert it.hear() == done[3:]
    agent.say(Hello(0), number=1)
    agent.say(done[0], number=2)
    assert it.hear(0.2) == []


def test_messages_are_confirmed_once_the_caller_has_them_safe(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(0).greet()
    it.told(agent)
    agent.ready()
    assert it.hear() == [READY]
    it.router.receive(0.0)
    assert agent.told(100) is None
    agent.say(READY)
    assert it.hear() == [READY]
    it.router.confirm()
    assert it.told(agent) == ("side", Header(0, 3), None)
    agent.say(READY)
    assert it.hear() == [READY]
    it.router.confirm()
    it.router.send(0, End())
    assert it.told(agent) == ("main", Header(2, 4), End())
    assert agent.told(100) is None
    agent.say(READY, number=4)  # it has not heard of the confirmation
    assert it.told(agent) == ("side", Header(0, 4), None)


def test_messages_of_an_earlier_process_of_the_slot_are_ignored(wire: Callable[..., Wire]) -> None:
    it = wire()
    old = it.dial(0).greet()
    it.told(old)
    it.router.end(0)
    it.router.start(0)
    old.greet()
    old.ready()
    old.beat(taken=9)
    new = it.dial(0, 2).greet()
    it.told(new)
    old.greet()
    for number in (2, 3):
        old.say(Done(at=0.0, slot=0, lease=1, parts=(), seconds=1.0), number=number)
    new.ready()
    assert it.hear() == [READY]
    assert it.hear(0.2) == []
    assert old.told() is None


def test_an_agent_that_confirms_nothing_is_lost_with_a_reason(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(0).greet()
    it.told(agent)
    for _ in range(1000):
        it.router.send(0, End())
    (gone,) = it.hear()
    assert isinstance(gone, Gone)
    assert "slot" not in gone.reason and "1,000 messages of" in gone.reason and "never confirmed" in gone.reason
    agent.ready()
    assert it.hear(0.2) == []


def test_an_agent_that_gives_up_says_why(wire: Callable[..., Wire]) -> None:
    it = wire()
    agent = it.dial(0).greet()
    it.told(agent)
    agent.say(GaveUp(0, "nobody confirms"), number=0)
    assert it.hear() == [Gone(0, "nobody confirms")]


def test_an_agent_of_another_wire_format_gets_nothing(
    wire: Callable[..., Wire], caplog: pytest.LogCaptureFixture
) -> None:
    it = wire()
    agent = it.dial(0)
    agent.say(Hello(0, WIRE + 1))
    with caplog.at_level(logging.ERROR):
        assert it.hear(0.3) == []
    assert f"slot 0 speaks format {WIRE + 1}, this driver {WIRE}" in caplog.text
    assert agent.told() is None


def test_a_new_agent_has_a_grace(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    it = wire(heartbeat_timeout=0.2)
    it.router.start(0)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        assert it.router.receive(0.05) == []
    assert GRACE > 60
    now = time.monotonic()
    monkeypatch.setattr("hopyard.driver.router.time.monotonic", lambda: now + GRACE + 0.3)
    it.router._checked = now + GRACE + 0.3
    assert [type(message) for message in it.router.receive(0.0)] == [Gone]


def test_a_slot_without_a_place_is_not_silent(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    it = wire(heartbeat_timeout=0.2)
    it.engine.waiting.add(0)
    it.router.start(0)
    now = time.monotonic()
    monkeypatch.setattr("hopyard.driver.router.time.monotonic", lambda: now + GRACE + 0.3)
    it.router._checked = now + GRACE + 0.3
    assert it.router.receive(0.0) == []
    it.engine.waiting.clear()
    later = now + 2 * GRACE + 0.9
    monkeypatch.setattr("hopyard.driver.router.time.monotonic", lambda: later)
    it.router._checked = later
    assert [type(message) for message in it.router.receive(0.0)] == [Gone]


def test_a_suspended_driver_loses_no_agent(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    it = wire(heartbeat_timeout=0.3)
    it.dial(0).greet().ready()
    assert it.hear() == [READY]
    now = time.monotonic()
    monkeypatch.setattr("hopyard.driver.router.time.monotonic", lambda: now + 3600)  # the laptop slept
    assert it.router.receive(0.0) == []


def test_messages_to_a_lost_agent_are_dropped(wire: Callable[..., Wire]) -> None:
    it = wire()
    it.router.start(0)
    it.router.send(0, SETUP)
    it.router.send(9, SETUP)


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_the_port_of_messages_is_that_of_the_address_which_was_asked_for(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if not _is_here(host):
        pytest.skip(f"{host} is no address of this host")
    monkeypatch.setattr(Cards, "endpoint", (host, 0))
    it = wire()
    it.router.start(0)
    port = parted(it.engine.cards[0].address)[1]
    socket.create_connection((host, port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    it.dial(0).greet().ready()
    assert it.hear() == [READY]


@pytest.mark.parametrize(
    ("encrypt", "host", "scheme"),
    [
        (False, "127.0.0.1", "tcp"),
        (False, "192.0.2.7", "tcp"),
        ("between hosts", "127.0.0.1", "tcp"),
        ("between hosts", "127.0.1.1", "tcp"),
        ("between hosts", "192.0.2.7", "tls"),
        (True, "127.0.0.1", "tls"),
        (True, "192.0.2.7", "tls"),
    ],
)
def test_states_that_go_from_host_to_host_are_encrypted(
    tmp_path: Path, encrypt: Encrypt, host: str, scheme: str
) -> None:
    engine = Cards()
    engine.endpoint = host, 0
    it: Any = SimpleNamespace(states=Owned(str(tmp_path), "mark"), encrypt=encrypt)
    with ExitStack() as stack:
        bulk = _depot(it, engine, LocalStore(tmp_path), "run", stack)
        assert bulk.depot.startswith(f"{scheme}://{host}:") and len(bulk.token) == 32
        assert bool(bulk.certificate) is (scheme == "tls")
        assert bulk.encrypt == encrypt
        assert signed(str(tmp_path), "run") and not signed(str(tmp_path), "another")
    assert list(tmp_path.iterdir()) == []

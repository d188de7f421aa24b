"""The agent's end of the wire against the driver's, with a bad network between them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from faults.proxy import Proxied
from hopyard.agent.connection import DriverConnection, dial
from hopyard.agent.progress import Progress
from hopyard.core.messages import Beat, Card, End, Hello, Setup, pack
from hopyard.core.programs.messages import FeedFailed
from hopyard.core.runs.events import Done
from hopyard.driver.commit import Gone
from hopyard.driver.router import Router
from hopyard.spec import RunSpec
from wires import Cards

pytestmark = pytest.mark.slow

SETUP = Setup(RunSpec(epochs=1, partitions=1, validation=0), b"recipe", b"{}", "states", "/dev/shm", "run", 1)


class Both:
    """A driver with one agent, whose connection is in this process too."""

    def __init__(self, heartbeat_timeout: float) -> None:
        self.cards = Cards()
        self.network = Proxied(self.cards)
        self.router = Router(self.network, lambda device: SETUP, lambda slot: Path("none"), heartbeat_timeout)
        self.router.start(0)
        self.heard: list[Any] = []
        self.progress = Progress()
        self.agent = self.dial()
        self._context: Any = zmq.Context()
        self._companion = dial(self._context, self._card(1), "b", {zmq.LINGER: 0})

    def _card(self, incarnation: int) -> Card:
        return msgspec.structs.replace(self.cards.cards[0], incarnation=incarnation)

    def dial(self, incarnation: int = 1) -> DriverConnection:
        return DriverConnection(self._card(incarnation), self.progress)

    def turn(self, confirm: bool = True) -> None:
        self._companion.send(pack(Beat(0, taken=self.progress.taken)))
        self.heard += self.router.receive(0.02)
        if confirm:
            self.router.confirm()

    def until(self, what: Callable[[], bool], seconds: float = 30.0, confirm: bool = True) -> None:
        end = time.monotonic() + seconds
        while not what():
            self.turn(confirm)
            assert time.monotonic() < end, "it does not happen"

    def greet(self) -> None:
        self.agent.send(Hello(0))
        self.until(lambda: bool(self.agent.socket.poll(0) or self.agent._messages))
        assert self.agent.receive() == SETUP

    def close(self) -> None:
        self.router.close()
        self._companion.close()
        self._context.term()
        self.agent._ending = True
        self.agent.close()
        self.network.close()


@pytest.fixture
def both() -> Iterator[Callable[[float], Both]]:
    made: list[Both] = []

    def make(heartbeat_timeout: float = 1.2) -> Both:
        made.append(Both(heartbeat_timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()


def done(lease: int) -> Done:
    return Done(at=0.0, slot=0, lease=lease, parts=(), seconds=0.0)


def word(number: int, size: int = 0) -> FeedFailed:
    return FeedFailed(feed="train", incarnation=number, error="x" * size)


def test_all_arrives_once_and_in_order_however_often_the_connection_breaks(both: Callable[..., Both]) -> None:
    it = both()
    it.greet()
    dice = random.Random(0)
    down: list[Any] = []

    def listen() -> None:
        while not isinstance(message := it.agent.receive(), End):
            down.append(message)

    listening = threading.Thread(target=listen)
    listening.start()
    for number in range(150):
        it.agent.send(done(number))
        it.router.send(0, word(number, dice.choice([0, 10, 200_000])))
        if number % 30 == 7:
            it.network.swallow(dice.choice([0.0, 0.05, 0.2]), dice.choice(["up", "down", "both"]))
        it.turn()
    it.router.send(0, End())
    it.until(lambda: not listening.is_alive() and len(it.heard) >= 150)
    assert it.heard == [done(number) for number in range(150)]
    assert [message.incarnation for message in down] == list(range(150))
    assert it.network.lost > 0


def test_messages_are_confirmed_while_the_main_thread_works(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it goes aside, and else when it is said again."""
    it = both(60.0)
    it.greet()
    handled: list[Any] = []
    threading.Thread(target=it.agent.send, args=(done(1),)).start()  # the second socket may dial later than the first
    it.until(lambda: bool(it.heard))
    monkeypatch.setattr("hopyard.driver.router.SIDE_MESSAGES", (FeedFailed,))
    it.agent.handle(FeedFailed, handled.append)
    it.until(lambda: not len(it.router._peers[0].delivery.outbox))
    it.router._peers[0].delivery.outbox.patience = 3600.0  # seconds until it is said again: longer than a test may take
    it.router.send(0, word(1))
    it.until(lambda: bool(handled))
    it.router._peers[0].delivery.outbox.patience = 0.1
    it.router.send(0, End())
    it.until(lambda: not len(it.router._peers[0].delivery.outbox))
    assert handled == [word(1)]
    assert it.agent.receive() == End()


def test_waiting_for_several_sources_finds_all_messages(both: Callable[..., Both]) -> None:
    it = both()
    it.greet()
    assert it.agent.received() == []
    it.router.send(0, word(1))
    it.router.send(0, word(2))
    found: list[Any] = []
    while len(found) < 2:
        assert it.agent.socket.poll(10_000)
        found += it.agent.received()
    assert found == [word(1), word(2)]
    assert not it.agent.socket.poll(0) and it.agent.received() == []


def test_a_main_thread_that_waits_is_idle_once(both: Callable[..., Both]) -> None:
    it = both()
    it.greet()
    idle = threading.Event()
    times: list[None] = []

    def rest() -> None:
        times.append(None)
        idle.set()

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(it.agent.receive(idle=rest)))
    waiting.start()
    it.until(idle.is_set)
    more = time.monotonic() + 1.2  # another look, and one more
    it.until(lambda: time.monotonic() > more)
    it.router.send(0, End())
    it.until(lambda: not waiting.is_alive())
    assert (found, len(times)) == ([End()], 1)


def test_a_patient_sender_waits_for_a_driver_that_is_paused(both: Callable[..., Both]) -> None:
    it = both(6.0)
    it.greet()

    def report() -> None:
        for number in range(3000):
            it.agent.send(done(number), patient=True)

    reporting = threading.Thread(target=report)
    reporting.start()
    reporting.join(0.5)
    assert reporting.is_alive()  # nobody confirms
    assert len(it.agent._delivery.outbox) == 500
    it.until(lambda: len(it.heard) >= 3000)
    reporting.join(60)
    assert it.heard == [done(number) for number in range(3000)]


def test_an_agent_whose_messages_are_never_confirmed_ends_with_a_reason(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    it = both(60.0)
    it.greet()
    lost = it.agent

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("hopyard.agent.connection.os._exit", end)
    with pytest.raises(SystemExit) as ended:
        for number in range(1001):
            lost.send(done(number))
    assert ended.value.code == 1
    assert "1,000 messages of" in capsys.readouterr().err
    it.until(lambda: any(isinstance(message, Gone) for message in it.heard), confirm=False)
    (gone,) = [message for message in it.heard if isinstance(message, Gone)]
    assert "1,000 messages of" in gone.reason and "never confirmed" in gone.reason
    it.agent = it.dial(incarnation=2)
    left_open(lost)


def left_open(connection: DriverConnection) -> None:
    """Close what a process that ended would have closed by its end."""
    connection._thread.join(60)
    connection._main.close(0)
    connection._side.close(0)
    connection._context.term()


def test_giving_up_leaves_the_main_threads_socket_alone(
    both: Callable[..., Both], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket belongs to one thread: closed by another in the middle of its use, it ends the process in a way that
    nobody understands, and its last words are lost."""
    it = both(60.0)
    it.greet()
    lost = it.agent
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise SystemExit(code)

    def talk() -> None:
        with contextlib.suppress(SystemExit):
            for number in range(1001):
                lost.send(done(number))

    monkeypatch.setattr("hopyard.agent.connection.os._exit", end)
    monkeypatch.setattr("hopyard.agent.connection.LAST_WORDS_SECONDS", 5.0)
    other = threading.Thread(target=talk)
    other.start()
    it.until(lambda: any(isinstance(message, Gone) for message in it.heard), confirm=False)
    other.join(30.0)
    assert codes == [1] and not lost._main.closed
    it.agent = it.dial(incarnation=2)
    left_open(lost)


def test_an_agent_that_ends_by_itself_sees_its_last_words_confirmed(both: Callable[..., Both]) -> None:
    it = both()
    it.greet()
    it.network.swallow(0.3, "up")
    it.agent.send(done(1))
    closing = threading.Thread(target=it.agent.close)
    closing.start()
    it.until(lambda: not closing.is_alive())
    assert it.heard == [done(1)]
    it.agent = it.dial(incarnation=2)

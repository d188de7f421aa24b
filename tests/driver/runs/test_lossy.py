"""A connection that loses what is on its way and then breaks: real agents behind a relay that does so at a chosen
message. Nothing is lost, nobody is: the run ends with equal digests, the program ends right, every slot lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hopyard as hy
import programs
from faults.proxy import Proxied
from hopyard.core.delivery import Header
from hopyard.core.facts import Lost
from hopyard.core.messages import Examine, Setup, Work, unpack_down
from hopyard.core.programs.events import Begin, Ended, Halt, Running, decode
from hopyard.core.programs.messages import HostTasks
from hopyard.core.runs.events import Done, Durable
from hopyard.driver.router import Router
from jobs import CONFIGS, digests, journal, linear, select

pytestmark = pytest.mark.slow

HEARTBEAT_TIMEOUT = 6.0
"""Seconds: what is not confirmed is said again after a third of it."""
SWALLOWED = 1.5


@pytest.fixture
def network() -> Iterator[Callable[..., Proxied]]:
    made: list[Proxied] = []

    def make(engine: Any) -> Proxied:
        made.append(Proxied(engine))
        return made[-1]

    yield make
    for each in made:
        each.close()


def swallow_at(
    monkeypatch: pytest.MonkeyPatch, network: Proxied, kind: type[Any], direction: Any, count: int = 1
) -> None:
    """When the driver sends, or has heard, so many messages of this kind."""
    seen = [0]

    def look(message: Any) -> None:
        if isinstance(message, kind):
            seen[0] += 1
            if seen[0] == count:
                network.swallow(SWALLOWED, direction)

    put, receive = Router._write, Router.receive

    def putting(self: Router, name: bytes, head: Header, body: bytes) -> None:
        if body:
            look(unpack_down(body))
        put(self, name, head, body)

    def receiving(self: Router, *arguments: Any) -> Any:
        heard = receive(self, *arguments)
        for message in heard:
            look(message)
        return heard

    monkeypatch.setattr(Router, "_write", putting)
    monkeypatch.setattr(Router, "receive", receiving)


def slow_to_say(config: dict[str, Any]) -> Any:
    """The agent says that a State is durable only when the driver has long heard of it."""
    from hopyard.agent.connection import DriverConnection

    send = DriverConnection.send
    if send.__name__ == "send":

        def slowly(self: Any, message: Any, *more: Any, **named: Any) -> None:
            if type(message).__name__ == "Durable":
                time.sleep(0.5)
            send(self, message, *more, **named)

        DriverConnection.send = slowly  # type: ignore[method-assign]
    return linear(config)


@pytest.mark.parametrize(
    ("lost", "at", "direction", "count"),
    [
        ("Setup", Setup, "down", 1),
        pytest.param("Ready", Setup, "up", 2, marks=pytest.mark.long),
        pytest.param("Checked", Examine, "up", 1, marks=pytest.mark.long),
        ("Work", Work, "down", 5),
        pytest.param("Work and Done", Work, "both", 6, marks=pytest.mark.long),
        ("Done and Durable", Work, "up", 9),
        pytest.param("Durable", Durable, "up", 2, marks=pytest.mark.long),
        ("the confirmation of Done, and Work", Done, "down", 4),
    ],
)
def test_a_run_loses_nothing_and_nobody(
    tmp_path: Path,
    undisturbed: list[str],
    network: Callable[..., Proxied],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    at: type[Any],
    direction: str,
    count: int,
) -> None:
    workers = 1 if lost == "Setup" else 2  # else the other one does it all
    between = network(hy.Local(workers, devices=None))
    swallow_at(monkeypatch, between, at, direction, count)
    recipe = slow_to_say if lost == "Durable" else linear
    run = select(
        tmp_path / "run", recipe, CONFIGS, engine=between, timeouts=hy.Timeouts(heartbeat_timeout=HEARTBEAT_TIMEOUT)
    )
    assert run.status == "completed"
    assert digests(run) == undisturbed
    assert between.lost > 0
    lines = journal(tmp_path / "run")
    assert not [line for line in lines if isinstance(line, Lost)]
    for kind in (Done, Durable):
        facts = [msgspec.structs.replace(line, at=0.0) for line in lines if isinstance(line, kind)]
        assert all(facts.count(fact) == 1 for fact in facts)


@pytest.mark.parametrize(
    ("lost", "at", "direction"),
    [
        ("HostTasks", HostTasks, "down"),
        pytest.param("Reserved", HostTasks, "up", marks=pytest.mark.long),
        pytest.param("Begin", Begin, "down", marks=pytest.mark.long),
        ("Running", Begin, "up"),
        ("Ended", Running, "up"),
        pytest.param("Halt", Halt, "down", marks=pytest.mark.long),
        pytest.param("Ended of who was halted", Halt, "up", marks=pytest.mark.long),
    ],
)
def test_a_program_loses_nothing_and_nobody(
    tmp_path: Path,
    network: Callable[..., Proxied],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    at: type[Any],
    direction: str,
) -> None:
    between = network(hy.Local(3, devices=None))
    swallow_at(monkeypatch, between, at, direction)
    program = hy.launch(
        programs.misbehaves,
        {"who": ("worker", 0), "how": "raise", "times": 1},
        roles={"worker": 2, "ps": 1},
        engine=between,
        max_restarts=1,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        directory=tmp_path / "program",
    )
    assert program.wait(60).status == "completed"
    assert program.summary()["restarts"] == 1
    assert between.lost > 0
    facts = [decode(line) for line in (tmp_path / "program" / "program.jsonl").read_bytes().splitlines()]
    assert not [fact for fact in facts if isinstance(fact, Lost)]
    begun = [(fact.slot, fact.incarnation) for fact in facts if isinstance(fact, Running)]
    assert len(begun) == len(set(begun)) >= 4  # the others may be ended before they begin the first time
    ended = [(fact.slot, fact.incarnation) for fact in facts if isinstance(fact, Ended)]
    assert len(ended) == len(set(ended))

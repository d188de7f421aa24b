"""Bytes that members of a gang send: by the formula, and as many as the network counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gang_threads import exchanges, together
from hopyard.exchange.exchange import GangExchange
from hopyard.spec import Gang
from hosts import may_unshare

NUMBERS = 2_500_000
"""Of four bytes each: several pieces."""
CALLS: dict[str, Callable[[GangExchange, Any], object]] = {
    "mean": lambda exchange, array: exchange.mean([array], 1.0),
    "average": lambda exchange, array: exchange.average([array], 1.0),
    "broadcast": lambda exchange, array: exchange.broadcast([array]),
    "gather": lambda exchange, array: exchange.gather(array.tobytes()),
}


def sent(size: int, call: str, counted: Callable[[], int] = int) -> tuple[list[int], int]:
    """Return the bytes that each member says it has sent, and those by which `counted` grew meanwhile."""
    meeting = threading.Barrier(size)
    network = [0, 0]

    def work(exchange: GangExchange) -> int:
        exchange.mean([np.ones(5, np.float32)], 1.0)  # connects the members
        exchange.average([np.ones(5, np.float32)], 1.0)
        array = np.ones(NUMBERS, np.float32)
        if call in ("mean", "average"):
            CALLS[call](exchange, array)  # compares shapes, once
        meeting.wait(60)
        before = exchange.sent
        if not exchange.rank:
            network[0] = counted()
        meeting.wait(60)
        CALLS[call](exchange, array)
        meeting.wait(60)
        if not exchange.rank:
            network[1] = counted()
        return exchange.sent - before

    members = together(work, exchanges(Gang(size)))
    return members, network[1] - network[0]


@pytest.mark.parametrize("call", ["mean", "average"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_costs_each_member_what_a_ring_sends(size: int, call: str) -> None:
    members, _ = sent(size, call)
    assert members == [pytest.approx(2 * (size - 1) / size * 4 * NUMBERS, rel=1e-4)] * size


def test_a_broadcast_is_sent_to_each() -> None:
    assert sent(3, "gather")[0] == [2 * (4 * NUMBERS + 8)] * 3
    assert sum(sent(3, "broadcast")[0]) == pytest.approx(2 * 4 * NUMBERS, rel=1e-6)


def test_alone_nothing_is_sent() -> None:
    (exchange,) = exchanges(Gang(1))
    exchange.mean([np.ones(5)], 1.0)
    exchange.average([np.ones(5)], 1.0)
    assert exchange.sent == 0


def of_loopback() -> int:
    """Return the bytes that the loopback of this namespace has carried."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[8])


@pytest.mark.slow
def test_the_network_carries_as_much() -> None:
    """In a namespace of its own, whose loopback carries nothing else. Headers take the rest."""
    may_unshare("--net")
    command = f"ip link set lo up && exec {sys.executable} {__file__}"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert not done.returncode, done.stderr
    for size, call, told, carried in json.loads(done.stdout):
        assert told <= carried <= 1.1 * told + 10_000, (size, call)


if __name__ == "__main__":
    found = []
    for size in (2, 3, 4):
        for call in CALLS:
            told, carried = sent(size, call, counted=of_loopback)
            found.append((size, call, sum(told), carried))
    print(json.dumps(found))

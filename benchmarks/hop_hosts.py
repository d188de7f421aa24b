"""A hop of a 100 MB State from an agent to one on another host, against one bare TCP copy of as many bytes.

Measured is what a unit waits for that starts from a State in the memory of another host's agent: it asks the maker
(`agent.runs.transfer.Network`), which finds the State in its shared memory and sends it; what comes is compared with
its seal, and copied into the built model. The bare copy is `sendall` out of one buffer and `recv_into` another, both
in memory that was used before. Hops in clear, encrypted hops and bare copies take turns, between the same two
processes.

    python benchmarks/hop_hosts.py [--megabytes 100] [--rounds 15] [--rates 0,10,1]

The hosts are network namespaces of this machine, which needs the right to make them. A rate is that of their link in
Gbit/s; 0: as fast as the machine copies, where both ends and the network between them share its cores.

Goal: at most 1.3 bare copies in clear.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from hop import build  # noqa: E402
from hopyard.agent.runs.transfer import Network  # noqa: E402
from hopyard.certificate import make_certificate  # noqa: E402
from hopyard.core.messages import Bulk, Card  # noqa: E402
from hopyard.frameworks.torch.runtime import install  # noqa: E402
from hopyard.frameworks.tree import capture, restore  # noqa: E402
from hopyard.spec import Ref  # noqa: E402
from hopyard.store.arena import Arena, memory_root  # noqa: E402
from hopyard.store.tree import decode, plan  # noqa: E402
from hopyard.system.network import listen  # noqa: E402
from hopyard.system.scratch import Folder  # noqa: E402
from hosts import Network as Namespaces  # noqa: E402

MOST = 1.3
REF = Ref(0, 1, 1)
FIRST = 3
"""Rounds that do not count: they connect, and use memory for the first time."""


def network(what: dict[str, Any], folder: Folder, encrypt: bool) -> Network:
    """Return the network of an agent."""
    card = Card(0, f"tcp://{what['driver']}:1", "", "", "")
    return Network(card, Bulk("", what["token"], what["certificate"] if encrypt else "", encrypt), folder)


def give(what: dict[str, Any]) -> None:
    """Be the agent that has the State. Prints where it can be asked for."""
    folder = Folder(memory_root(Path(tempfile.gettempdir())), f"benchmark-{os.getpid()}")
    layout = plan(capture(build(what["megabytes"], 0)))
    arena = Arena(folder.path, 0, 4 << 30)
    memory_key = arena.lay(REF, layout)
    networks = {way: network(what, folder, way == "encrypted") for way in ("clear", "encrypted")}
    bare, data = listen(what["host"]), bytes(arena.view(memory_key))

    def stream() -> None:
        line, _ = bare.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line.recv(1):
            line.sendall(data)

    threading.Thread(target=stream, daemon=True).start()
    peers = {way: each.peer for way, each in networks.items()}
    print(json.dumps({"bare": bare.getsockname(), "peers": peers, "key": memory_key, "size": layout.total}), flush=True)
    sys.stdin.read()
    for each in networks.values():
        each.close()
    arena.close()
    folder.close()


def take(what: dict[str, Any]) -> None:
    """Be the agent that needs it. Prints the seconds of each way."""
    install(False, 1)
    folder = Folder(memory_root(Path(tempfile.gettempdir())), f"benchmark-{os.getpid()}")
    model = build(what["megabytes"], 1)
    networks = {way: network(what, folder, way == "encrypted") for way in ("clear", "encrypted")}
    size = what["size"]
    line, buffer = socket.create_connection(tuple(what["bare"])), memoryview(bytearray(size))
    seconds: dict[str, list[float]] = {"bare": [], "clear": [], "encrypted": [], "into the model": []}

    def bare() -> None:
        line.sendall(b"x")
        at = 0
        while at < size:
            at += line.recv_into(buffer[at:])

    def hop(way: str) -> None:
        received = networks[way].take(what["peers"][way], what["key"], REF)
        assert received is not None and len(received) == size
        began = time.perf_counter()
        restore(model, decode(received))
        seconds["into the model"].append(time.perf_counter() - began)

    ways: dict[str, Callable[[], None]] = {
        "bare": bare,
        "clear": lambda: hop("clear"),
        "encrypted": lambda: hop("encrypted"),
    }
    names = list(ways)
    for number in range(what["rounds"] + FIRST):
        for way in names[number % 3 :] + names[: number % 3]:
            began = time.perf_counter()
            ways[way]()
            seconds[way].append(time.perf_counter() - began)
    print(json.dumps({way: each[FIRST:] for way, each in seconds.items()}))
    for each in networks.values():
        each.close()
    folder.close()


def measured(hosts: Namespaces, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each way."""
    secrets = {"token": "a token", "certificate": make_certificate(), "driver": hosts.own}
    what = {**secrets, "megabytes": options.megabytes, "rounds": options.rounds, "host": hosts.addresses["alpha"]}
    command = [sys.executable, "-W", "ignore", __file__]
    giver = subprocess.Popen(
        [*hosts.enter("alpha"), *command, "--as", "giver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert giver.stdin is not None and giver.stdout is not None
    try:
        giver.stdin.write(json.dumps(what) + "\n")
        giver.stdin.flush()
        what |= json.loads(giver.stdout.readline())
        taker = subprocess.run(
            [*hosts.enter("beta"), *command, "--as", "taker"],
            input=json.dumps(what) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        giver.stdin.close()
        giver.wait()
    seconds: dict[str, list[float]] = json.loads(taker.stdout)
    return seconds


def shape(hosts: Namespaces, gigabits: float) -> None:
    """Give the link of each host this rate."""
    for name in hosts.addresses:
        rate = ("rate", f"{int(gigabits * 1000)}mbit", "burst", f"{max(1, int(gigabits))}mb", "latency", "20ms")
        command = [*hosts.enter(name), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate]
        subprocess.run(command, check=True, timeout=20)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rates", default="0,10,1")
    parser.add_argument("--as", dest="role", choices=["giver", "taker"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        {"giver": give, "taker": take}[options.role](json.loads(sys.stdin.readline()))
        return 0
    tools = all(map(shutil.which, ("ip", "tc", "unshare")))
    if not tools or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        print("not measured: hosts are played by network namespaces, which may not be made here")
        return 0
    good = True
    for rate in map(float, options.rates.split(",")):
        hosts = Namespaces()
        try:
            if rate:
                shape(hosts, rate)
            seconds = measured(hosts, options)
        finally:
            hosts.close()
        bare = seconds.pop("bare")
        inside = statistics.median(seconds.pop("into the model"))
        link = f"{rate:g} Gbit/s" if rate else "as fast as memory"
        print(f"{link}: bare copy {statistics.median(bare) * 1e3:.0f} ms", end="")
        for way, each in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(each, bare, strict=True))
            print(f"; hop {way} {statistics.median(each) * 1e3:.0f} ms, ratio {ratio:.2f}", end="")
            good &= way != "clear" or ratio <= MOST
        print(f"; of each hop {inside * 1e3:.0f} ms are the copy into the model", flush=True)
    print(f"in clear at most {MOST}: {'yes' if good else 'no'}")
    return not good


if __name__ == "__main__":
    sys.exit(main())

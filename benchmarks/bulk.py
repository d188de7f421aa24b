"""States by network: `store.bulk` against one bare TCP stream of the same bytes, on loopback and through a slow link.

Four ways take turns in one run, between the same two processes: a bare stream (`sendall`, `recv_into` a buffer that is
there), and a State as agents ask each other for it, encrypted on a connection that is kept, encrypted on a new one,
and in clear. The last three include requests, frames, digests at both ends and the memory for what comes.

    python benchmarks/bulk.py [--megabytes 100] [--repeats 15] [--only loopback | link | depot]

The link is of 1 Gbit/s (`tc tbf`) between two network namespaces, which only root can make. Then 8 senders at once
store States through a driver whose disk takes 60 MB/s, which takes longer than a silent server is waited for.

Goals, medians of one run: encrypted ≥ 0.25 of the bare stream on a kept connection over loopback, ≥ 0.2 on a new one,
≥ 0.9 through the link; all 8 senders succeed.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hopyard.certificate import make_certificate
from hopyard.spec import Ref
from hopyard.store.arena import Taken
from hopyard.store.bulk.client import Ask, Client, always
from hopyard.store.bulk.connection import STALL_SECONDS, Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.store.remote import Depot, RemoteStore
from hopyard.store.states import LocalStore
from hopyard.system.network import listen

REF = Ref(0, 1, 1)
RATE = 1e9 / 8
DISK = 60e6
SENDERS = 8
LEAST = {"loopback": {"kept": 0.25, "new": 0.2}, "link": {"kept": 0.9, "new": 0.9}}


# ------------------------------------------------------------------------------------------ the two processes


def gives(host: str, megabytes: int, token: str, certificate: str) -> None:
    """The one that has the bytes. Prints where it listens."""
    data = memoryview(os.urandom(megabytes << 20))
    services = {"take": Service(lambda ask, nothing: Taken(data, always))}
    credentials = Credentials(token, certificate)
    bare = listen(host)

    def stream() -> None:
        line, _ = bare.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line.recv(1):
            line.sendall(data)

    threading.Thread(target=stream, daemon=True).start()
    servers = {way: Server(host, credentials, services, encrypt=way == "tls") for way in ("tls", "tcp")}
    addresses = {way: server.address for way, server in servers.items()}
    print(json.dumps({"bare": bare.getsockname(), **addresses}), flush=True)
    sys.stdin.read()


def asks(told: dict[str, Any]) -> None:
    """The one that wants them. Prints the seconds of each way."""
    size, credentials = told["megabytes"] << 20, Credentials(told["token"], told["certificate"])
    line = socket.create_connection(tuple(told["bare"]))
    buffer = memoryview(bytearray(size))
    kept = {way: Client(credentials) for way in ("tls", "tcp")}

    def bare() -> None:
        line.sendall(b"x")
        at = 0
        while at < size:
            at += line.recv_into(buffer[at:])

    def new() -> None:
        client = Client(credentials)
        client.ask(told["tls"], Ask("take", REF))
        client.close()

    ways: dict[str, Callable[[], Any]] = {
        "bare": bare,
        "kept": lambda: kept["tls"].ask(told["tls"], Ask("take", REF)),
        "new": new,
        "clear": lambda: kept["tcp"].ask(told["tcp"], Ask("take", REF)),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(told["repeats"] + 1):
        names = list(ways)
        for way in names[repeat % 4 :] + names[: repeat % 4]:
            began = time.perf_counter()
            ways[way]()
            if repeat:  # the first connects
                seconds[way].append(time.perf_counter() - began)
    print(json.dumps(seconds))


def compared(where: str, options: Any, host: str, giver: list[str], asker: list[str]) -> bool:
    """Both processes, each behind what is put before its command."""
    secrets = {"token": "a token", "certificate": make_certificate()}
    more = {"megabytes": options.megabytes, "repeats": options.repeats}
    command = [sys.executable, __file__]
    process = subprocess.Popen([*giver, *command, "--as", "gives"], stdin=-1, stdout=-1, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"host": host, "megabytes": options.megabytes, **secrets}) + "\n")
    process.stdin.flush()
    told = {**secrets, **more, **json.loads(process.stdout.readline())}
    answer = subprocess.run(
        [*asker, *command, "--as", "asks"], input=json.dumps(told) + "\n", stdout=-1, text=True, check=True
    )
    process.stdin.close()
    process.wait()
    seconds = json.loads(answer.stdout)
    size = options.megabytes << 20
    good = True
    for way, found in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["bare"], found, strict=True))
        least = LEAST[where].get(way, 0.0)
        good &= ratio >= least
        median = statistics.median(found)
        rate = f"{median * 1e3:.0f} ms, {size / median / 1e9:.2f} GB/s"
        goal = f" (at least {least})" if least else ""
        best = min(seconds["bare"]) / min(found)
        print(f"{where}, {way}: {rate}, {ratio:.3f} of the bare stream{goal}; best to best {best:.3f}", flush=True)
    return good


@contextlib.contextmanager
def linked() -> Iterator[tuple[str, list[str], list[str]]]:
    """Two hosts with a link of `RATE` between them; the address of the first, and how to run what on each."""
    number = os.getpid()
    one, other = f"hopyard-{number}-a", f"hopyard-{number}-b"
    net = f"10.{200 + number % 50}.{number // 50 % 250}"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, timeout=20)

    with contextlib.ExitStack() as stack:
        for space in (one, other):
            run("ip", "netns", "add", space)
            stack.callback(run, "ip", "netns", "del", space)
        run("ip", "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other)
        for last, space in enumerate((one, other), 1):
            run("ip", "-n", space, "addr", "add", f"{net}.{last}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", space, "link", "set", device, "up")
            shape = ("tbf", "rate", f"{int(RATE * 8)}bit", "burst", "512kb", "latency", "20ms")
            run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *shape)
        yield f"{net}.1", ["ip", "netns", "exec", one], ["ip", "netns", "exec", other]


# ------------------------------------------------------------------------------------------ a slow disk


class Disk:
    """Takes so many bytes a second, from all together."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._lock = threading.Lock()

    def put(self, ref: Ref, data: memoryview) -> None:
        with self._lock:
            time.sleep(len(data) / DISK)
        self._store.put(ref, data[:1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def senders() -> bool:
    """All at once, until it takes longer than a silent server is waited for."""
    size = int(DISK * STALL_SECONDS * 1.05 / SENDERS)
    data, errors, seconds = bytes(size), [], []
    credentials = Credentials("a token", make_certificate())
    with tempfile.TemporaryDirectory() as folder:
        server = Server("127.0.0.1", credentials, Depot(Disk(LocalStore(Path(folder)))).services(), encrypt=True)

        def put(trial: int) -> None:
            client, began = Client(credentials), time.perf_counter()
            try:
                RemoteStore(client, server.address).put(Ref(trial, 1, 1), memoryview(data))
                seconds.append(time.perf_counter() - began)
            except Exception as error:
                errors.append(error)
            client.close()

        threads = [threading.Thread(target=put, args=(trial,)) for trial in range(SENDERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.close()
    alone, last = SENDERS * size / DISK, max(seconds, default=0.0)
    print(
        f"depot of {DISK / 1e6:.0f} MB/s: {len(seconds)} of {SENDERS} senders of {size / 1e6:.0f} MB succeeded, the "
        f"last after {last:.1f} s (the disk alone: {alone:.1f} s) {errors or ''}",
        flush=True,
    )
    return len(seconds) == SENDERS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", choices=["loopback", "link", "depot"])
    parser.add_argument("--as", dest="role", choices=["gives", "asks"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        told = json.loads(sys.stdin.readline())
        if options.role == "gives":
            gives(**told)
        else:
            asks(told)
        return 0
    good = True
    if options.only in (None, "loopback"):
        good &= compared("loopback", options, "127.0.0.1", [], [])
    if options.only in (None, "link"):
        if os.geteuid() or not shutil.which("tc"):
            print("link: not measured, as no namespaces may be made here")
        else:
            with linked() as (host, one, other):
                good &= compared("link", options, host, one, other)
    if options.only in (None, "depot"):
        good &= senders()
    return not good


if __name__ == "__main__":
    sys.exit(main())

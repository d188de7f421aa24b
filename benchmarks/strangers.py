"""Strangers at all ports of Hopyard: who gets in, what it costs, and whether honest traffic goes on.

    python benchmarks/strangers.py [--frames 1000000] [--rate 1200] [--pace 500] [--seed 0]
                                   [--only messages supervisors states states-tls rows]

The ports are those of SECURITY.md: messages (ZeroMQ with CURVE), supervisors, States in clear and by TLS, and rows of a
feed by TCP. They get their shares of the frames one after another; States by TLS half of what others get, at half the
rate, as a handshake of TLS costs twice as much. The real server runs in one process, an honest client, made of the same
code that agents, executors and Spark's tasks run, in another, two strangers in two more. A frame is what one connection
of a stranger brings, as each server hangs up after the first that is wrong:

    malformed   random bytes, other protocols and versions, wrong lengths, wrong proofs
    truncated   what an honest client said (recorded by a proxy between it and the server), cut at a random byte
    mutated     the same with one byte changed
    replayed    the same, whole
    oversized   more than is allowed, announced or sent
    slow        a few of its bytes, then silence; up to 600 of these connections are open at once
    impostor    the client's own code, with keys and tokens of its own

The token of supervisors goes in clear, so whoever hears it has it: there, what is recorded is of another run.

The honest client asks and waits for the answer `--pace` times a second, which are the heartbeats of 1,250 agents
(`--pace 0`: as fast as it goes), on a new connection every second. Windows with and without strangers take turns.
Strangers bring `--rate` frames a second, all together, which leaves more than half of two cores to server and client:
so the ratio of the rates says what strangers cost them, and not what they cost the machine. On a machine that has other
work, it says nothing. A million takes 19 minutes.

Goals: nobody is let in, by the server's own count of handshakes that succeeded, less those of the honest client; its
memory (resident, looked at ten times a second) never grows by more than 64 MB after the first frames; the rate of
honest traffic with strangers is at least 0.8 of that in the windows before and after (median). Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from hopyard.errors import HopyardError
from strangers_ports import HOST, PORTS, Address, Port

FORK = multiprocessing.get_context("fork")
STRANGERS = 2
HELD, HELD_SLOW = 100, 300
"""Connections that each stranger keeps open, and slow ones beside them; one more ends the oldest."""
KINDS = ("malformed", "truncated", "mutated", "replayed", "oversized", "slow", "impostor")
IMPOSTORS = 0.02
"""Their share of all frames, as a whole handshake costs a stranger more than all else; others have equal shares."""
WARM = 5000
"""Frames before the server's memory is looked at for the first time."""
CONNECTION_SECONDS = 1.0
SETTLE_SECONDS = 0.3
GROWTH, RATIO = 64.0, 0.8
"""Goals: megabytes, at most; the honest rate with strangers, of that without, at least."""


def record(port: Port, address: Address, secret: Any, pipe: Pipe) -> None:
    """Let an honest client speak to the server by way of a proxy, and send what it said on each connection."""
    said: list[bytearray] = []

    def pump(source: socket.socket, sink: socket.socket, heard: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def listen() -> None:
        while True:
            near, far, heard = listener.accept()[0], socket.create_connection(address), bytearray()
            said.append(heard)
            for ends in ((near, far, heard), (far, near, bytearray())):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    listener = socket.create_server((HOST, 0))
    threading.Thread(target=listen, daemon=True).start()
    client: Any = port.client(listener.getsockname(), secret)
    for _ in range(4):
        next(client)
    client.close()
    pipe.send([bytes(heard) for heard in said if heard])


def paced(rate: float) -> Iterator[None]:
    """Yield so many times a second; what is late is not made up for at once. 0: as fast as it goes."""
    due = time.monotonic()
    while True:
        if rate:
            due = max(due + 1 / rate, time.monotonic() - 0.05)
            time.sleep(max(0.0, due - time.monotonic()))
        yield


def honest(port: Port, address: Address, secret: Any, pace: float, counts: Any) -> None:
    """Ask until `counts[-1]` is set. The others: connections, requests that were answered, failures, nanoseconds."""
    turns = paced(pace)
    while not counts[-1]:
        client: Any = port.client(address, secret)
        try:
            next(client)
            counts[0] += 1
            end = time.monotonic() + CONNECTION_SECONDS
            while time.monotonic() < end:
                next(turns)
                began = time.monotonic_ns()
                next(client)
                counts[1] += 1
                counts[3] += time.monotonic_ns() - began
        except (OSError, HopyardError):
            counts[2] += 1
        finally:
            client.close()


def stranger(
    port: Port, address: Address, secret: Any, openings: list[bytes], dice: random.Random, rate: float, counts: Any
) -> None:
    """Bring frames until `counts[-1]` were brought, whenever that is raised; the others count each kind."""
    impostor = port.impostor()
    held: dict[bool, deque[socket.socket]] = {False: deque(maxlen=HELD), True: deque(maxlen=HELD_SLOW)}
    brought, turns = 0, paced(rate)
    while True:
        if brought == counts[-1]:
            for connections in held.values():
                while connections:
                    connections.pop().close()
            time.sleep(0.01)
            continue
        next(turns)
        kind = "impostor" if dice.random() < IMPOSTORS else dice.choice(KINDS[:-1])
        if kind == "impostor":
            impostor(address, secret)
        else:
            connection = socket.create_connection(address, 30)
            connection.setblocking(False)
            with contextlib.suppress(ConnectionError, BlockingIOError):  # it has hung up already; it takes no more
                connection.send(frame(port, kind, dice.choice(openings), dice))
            connections = held[kind == "slow"]
            if len(connections) == connections.maxlen:
                connections.popleft().close()
            connections.append(connection)
        brought += 1
        counts[KINDS.index(kind)] += 1


def frame(port: Port, kind: str, opening: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(opening))
    match kind:
        case "malformed":
            return dice.choice(port.malformed)(dice)
        case "oversized":
            return port.oversized(dice)
        case "mutated":
            return opening[:at] + bytes([opening[at] ^ dice.randrange(1, 256)]) + opening[at + 1 :]
        case "replayed":
            return opening
    return opening[: min(at, 8) if kind == "slow" else at]


@dataclass(frozen=True)
class Window:
    """What happened in some seconds."""

    frames: int
    requests: int
    """Of the honest client, that were answered."""
    waited: float
    """Milliseconds that it waited for all the answers."""
    seconds: float
    processor: float
    """Seconds that the server had of a processor."""

    @property
    def rate(self) -> float:
        """Honest requests a second."""
        return self.requests / self.seconds


def told_of(windows: list[Window]) -> tuple[float, float]:
    """Return the medians of honest requests a second, and of milliseconds until an answer."""
    return (
        statistics.median(window.rate for window in windows),
        statistics.median(window.waited / max(1, window.requests) for window in windows),
    )


def cost(quiet: list[Window], busy: list[Window]) -> float:
    """Return the seconds of a processor that a stranger's frame costs the server."""
    request = sum(window.processor for window in quiet) / max(1, sum(window.requests for window in quiet))
    total = sum(window.processor - request * window.requests for window in busy)
    return total / sum(window.frames for window in busy)


class Campaign:
    """The strangers, the honest client and the server of one port. Owner of their processes."""

    def __init__(self, name: str, rate: float, pace: float, seed: int) -> None:
        self._name, self._port = name, PORTS[name]
        self._rate = rate = rate * self._port.weight
        self._processes: dict[str, Any] = {}
        self._pipe, *served = self._serve("server")
        recorded = self._serve("another server")[1:] if self._port.in_clear else served
        pipe, end = FORK.Pipe()
        self._start("recorder", record, *recorded, end)
        end.close()
        openings = self._hear(pipe)
        self._end("recorder")
        self._end("another server")
        self._before = self._ask()
        self._honest = FORK.Array("q", 5, lock=False)
        self._start("honest client", honest, *served, pace, self._honest)
        self._brought = [FORK.Array("q", len(KINDS) + 1, lock=False) for _ in range(STRANGERS)]
        for number, counts in enumerate(self._brought):
            dice = random.Random(f"{seed} {name} {number}")
            self._start(f"stranger {number}", stranger, *served, openings, dice, rate / STRANGERS, counts)
        self._largest = 0

    def _start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        self._processes[name] = FORK.Process(target=target, args=(self._port, *args), daemon=True)
        self._processes[name].start()

    def _end(self, name: str) -> None:
        if process := self._processes.pop(name, None):
            process.kill()
            process.join()

    def _serve(self, name: str) -> tuple[Any, ...]:
        """Start a server; return a pipe to it, its address and what lets clients in."""
        pipe, end = FORK.Pipe()
        self._start(name, lambda port, end: port.serve(end), end)
        end.close()  # the end of the process is that of the pipe then
        return pipe, *self._hear(pipe)

    def _hear(self, pipe: Pipe) -> Any:
        with contextlib.suppress(EOFError):
            if pipe.poll(300):
                return pipe.recv()
        raise RuntimeError(f"{self._name}: no answer from {', '.join(self._processes)}")

    def _ask(self) -> int:
        """Return how many handshakes have succeeded."""
        self._pipe.send(True)
        return int(self._hear(self._pipe))

    def _resident(self) -> float:
        status = Path(f"/proc/{self._processes['server'].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def _processor(self) -> float:
        """Return the seconds of a processor that the server has had."""
        fields = Path(f"/proc/{self._processes['server'].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _window(self, frames: int = 0, seconds: float = 0.0) -> Window:
        """Bring so many frames, or none for so long."""
        for number, counts in enumerate(self._brought):
            counts[-1] += (frames + number) // STRANGERS
        _, answered, _, waited, _ = self._honest
        processor, began = self._processor(), time.monotonic()
        while time.monotonic() - began < seconds or any(sum(counts[:-1]) < counts[-1] for counts in self._brought):
            time.sleep(min(0.1, seconds or 0.1))
            self._largest = max(self._largest, self._resident())
            for name, process in self._processes.items():
                if not process.is_alive():
                    raise RuntimeError(f"{self._name}: the {name} ended with code {process.exitcode}")
        waited = (self._honest[3] - waited) / 1e6
        processor, seconds = self._processor() - processor, time.monotonic() - began
        window = Window(frames, self._honest[1] - answered, waited, seconds, processor)
        time.sleep(SETTLE_SECONDS)
        return window

    def run(self, frames: int) -> tuple[Counter[str], bool]:
        """Bring so many frames, and print what came of it; return how many of each kind, and whether all is well."""
        warm = min(WARM, frames // 10)
        self._window(warm)
        first = self._largest = self._resident()
        windows = max(2, min(6, int((frames - warm) / self._rate)))
        pause = max(0.5, (frames - warm) / windows / self._rate / 4)
        quiet, busy, half = [self._window(seconds=pause)], [], 0.0
        for number in range(windows):
            busy.append(self._window((frames - warm + number) // windows))
            quiet.append(self._window(seconds=pause))
            if number + 1 == windows // 2:
                half = self._resident() - first
        growth, last = self._largest - first, self._resident() - first
        self._honest[-1] = 1
        self._processes["honest client"].join(60)
        connections, answered, failed, *_ = self._honest
        let_in = self._ask() - self._before - connections * self._port.handshakes
        (alone, waited_alone), (beside, waited_beside) = told_of(quiet), told_of(busy)
        ratio = statistics.median(
            2 * window.rate / max(1e-9, before.rate + after.rate)
            for before, window, after in zip(quiet, busy, quiet[1:], strict=False)
        )
        kinds = Counter({kind: sum(counts[number] for counts in self._brought) for number, kind in enumerate(KINDS)})
        print(
            f"{self._name}: {told(kinds)}, {statistics.median(window.frames / window.seconds for window in busy):,.0f} "
            f"a second: {let_in} let in; memory {first:.1f} MB, {growth:+.1f} MB at most (at most {GROWTH:g}), "
            f"{half:+.1f} MB after half of them, {last:+.1f} MB at the end; {cost(quiet, busy) * 1e6:.0f} µs of the "
            f"server's processor each; honest requests: {answered:,} on {connections} connections, {failed} failed, "
            f"{alone:,.0f} a second, {beside:,.0f} beside strangers, ratio {ratio:.3f} (at least {RATIO}), "
            f"{waited_alone:.2f} and {waited_beside:.2f} ms each",
            flush=True,
        )
        return kinds, not let_in and growth <= GROWTH and ratio >= RATIO

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)


def told(kinds: Counter[str]) -> str:
    return f"{kinds.total():,} frames ({', '.join(f'{count:,} {kind}' for kind, count in kinds.items())})"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=1200.0)
    parser.add_argument("--pace", type=float, default=500.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(PORTS), default=list(PORTS))
    options = parser.parse_args()
    all_kinds, good, began = Counter[str](), True, time.monotonic()
    shares = [PORTS[name].weight for name in options.only]
    for number, name in enumerate(options.only):
        campaign = Campaign(name, options.rate, options.pace, options.seed)
        try:
            left, part = options.frames - all_kinds.total(), shares[number] / sum(shares[number:])
            kinds, well = campaign.run(round(left * part))
        finally:
            campaign.close()
        all_kinds += kinds
        good &= well
    verdict = "all goals are met" if good else "a goal is missed"
    print(f"all: {told(all_kinds)} in {(time.monotonic() - began) / 60:.1f} minutes: {verdict}")
    return not good


if __name__ == "__main__":
    sys.exit(main())

"""Hosts of their own with a slow network between them, on this machine: namespaces play them, and only root may.

Each host has loopback, an address and a name of its own. `tc tbf` limits what each sends. Between them is a bridge, or
a process that passes packets on later (`python slow_network.py relay SECONDS ADDRESS=DESCRIPTOR…`), as this kernel's
netem would. `Hosts` is an engine whose workers are on them, one on each.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hopyard as hy
from hopyard.engines.local import Processes
from hopyard.ports.engines import Agents, LaunchInfo

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 8000
"""Bytes of a packet of the relay, which takes a few microseconds for each."""
BURST = 32_000
"""Bytes that a host may send at once."""
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def refusal() -> str:
    """Why no such network can be made here, in one sentence; "": it can."""
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no slow network can be made here: {', '.join(missing)} is not installed"
    if subprocess.run(["unshare", "--net", "--uts", "true"], check=False, capture_output=True).returncode:
        return "no slow network can be made here: only root may make namespaces"
    return ""


def in_thread(work: Callable[[], T]) -> T:
    """Return what a thread of its own returns, whose namespaces end with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _checked(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass
class Host:
    """A host.

    Attributes:
        namespaces: descriptors of its network and its name.
    """

    name: str
    address: str
    namespaces: tuple[int, int]

    def inside(self, work: Callable[[], T]) -> T:
        """Do something there; a process that is started stays there."""

        def run() -> T:
            for descriptor in self.namespaces:
                _checked(_libc.setns(descriptor, 0))
            return work()

        return in_thread(run)

    def ip(self, *command: str) -> None:
        self.inside(lambda: subprocess.run(["ip", *command], check=True, timeout=20))


def _host(name: str, address: str) -> Host:
    def namespaces() -> tuple[int, int]:
        _checked(_libc.unshare(CLONE_NEWUTS | CLONE_NEWNET))
        socket.sethostname(name)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open("/proc/thread-self/ns/uts", os.O_RDONLY)

    host = Host(name, address, in_thread(namespaces))
    host.ip("link", "set", "lo", "up")
    return host


_networks = itertools.count()


class Network:
    """Hosts, and what is between them and this process.

    Args:
        count: how many hosts.
        rate: bytes per second that each may send; 0: as many as it can.
        delay: seconds that each packet takes.
    """

    def __init__(self, count: int, rate: float = 0.0, delay: float = 0.0) -> None:
        number = os.getpid()
        net = f"10.{150 + number % 50}.{number // 50 % 250}"
        self.own = f"{net}.1"
        self.hosts: list[Host] = []
        self._undo = contextlib.ExitStack()
        try:
            for each in range(count):
                self.hosts.append(_host(f"slow-{each}", f"{net}.{2 + each}"))
                for descriptor in self.hosts[-1].namespaces:
                    self._undo.callback(os.close, descriptor)
            name = (
                f"hys{number}{chr(97 + next(_networks) % 26)}"  # what one has left goes when its processes have ended
            )
            (self._relay if delay else self._bridge)(name, delay)
            for host in self.hosts if rate else ():
                limits = ["rate", f"{round(8 * rate)}bit", "burst", str(BURST), "latency", "2s"]
                self._inside(host, ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits])
        except BaseException:
            self.close()
            raise

    def _bridge(self, name: str, delay: float) -> None:
        self._run(["ip", "link", "add", name, "type", "bridge"])
        self._undo.callback(self._run, ["ip", "link", "del", name])
        self._run(["ip", "addr", "add", f"{self.own}/24", "dev", name])
        self._run(["ip", "link", "set", name, "up"])
        for number, host in enumerate(self.hosts):
            wire, space = f"{name}.{number}", f"/proc/{os.getpid()}/fd/{host.namespaces[0]}"
            self._run(["ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space])
            self._run(["ip", "link", "set", wire, "master", name, "up"])
            host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
            host.ip("link", "set", "eth0", "up")

    def _relay(self, name: str, delay: float) -> None:
        devices = {self.own: _tun(name, self.own)}
        for host in self.hosts:
            devices[host.address] = host.inside(lambda host=host: _tun("eth0", host.address))  # type: ignore[misc]
        ends = [f"{address}={descriptor}" for address, descriptor in devices.items()]
        relay = subprocess.Popen(
            [sys.executable, __file__, "relay", str(delay), *ends], pass_fds=list(devices.values()), process_group=0
        )
        for descriptor in devices.values():
            os.close(descriptor)
        self._undo.callback(relay.wait)
        self._undo.callback(relay.kill)

    @staticmethod
    def _run(command: list[str]) -> None:
        subprocess.run(command, check=True, timeout=20)

    def _inside(self, host: Host, command: list[str]) -> None:
        host.inside(lambda: self._run(command))

    def close(self) -> None:
        """Take all of it down; processes that are still there lose their network."""
        self._undo.close()


def _tun(name: str, address: str) -> int:
    """Make a device of the calling thread's network; what goes in and out of it is read from the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", name], check=True, timeout=20)
    subprocess.run(["ip", "link", "set", name, "mtu", str(MTU), "txqueuelen", "5000", "up"], check=True, timeout=20)
    return descriptor


def relay(delay: float, devices: dict[str, int]) -> None:
    """Pass packets on between devices, each `delay` seconds after it came. Never returns."""
    to = {socket.inet_aton(address): descriptor for address, descriptor in devices.items()}
    waiting: deque[tuple[float, int, bytes]] = deque()
    poll = select.epoll()
    for descriptor in to.values():
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.EPOLLIN)
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else -1
        for descriptor, _ in poll.poll(wait):
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(descriptor, 1 << 16)
                    end = to.get(packet[16:20])
                    if end is not None and packet[0] >> 4 == 4:
                        waiting.append((time.monotonic() + delay, end, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, end, packet = waiting.popleft()
            with contextlib.suppress(OSError):  # its device is gone
                os.write(end, packet)


@dataclass(frozen=True, slots=True)
class Hosts(hy.Local):
    """Workers on hosts of a network, one on each in turn."""

    network: Any = None
    apart: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", len(self.network.hosts))
        object.__setattr__(self, "devices", None)
        object.__setattr__(self, "endpoint", (self.network.own, 0))
        hy.Local.__post_init__(self)

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        return (1,) * self.workers

    def open(self, launch: LaunchInfo) -> Agents:
        return _Processes(self, launch)

    def __reduce__(self) -> Any:  # a namespace is in no pickle
        return hy.Local, (self.workers,)


class _Processes(Processes):
    def start(self, slot: int) -> None:
        hosts = self._engine.network.hosts  # type: ignore[attr-defined]
        hosts[slot % len(hosts)].inside(lambda: Processes.start(self, slot))


@contextlib.contextmanager
def network(count: int, rate: float = 0.0, delay: float = 0.0) -> Iterator[Network]:
    made = Network(count, rate, delay)
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    relay(float(sys.argv[2]), {end.partition("=")[0]: int(end.partition("=")[2]) for end in sys.argv[3:]})

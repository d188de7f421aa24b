"""The addresses of this host: which one others can dial, and on which one it listens for them; exact reads."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic

LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that no host has (RFC 5737, RFC 3849), so that the default route leads to them."""
BACKLOG = 4096
"""Connections that may wait to be accepted, as far as the system allows. The kernel drops what does not fit, and the
other end tries again ever later: with 100, ten of a thousand agents that came at once were not heard for 15 seconds."""


def is_loopback(host: str) -> bool:
    """Whether `host` can be dialled from this host alone: "localhost", or an address such as 127.0.1.1 or ::1. A name
    that this host knows by such an address, as Debian writes it for a host's own, may be another address elsewhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_towards(host: str) -> str:
    """Return the address of this host that those on the way to `host` can dial.

    Where the name `host` is empty or unknown here, or stands for a loopback address, that is the address on the default
    route.
    Without a network it is a loopback address.
    """
    if is_loopback(host):
        return host if ":" in host else LOOPBACK
    for towards in filter(None, (host, *_ELSEWHERE)):
        with contextlib.suppress(OSError):
            targets = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)
            family, *_, target = min(targets, key=lambda each: each[0] != socket.AF_INET)
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # sends nothing; the system chooses the interface
                address = str(probe.getsockname()[0])
            if not is_loopback(address):
                return address
    return LOOPBACK


def address_to_bind(host: str) -> str:
    """Return the address to listen on for those who dial `host`: that address alone where it is one of this machine;
    empty, which is every address, where it is not (a router leads here), or where the name means several, or loopback
    by a name that others may know by another address."""
    if host == "localhost":
        return LOOPBACK
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    addresses = {address for address in addresses if ":" not in address} or addresses
    address = addresses.pop()
    is_name = host != address
    return "" if addresses or (is_name and is_loopback(address)) or not _is_here(address) else address


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


TAKEN = (
    "give another port=, or port=0 for any; with hy.Hosts(join=…) another run has this ticket's hosts: wait for it, or "
    "make a second ticket"
)
"""What to do where a port is taken."""


def listen(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens for those who dial `host`, see `address_to_bind`. Port 0: any.

    Raises:
        OSError: the port is taken.
    """
    address = address_to_bind(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG)


def without_proxy(variables: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the environment variables with which clients of HTTP and gRPC reach `hosts` and loopback without a proxy:
    those of `variables`, extended.

    gRPC reads no_grpc_proxy, or else no_proxy, and takes "*" for a name. Others read no_proxy, and some prefer
    NO_PROXY; they know "*" only where it stands alone.
    """
    addresses = dict.fromkeys(("localhost", LOOPBACK, *hosts))
    extended = {}
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        value = variables.get(name) or variables.get("no_proxy") or variables.get("NO_PROXY") or ""
        present = [entry.strip() for entry in value.split(",")]
        missing = [address for address in addresses if address not in present]
        if present == ["*"] and name != "no_grpc_proxy":
            missing = []
        extended[name] = ",".join(filter(None, [value, *missing]))
    return extended


def joined(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Return host and port of "host:port", with or without "scheme://" before it."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def java_above() -> int:
    """Return the next Java process above this one; above a Python worker of Spark, its executor. 0: there is none."""
    process = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            if os.readlink(f"/proc/{process}/exe").endswith("/java"):  # noqa: PTH115 - the target need not be there
                return process
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def interface_of(address: str) -> str:
    """Return the network interface that has this IPv4 address; empty when none has, or the system cannot tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return ""


_SIOCGIFADDR = 0x8915
"""Number of a request of `ioctl` on Linux: the address of an interface."""


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel find out within 20 s when the other end's host has vanished, and send what is short at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_NODELAY", 1), ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read exactly `size` bytes from a socket. Raises as `read_into`."""
    data = bytearray(size)
    read_into(connection, memoryview(data), deadline)
    return bytes(data)


def read_into(connection: socket.socket, view: memoryview, deadline: float | None = None) -> None:
    """Fill `view`; ConnectionError when the connection ends before, TimeoutError at the deadline (of `monotonic`)."""
    at, flags = 0, 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
    while at < len(view):
        if deadline is not None:
            if (left := deadline - monotonic()) <= 0:
                raise TimeoutError(f"{at} of {len(view)} bytes came in time")
            connection.settimeout(left)
        count = connection.recv_into(view[at:], 0, flags)
        if not count:
            raise ConnectionError("the connection ended")
        at += count

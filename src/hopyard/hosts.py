"""Which address of this host others can dial."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether it can be dialled from this host alone."""
    return host in (LOOPBACK, "localhost")


def address_towards(host: str) -> str:
    """The address of this host that those on the way to `host` can dial."""
    if is_loopback(host):
        return LOOPBACK
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing; the system chooses the interface
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def java_above() -> int:
    """The next Java process above this one: of a Python worker of Spark, its executor. 0: there is none."""
    process = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            if os.readlink(f"/proc/{process}/exe").endswith("/java"):  # noqa: PTH115 - the target need not be there
                return process
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def interface_of(address: str) -> str:
    """Name of the network interface that has this IPv4 address; empty when none has, or the system cannot say."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


_SIOCGIFADDR = 0x8915
"""Of Linux."""

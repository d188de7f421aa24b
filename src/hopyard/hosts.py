"""Which address of this host others can dial."""

from __future__ import annotations

import socket

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

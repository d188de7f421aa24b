"""Addresses of this host."""

import socket

from hopyard.hosts import address_towards, interface_of, is_loopback


def test_the_address_that_others_dial() -> None:
    assert address_towards("127.0.0.1") == address_towards("localhost") == "127.0.0.1"
    assert address_towards("no such host") == socket.gethostname()
    assert is_loopback("localhost") and not is_loopback("192.0.2.7")


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.250") == ""

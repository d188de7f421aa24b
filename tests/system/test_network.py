"""Addresses of this host."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from hopyard.system.network import (
    _is_here,
    address_to_bind,
    address_towards,
    interface_of,
    is_loopback,
    joined,
    listen,
    parted,
    without_proxy,
)


def test_the_address_that_others_dial() -> None:
    assert address_towards("127.0.0.1") == address_towards("localhost") == address_towards("127.0.1.1") == "127.0.0.1"
    assert address_towards("::1") == "::1"


@pytest.mark.parametrize("known", [[], ["127.0.1.1"], ["::1"]], ids=["no DNS", "Debian", "IPv6"])
def test_a_driver_whose_name_leads_nowhere(monkeypatch: pytest.MonkeyPatch, known: list[str]) -> None:
    """Bug: the address was this host's name, which others may not know, or loopback, which they cannot dial."""
    look_up = socket.getaddrinfo

    def looked_up(host: str, *given: Any, **more: Any) -> list[Any]:
        if host != "driver":
            return look_up(host, *given, **more)
        if not known:
            raise socket.gaierror(-2, "Name or service not known")
        return look_up(known[0], *given, **more)

    expected = address_towards("192.0.2.7")
    monkeypatch.setattr("hopyard.system.network.socket.getaddrinfo", looked_up)
    assert address_towards("driver") == expected
    assert expected == "127.0.0.1" or not is_loopback(expected)


def test_a_driver_whose_name_is_of_ipv6_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it was asked for IPv4 alone."""
    asked: list[Any] = []

    class Probe(socket.socket):
        def connect(self, target: Any) -> None:
            asked.append((self.family, target[0]))

        def getsockname(self) -> Any:
            return "2001:db8::8", 5, 0, 0

    address = (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("2001:db8::7", 9, 0, 0))
    monkeypatch.setattr("hopyard.system.network.socket.getaddrinfo", lambda *given, **more: [address])
    monkeypatch.setattr("hopyard.system.network.socket.socket", Probe)
    assert address_towards("driver") == "2001:db8::8"
    assert asked == [(socket.AF_INET6, "2001:db8::7")]


def test_addresses_that_only_this_host_can_dial() -> None:
    for host in ("localhost", "127.0.0.1", "127.0.1.1", "::1"):
        assert is_loopback(host)
    for host in ("192.0.2.7", "2001:db8::7", socket.gethostname() + ".example", "", "127.example"):
        assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.1.1", "127.0.1.1"),
        ("192.0.2.7", ""),  # a router leads here
        ("nowhere.invalid", ""),
    ],
)
def test_the_listening_address_is_the_dialed_one(host: str, address: str) -> None:
    assert address_to_bind(host) == address


def test_a_name_is_its_one_address_here_but_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"debian": ["127.0.1.1"], "both": ["127.0.0.1", "192.0.2.7"], "mine": ["192.0.2.8", "2001:db8::8"]}

    def looked_up(host: str, *given: Any, **more: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr("hopyard.system.network.socket.getaddrinfo", looked_up)
    monkeypatch.setattr("hopyard.system.network._is_here", lambda address: address != "192.0.2.7")
    assert address_to_bind("debian") == ""  # others know it by another address
    assert address_to_bind("both") == ""
    assert address_to_bind("mine") == "192.0.2.8"


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_no_other_address_is_dialed(host: str) -> None:
    if not _is_here(host):
        pytest.skip(f"{host} is no address of this host")
    with listen(host) as listener:
        port = listener.getsockname()[1]
        assert listener.getsockname()[0] == host
        socket.create_connection((host, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_the_address_towards_others_is_bound_alone() -> None:
    own = address_towards("192.0.2.7")
    if not _is_here(own):
        pytest.skip("this host has no network")
    with listen(own) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass  # somebody else listens there
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_addresses_as_text() -> None:
    assert joined("::1", 7) == "[::1]:7" and joined("a.b", 7) == "a.b:7"
    assert parted("tcp://[::1]:7") == parted("[::1]:7") == ("::1", 7)
    assert parted("tls://a.b:7") == ("a.b", 7)


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.250") == ""


@pytest.mark.parametrize(
    ("variables", "grpc", "lower", "upper"),
    [
        ({}, "", "", ""),
        ({"no_proxy": ".corp, 10.0.0.1"}, ".corp, 10.0.0.1", ".corp, 10.0.0.1", ".corp, 10.0.0.1"),
        ({"NO_PROXY": ".corp"}, ".corp", ".corp", ".corp"),
        ({"no_proxy": "a", "NO_PROXY": "b", "no_grpc_proxy": "c"}, "c", "a", "b"),
    ],
)
def test_peers_are_added_to_hosts_without_a_proxy(variables: dict[str, str], grpc: str, lower: str, upper: str) -> None:
    added = "localhost,127.0.0.1,10.0.0.2"
    found = without_proxy(variables, ["10.0.0.2", "127.0.0.1", "10.0.0.2"])
    expected = [",".join(filter(None, (value, added))) for value in (grpc, lower, upper)]
    assert list(found.values()) == expected
    assert list(found) == ["no_grpc_proxy", "no_proxy", "NO_PROXY"]
    assert without_proxy(found, ["10.0.0.2"]) == found


def test_no_proxy_at_all_stays() -> None:
    found = without_proxy({"no_proxy": "*"}, ["10.0.0.2"])
    assert found["no_proxy"] == found["NO_PROXY"] == "*"
    assert found["no_grpc_proxy"] == "*,localhost,127.0.0.1,10.0.0.2"

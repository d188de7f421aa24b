"""A bad network between the driver and its agents: a relay that drops bytes, delays them, or cuts connections.

engine = Proxied(hy.Local(2))
hy.select(…, engine=engine)        # in another thread: engine.swallow(1.5)
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from dataclasses import replace
from typing import Any, Literal

from hopyard.ports.engines import Agents, Engine, LaunchInfo
from hopyard.system.network import joined, parted

Direction = Literal["up", "down", "both"]

_RESET = struct.pack("ii", 1, 0)
_BLOCK = 1 << 16


class _Relay:
    """One connection through a proxy."""

    def __init__(self, agent: socket.socket, driver: socket.socket) -> None:
        self._agent, self._driver = agent, driver
        self.swallowed: set[str] = set()
        """Directions whose bytes are dropped."""
        self.lost = 0
        """Bytes that were dropped."""
        self._flowing = threading.Event()
        self._flowing.set()
        self.threads = [
            threading.Thread(target=self._pump, args=way, name="hopyard-relay", daemon=True)
            for way in ((agent, driver, "up"), (driver, agent, "down"))
        ]
        for thread in self.threads:
            thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BLOCK):
                self._flowing.wait()
                if direction in self.swallowed:
                    self.lost += len(data)
                else:
                    target.sendall(data)
        self.cut()

    def hold(self, seconds: float) -> None:
        """Let nothing through for so many seconds, and then all that waited."""
        self._flowing.clear()
        threading.Timer(seconds, self._flowing.set).start()

    def cut(self) -> None:
        """Cut the connection; bytes in buffers are lost."""
        self._flowing.set()
        for end in (self._agent, self._driver):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the connection, and close its sockets."""
        self.cut()
        for thread in self.threads:
            thread.join()
        self._agent.close()
        self._driver.close()


class Proxy:
    """A relay from a port of its own to an address.

    Args:
        host: of the address, and of the relay's own port.
        port: of the address.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._relays: list[_Relay] = []
        self._lost = 0
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="hopyard-proxy", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Bytes that were dropped so far."""
        with self._lock:
            return self._lost + sum(relay.lost for relay in self._relays)

    def swallow(self, seconds: float, direction: Direction = "both") -> None:
        """Drop all bytes on the present connections, and cut them after so many seconds. Returns at once; new
        connections are served."""
        with self._lock:
            relays = list(self._relays)
        for relay in relays:
            relay.swallowed |= {"up", "down"} if direction == "both" else {direction}
            timer = threading.Timer(seconds, relay.cut)
            timer.daemon = True
            timer.start()

    def hold(self, seconds: float) -> None:
        """Let nothing through for so many seconds, and then all that waited."""
        with self._lock:
            for relay in self._relays:
                relay.hold(seconds)

    def close(self) -> None:
        """Cut all connections, and accept no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for relay in self._relays:
            relay.close()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            try:
                driver = socket.create_connection(self._target, 5.0)
            except OSError:
                agent.close()
                continue
            driver.settimeout(None)
            with self._lock:
                ended = [relay for relay in self._relays if not any(thread.is_alive() for thread in relay.threads)]
                for relay in ended:
                    self._relays.remove(relay)
                    relay.close()
                    self._lost += relay.lost
                self._relays.append(_Relay(agent, driver))


class Proxied:
    """An engine whose agents reach the driver through proxies only: one for each driver that opens it.

    Args:
        engine: any that starts processes.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.proxies: list[Proxy] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unproxied, (self.engine,)

    def open(self, launch: LaunchInfo) -> Agents:
        """Start agents that get a proxy's address in place of the driver's."""
        proxied: dict[str, str] = {}

        def card(slot: int) -> bytes:
            credentials = json.loads(launch.card(slot))
            address = str(credentials["address"])
            if address not in proxied:
                host, port = parted(address)
                proxy = Proxy(host, port)
                self.proxies.append(proxy)
                proxied[address] = f"tcp://{joined(host, proxy.port)}"
            return json.dumps(credentials | {"address": proxied[address]}).encode() + b"\n"

        agents: Agents = self.engine.open(replace(launch, card=card))
        return agents

    @property
    def lost(self) -> int:
        """Bytes that were dropped so far."""
        return sum(proxy.lost for proxy in self.proxies)

    def swallow(self, seconds: float, direction: Direction = "both") -> None:
        """See Proxy."""
        for proxy in self.proxies:
            proxy.swallow(seconds, direction)

    def hold(self, seconds: float) -> None:
        """See Proxy."""
        for proxy in self.proxies:
            proxy.hold(seconds)

    def close(self) -> None:
        """Close all proxies: no agent reaches the driver any more."""
        for proxy in self.proxies:
            proxy.close()


def _unproxied(engine: Engine) -> Engine:
    """Return the engine alone, which is what a pickle holds: a driver in another process has a network of its own."""
    return engine

"""Which hosts can dial which: each listens at a port of its own, and dials this host and all the others."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence

from hopyard.engines.hosts.ssh import SshTarget, destination_address, remote
from hopyard.engines.survey import MARK, one_line
from hopyard.system.network import joined, listen

SECONDS = 30.0
"""How long a host may take to answer."""
PEER = f"""
import json, socket, sys
try:
    listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
except (OSError, ValueError):
    listener = socket.create_server(("", 0))
print("\\n{MARK}%d" % listener.getsockname()[1], flush=True)
faults = []
for host, port in json.loads(sys.stdin.readline()):
    try:
        socket.create_connection((host, port), 5).close()
        faults.append("")
    except OSError as error:
        faults.append(str(error))
print("{MARK}" + json.dumps(faults), flush=True)
sys.stdin.read()
"""


class _Peer:
    """One host, while it listens and dials."""

    def __init__(self, ssh: Sequence[str], target: SshTarget, python: str) -> None:
        self.target = target
        self.address = destination_address(ssh, target)
        self._process = subprocess.Popen(
            remote(ssh, target, [python, "-c", one_line(PEER)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._limit = threading.Timer(SECONDS, self._process.kill)
        self._limit.start()

    def line(self) -> str:
        """Return what it says next; empty: it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK)
        return ""

    def dial(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Let it dial these."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(addresses) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self._limit.cancel()
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=5)
        self._process.kill()
        self._process.wait()


def unreached(ssh: Sequence[str], hosts: Sequence[SshTarget], python: str, here: str, port: int) -> list[str]:
    """Return one sentence for each pair of hosts of which one cannot dial the other, this host among those dialled.

    Args:
        ssh: the command that logs in.
        hosts: that answer.
        python: the Python on them.
        here: the address by which they dial this host.
        port: the first of the three ports that a run would listen on; 0: any.

    Raises:
        OSError: a port is taken.
    """
    faults: list[str] = []
    with contextlib.ExitStack() as stack:
        own = [stack.enter_context(listen(here, port + n if port else 0)) for n in range(3 if port else 1)]
        peers = [_Peer(ssh, target, python) for target in hosts]
        for peer in peers:
            stack.callback(peer.close)
        ports = [int(peer.line() or 0) for peer in peers]
        dialled = [(here, int(listener.getsockname()[1])) for listener in own]
        names = ["this host"] * len(own)
        for peer, its in zip(peers, ports, strict=True):
            if its and peer.address:
                dialled.append((peer.address, its))
                names.append(peer.target.host)
        for peer in peers:
            peer.dial(dialled)
        for peer in peers:
            answers = json.loads(peer.line() or "[]")
            for (host, its), name, fault in zip(dialled, names, answers, strict=False):
                if fault:
                    faults.append(f"{peer.target.host} cannot dial {name} at {joined(host, its)}: {fault}")
            if not answers:
                faults.append(f"{peer.target.host} has not said within {SECONDS:.0f} seconds whom it can dial")
    return faults

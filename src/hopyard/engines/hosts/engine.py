"""Agents on hosts that have nothing but Python, Hopyard and ssh; or whose supervisors were started by hand.

Each host has one process that is started by ssh (`supervisors/host.py`), with a supervisor for each slot, which dials
this process. Or hosts run `hopyard agent --join TICKET` by themselves: then no login is needed, and they may come and
go. A host that vanishes costs its slots; one by ssh is logged in to again, sooner at first, then once a minute.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard import checks
from hopyard.checks import one_of, path, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.hosts.login import Login, Logins
from hopyard.engines.hosts.ssh import Surveyed, address_for, command_of, survey, targets
from hopyard.engines.supervised import SupervisedAgents, Warm
from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.engines.survey import FRAMEWORKS
from hopyard.engines.warm import Startable
from hopyard.errors import SpecError
from hopyard.ports.engines import Agents, LaunchInfo
from hopyard.system.network import is_loopback, joined

log = logging.getLogger(__name__)


class Hosts(Startable):
    """Worker processes on several hosts that have Python, Hopyard and ssh.

    Between `start` and `stop`, or in a `with` block, logins and supervisors stay when a run is over, each supervisor
    with a process that has imported the framework of the first run, and the workers of later runs are forks of it, as
    for `hy.Local`. Hosts that have joined stay with this process for so long. A second run at the same time logs in to
    all hosts once more, and has as many workers there; with `join` there is one run at a time.

    Args:
        hosts: for example ["a", "b:4", "user@c"]: what ssh is given, and behind a colon how many workers; without it,
            one for each GPU, or where there is none for each core. IPv6 addresses with a number stand in brackets.
        join: path of a ticket (`hopyard ticket` makes one) in the place of `hosts`: whoever runs `hopyard agent --join`
            with it takes workers. Such hosts may come and go.
        workers: how many workers, where `join` is given.
        python: the Python to run on the hosts; None: the same path as this process's.
        ssh: OpenSSH's client, with options if there are any: "ssh -p 2222 -J gate", or a list of words. It asks no
            questions: keys and known hosts must be set up. It may be another command that takes the same options.
        threads: intra-op threads of each worker. Results may depend on it, so it is fixed and recorded.
        env: more environment for the workers, as for `hy.Local`. It goes to hosts by TLS alone.
        devices: "auto": each worker of a host gets one of its GPUs, in turn, where there are GPUs; None: the CPU.
        address: name or address of this host that the others can dial; None: the one that connections to them have. An
            address of this host is the only one that is listened on.
        port: to listen on for workers, for their supervisors the next one, for States the one after that; 0: any that
            are free. With `join` the ticket has both.
        start_timeout: seconds to wait for the first worker, until the run ends with an error.

    Raises:
        SpecError: a value is not allowed.
    """

    name = "hosts"
    apart = True
    in_process = False
    driver_workers = 0
    shared_places = False

    def __init__(
        self,
        hosts: Any = None,
        *,
        join: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        python: str | None = None,
        ssh: Any = "ssh",
        threads: int = 1,
        env: Mapping[str, str] | None = None,
        devices: Any = "auto",
        address: str | None = None,
        port: int = 0,
        start_timeout: float = 120.0,
    ) -> None:
        if (hosts is None) == (join is None):
            raise SpecError('Hosts(…) must be given either a list of hosts, such as ["a", "b:4"], or join=, a ticket')
        self.targets = () if hosts is None else targets("Hosts(hosts)", hosts)
        self.join = None if join is None else path("Hosts(join=)", join, "the path of a ticket")
        self._ticket: Ticket | None = None
        if self.join is not None:
            if workers is None:
                raise SpecError("Hosts(join=…, workers=…): say how many workers; those that come first are taken")
            if address is not None or port:
                raise SpecError("Hosts(join=…): the ticket has address and port; leave address= and port= out")
            self._ticket = tickets.read(Path(self.join))
        elif workers is not None:
            raise SpecError('Hosts(workers=…) goes with join=; of a listed host the number stands with it: "a:4"')
        self.python = sys.executable if python is None else path("Hosts(python=)", python, "the path of a Python")
        self.ssh = command_of("Hosts(ssh=)", ssh)
        self.threads = whole("Hosts(threads=)", threads, 1)
        self.env = worker_environment("Hosts(env=)", {} if env is None else env)
        self.devices = one_of("Hosts(devices=)", devices, ("auto", None))
        self.start_timeout = seconds("Hosts(start_timeout=)", start_timeout)
        self._address, self._port = checks.address("Hosts(address=)", address), whole("Hosts(port=)", port, 0, 65533)
        self._joined_workers = 0 if workers is None else whole("Hosts(workers=)", workers, 1)
        self._surveyed: list[Surveyed] | None = None
        self._found_address = ""
        self._standby: Warm = Warm()

    def __repr__(self) -> str:
        if self.join is not None:
            return f"Hosts(join={self.join!r}, workers={self._joined_workers})"
        names = [
            target.destination if target.slots is None else joined(target.destination, target.slots)
            for target in self.targets
        ]
        return f"Hosts({names!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what was asked for. A pickle has neither what hosts answered nor the ticket, only its path, and is not
        started."""
        join = None if self.join is None else str(Path(self.join).absolute())
        unset: dict[str, Any] = {"_surveyed": None, "_ticket": None, "_found_address": "", "_standby": Warm()}
        return self.__dict__ | {"join": join} | unset

    @property
    def ticket(self) -> Ticket | None:
        """The ticket of `join`; None: hosts are listed.

        Raises:
            UsageError: it cannot be read, or others may read it.
        """
        if self._ticket is None and self.join is not None:
            self._ticket = tickets.read(Path(self.join))
        return self._ticket

    @property
    def surveyed(self) -> list[Surveyed]:
        """What the listed hosts have. They are asked once, all at the same time.

        Raises:
            ResourceError: one cannot be reached, or lacks something; one sentence for each such host.
        """
        if self._surveyed is None:
            self._surveyed = survey(self.ssh, self.targets, self.python, self.devices or "none") if self.targets else []
        return self._surveyed

    @property
    def workers(self) -> int:
        """How many workers there are; hosts that are listed are asked. Raises ResourceError as `surveyed` does."""
        return self._joined_workers or sum(host.slots for host in self.surveyed)

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """Workers of each listed host; of those that join nobody knows. Raises ResourceError as `surveyed` does."""
        return tuple([host.slots for host in self.surveyed])

    @property
    def endpoint(self) -> tuple[str, int]:
        """(host, port) that workers dial.

        Raises:
            SpecError: hosts are reached from several addresses of this one, or none is known.
            UsageError: the ticket cannot be read, or others may read it.
        """
        if self.ticket is not None:
            return self.ticket.host, self.ticket.port - 1
        if not self._address and not self._found_address:
            self._found_address = self._own_address()
        return self._address or self._found_address, self._port

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, of which none is started yet.

        Raises:
            SpecError: this engine comes from a pickle, which has no values of env=.
            ResourceError: a host lacks something, or a port is taken.
        """
        refuse_missing(self.env, "Hosts")
        imported = [name for name in FRAMEWORKS if name in sys.modules]
        for host in self.surveyed:
            if missing := [name for name in imported if name not in host.frameworks]:
                log.warning(
                    "%s has no %s in %s, which this process has imported: a recipe that needs it cannot run there",
                    *(host.target.host, " and no ".join(missing), self.python),
                )
        ssh, python, join, devices = self.ssh, self.python, self.join, self.devices or "none"
        hosts = self.surveyed

        def place(supervisors: Supervisors, ticket: Ticket) -> Logins:
            logins = [Login(ssh, host.target, python, host.slots, devices, ticket) for host in hosts]
            return Logins(logins, supervisors, ticket, join)

        return SupervisedAgents(self, launch, place, standby=self._standby, ticket=self.ticket)

    def _own_address(self) -> str:
        towards = {target.host: address_for(self.ssh, target) for target in self.targets}
        if unknown := [host for host, address in towards.items() if not address]:
            raise SpecError(
                f"Hosts(…): {', '.join(unknown)} is no name that this host can look up, so the address by which it "
                "reaches this one is not known: give address="
            )
        addresses = {address for address in towards.values() if not is_loopback(address)} or set(towards.values())
        if len(addresses) > 1:
            listed = ", ".join(f"{host} is reached from {address}" for host, address in towards.items())
            raise SpecError(f"Hosts(…): {listed}: give address= one that all of them can dial")
        return addresses.pop()

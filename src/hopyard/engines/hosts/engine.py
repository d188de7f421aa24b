"""Agents on hosts that have nothing but Python, Hopyard and ssh; or whose supervisors were started by hand.

Each host has one process that is started by ssh (`supervisors/host.py`), with a supervisor for each slot, which dials
this process. Or hosts run `hopyard agent --join TICKET` by themselves: then no login is needed, and they may come and
go. A host that vanishes costs its slots; one by ssh is logged in to again, sooner at first, then once a minute.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.certificate import make_certificate
from hopyard.checks import one_of, path, scalar, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.hosts.login import Login, Logins
from hopyard.engines.hosts.ssh import (
    FRAMEWORKS,
    Surveyed,
    address_for,
    command_of,
    default_python,
    survey,
    targets,
)
from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.messages import Prepare
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.engines.warm import Startable, Warm
from hopyard.errors import SpecError
from hopyard.ports import Agents, LaunchInfo
from hopyard.system.network import is_loopback, joined
from hopyard.text import shell_command, shown

log = logging.getLogger(__name__)

NONE_SECONDS = 15.0
"""Time without any supervisor until a warning says what is waited for."""


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
        address = scalar(address)
        if address is not None and (not isinstance(address, str) or not address):
            raise SpecError(f"Hosts(address=…) must be a name or address that hosts can dial, got {shown(address)}")
        self.python = default_python() if python is None else path("Hosts(python=)", python, "the path of a Python")
        self.ssh = command_of("Hosts(ssh=)", ssh)
        self.threads = whole("Hosts(threads=)", threads, 1)
        self.env = worker_environment("Hosts(env=)", {} if env is None else env)
        self.devices = one_of("Hosts(devices=)", devices, ("auto", None))
        self.start_timeout = seconds("Hosts(start_timeout=)", start_timeout)
        self._address, self._port = address, whole("Hosts(port=)", port, 0, 65533)
        self._joined_workers = 0 if workers is None else whole("Hosts(workers=)", workers, 1)
        self._surveyed: list[Surveyed] | None = None
        self._found_address = ""
        self._standby: Warm[Logins] = Warm()

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
    def address(self) -> tuple[str, int]:
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

    @property
    def supervisors_port(self) -> int:
        """The port that supervisors dial."""
        return self.address[1] + 1 if self.address[1] else 0

    @property
    def states_port(self) -> int:
        """The port at which States are stored and read."""
        return self.address[1] + 2 if self.address[1] else 0

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
        return HostAgents(self, launch)

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


class HostAgents:
    """The agents of one run on hosts."""

    def __init__(self, engine: Hosts, launch: LaunchInfo) -> None:
        self._engine = engine
        self._logins = engine._standby.take(launch, lambda lasting: _logins(engine, launch, lasting))
        self._supervisors = self._logins.supervisors
        self._opened = time.monotonic()
        self._warned = self._closed = False

    def start(self, slot: int) -> None:
        """Ask for an agent; the first call logs in to all hosts."""
        self._supervisors.start(slot)
        self._logins.begin()

    def end(self, slot: int) -> None:
        """End the agent of this slot."""
        self._supervisors.end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call.

        Raises:
            ResourceError: no host can run agents.
        """
        if self._closed:
            return []
        if not self._supervisors.admitted_count:
            self._check_hosts()
        self._supervisors.abandoned()  # hosts see to supervisors that do not answer
        return self._supervisors.lost()

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when an agent has ended."""
        return [] if self._closed else self._supervisors.watch()

    def waits(self, slot: int) -> bool:
        """Whether no host has taken this slot yet, or what its agent needs is being imported."""
        return self._supervisors.waits(slot)

    def device(self, slot: int) -> str:
        """Return "cuda" where the slot has a GPU, else "cpu"."""
        return self._supervisors.device(slot)

    def close(self) -> None:
        """End all agents, and what runs on the hosts, unless it stays for the next run."""
        if not self._closed:
            self._closed = True
            self._engine._standby.give_back(self._logins)

    def _check_hosts(self) -> None:
        """While no supervisor has come: warn of that, then give up."""
        faults, limit = self._logins.faults, self._engine.start_timeout
        seconds = time.monotonic() - self._opened if self._logins.begun else 0.0
        if faults and all(faults):
            self._supervisors.give_up("; ".join(faults))
        elif seconds > limit:
            self._supervisors.give_up(self._nobody(f"within {limit:.0f} seconds (Hosts(start_timeout=…))"))
        elif seconds > NONE_SECONDS and not self._warned:
            self._warned = True
            log.warning("%s", self._nobody(f"yet; {limit:.0f} seconds are waited (Hosts(start_timeout=…))"))

    def _nobody(self, when: str) -> str:
        host, _ = self._engine.address
        at = joined(host, self._supervisors.port)
        if self._engine.join is not None:
            join = shell_command("agent --join", self._engine.join)
            return f"no host has joined {when}: run `{join}` on each; they dial {at}"
        faults = "; ".join(fault for fault in self._logins.faults if fault)
        return f"no host has dialled {at} {when}{': ' if faults else ''}{faults}"


def _logins(engine: Hosts, launch: LaunchInfo, lasting: bool) -> Logins:
    """Return the logins of an engine, of which none has begun yet."""
    threads, env = engine.threads, dict(engine.env)

    def prepare(launch: LaunchInfo) -> Prepare:  # without the engine, which would never be garbage while this is kept
        return Prepare(launch.card(0).decode(), threads, env, launch.frameworks, lasting)

    address, _ = engine.address
    ticket = engine.ticket
    token = secrets.token_hex(16) if ticket is None else ticket.token
    certificate = make_certificate() if ticket is None else ticket.certificate
    supervisors = Supervisors(
        address,
        engine.supervisors_port,
        token,
        launch.log,
        certificate=certificate,
        prepare=prepare(launch),
        task_name="supervisor",
        expected=engine.workers,
        keep_idle=True,
        lasting=lasting,
    )
    ticket = Ticket(address, supervisors.port, token, certificate=certificate)
    devices = "none" if engine.devices is None else engine.devices
    logins = [Login(engine.ssh, host.target, engine.python, host.slots, devices, ticket) for host in engine.surveyed]
    return Logins(supervisors, logins, prepare, lasting=lasting)

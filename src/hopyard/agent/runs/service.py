"""An agent's work on units: it loads the recipe once, then runs units until it is told to end."""

from __future__ import annotations

import os
import platform
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hopyard.agent.progress import Progress
from hopyard.agent.runs.faults import BROKEN
from hopyard.agent.runs.gang import GangMember
from hopyard.agent.runs.state_writer import StateMessage, StateWriter
from hopyard.agent.runs.transfer import Network, reach
from hopyard.agent.runs.worker import Worker
from hopyard.code.pickling import loads
from hopyard.core.messages import (
    Broken,
    Card,
    End,
    Examine,
    GiveUpUnit,
    Publish,
    Published,
    Ready,
    Setup,
    StoreState,
    Unfit,
    Up,
    Work,
)
from hopyard.core.runs.events import Checked, Failed
from hopyard.data.manifest import Manifest, read_manifest
from hopyard.data.partitions.mapped import close_partition, rows_here, sees_entry
from hopyard.data.partitions.supply import supply
from hopyard.errors import HopyardError, ResourceError, SpecError
from hopyard.frameworks import environment, quiet, release, runtimes
from hopyard.store.arena import Arena
from hopyard.store.guard import Guarded
from hopyard.system.network import LOOPBACK, address_towards
from hopyard.system.processes import name_threads
from hopyard.system.scratch import Folder
from hopyard.text import escaped
from hopyard.training.build import Plan, foresee, warm

if TYPE_CHECKING:
    from hopyard.agent.connection import DriverConnection

ARENA_SHARE = 4
"""One agent uses at most this part of the free shared memory."""


@dataclass(frozen=True, slots=True)
class UnitService:
    """A worker with its checkpoints, memory and network."""

    worker: Worker
    checkpoints: StateWriter
    arena: Arena
    folder: Folder
    manifest: Manifest
    network: Network | None = None
    """For an agent that may be on another host than the driver or its peers."""
    member: GangMember | None = None
    """The worker as a member of gangs; None: the run has none."""

    @property
    def location(self) -> dict[str, Any]:
        """The fields of `Ready` that say where this agent's memory is, and which rows its host has."""
        if self.network is None:
            return {}
        rows, entry = rows_here(self.manifest), sees_entry(self.manifest)
        return {"memory": self.folder.identity, "peer": self.network.peer, "rows": rows, "entry": entry}

    def do(self, message: Work | StoreState | Examine) -> Sequence[Up]:
        """Run a unit or a check and return the answers. `StoreState` may be handled in another thread."""
        if isinstance(message, StoreState):
            self.checkpoints.store_next(message.ref, message.memory_key)
            return []
        if isinstance(message, Examine):
            return [self.worker.check(message.trial, message.config, message.partitions)]
        for memory_key in message.release:
            self.checkpoints.release(memory_key)
        unit = message.unit
        answers = self.worker.run(unit, message.config, message.peer, message.gang)
        if message.passing and unit.kind != "fold":
            for partition in unit.partitions:
                close_partition(self.manifest, unit.kind, partition)
        return answers

    def close(self) -> None:
        """Store what is an epoch's end, give shared memory back."""
        if self.member is not None:
            self.member.close()
        self.checkpoints.close()
        if self.network is not None:
            self.network.close()
        self.arena.close()
        self.folder.close()


def assemble(
    slot: int, setup: Setup, send: Callable[[StateMessage | Publish | Broken], None], card: Card | None = None
) -> UnitService:
    """Assemble a worker from the driver's setup.

    Args:
        slot: its number.
        setup: from the driver.
        send: takes messages from background threads.
        card: of an agent; None: the worker is in the driver's process.

    Raises:
        SpecError: the recipe does not load.
        Exception: something else is missing on this host.
    """
    quiet()
    manifest = read_manifest(setup.manifest)
    try:
        recipe = loads(setup.recipe)
        foresee(recipe)
    except Exception as error:
        raise SpecError(f"the recipe does not load there: {type(error).__name__}: {error}") from error
    plan = Plan(recipe, manifest, setup.spec, setup.device, setup.threads)
    folder, store, network = reach(setup, card)
    free = os.statvfs(folder.path)
    arena = Arena(folder.path, slot, free.f_bavail * free.f_frsize // ARENA_SHARE)
    guarded = Guarded(store.open, setup.store)
    checkpoints = StateWriter(slot, guarded, arena, send, 0.0 if card is None else card.stall)
    fetch = None if network is None else network.take
    if network is not None and setup.bulk is not None:
        supply(manifest, partial(network.rows, setup.bulk.depot))
    member = None
    if card is not None and setup.spec.gang is not None:
        driver = urlsplit(card.address).hostname or LOOPBACK
        member = GangMember(slot, setup.spec.gang, send, lambda here: LOOPBACK if here else address_towards(driver))
    worker = Worker(slot, plan, guarded, arena, checkpoints, fetch, interruptible=card is None, member=member)
    return UnitService(worker, checkpoints, arena, folder, manifest, network, member)


def unfit(slot: int, error: Exception, place: str = "") -> Unfit:
    """Return the message to the driver after `assemble` has raised. `place`: the name of this host, where hosts may
    differ."""
    reason = str(error) if isinstance(error, HopyardError) else f"{type(error).__name__}: {error}"
    reason = f"{place}: {reason}" if place and place not in reason else reason
    host = isinstance(error, ResourceError) or (isinstance(error, OSError) and error.errno in BROKEN)
    return Unfit(slot, escaped(reason), host)


def work(card: Card, connection: DriverConnection, setup: Setup, progress: Progress) -> None:
    """Run units until told to end."""
    slot = card.slot
    name_threads()
    for name, value in environment(setup.threads).items():
        os.environ.setdefault(name, value)
    try:
        service = assemble(slot, setup, connection.send, card)
    except Exception as error:  # noqa: BLE001 - reported to the user, who must see it
        connection.send(unfit(slot, error, "" if setup.bulk is None else socket.gethostname()))
        traceback.print_exc()
        return
    progress.folder = service.folder.path
    service.worker.prepare()
    if service.member is not None:
        connection.handle(Published, service.member.published)
        connection.handle(GiveUpUnit, service.member.give_up)
        service.member.prepare()
        warm()  # whoever is slow keeps the whole gang waiting
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "") if setup.device != "cpu" else ""
    connection.send(Ready(slot, socket.gethostname(), os.getpid(), fingerprint(), device, **service.location))
    connection.handle(StoreState, service.do)  # while a unit runs
    if service.member is None:
        warm()
    while True:
        progress.enter("idle")
        message = connection.receive(idle=release)
        if isinstance(message, End):
            progress.enter("store")
            service.close()
            return
        if isinstance(message, (Work, Examine)):
            trial = message.unit.trial if isinstance(message, Work) else message.trial
            for answer in service.do(message):
                connection.send(answer)
                if isinstance(answer, (Checked, Failed)) and answer.trace:
                    sys.stderr.write(f"trial {trial} failed:\n{answer.trace}")


def fingerprint() -> dict[str, Any]:
    """Return what equal digests may depend on: versions, machine, processor."""
    import numpy as np

    versions: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
    }
    for runtime in runtimes().values():
        versions |= runtime.versions()
    return versions

"""Driving a run: agents up, the loop to its end, nothing left behind but the run directory."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from hopyard import __version__
from hopyard.core.messages import LIMIT, Bulk, Setup
from hopyard.core.runs.events import CODEC, Began, Line, Resumed, Retried
from hopyard.core.runs.machine import Machine
from hopyard.data.manifest import Manifest
from hopyard.data.shared.needed import need, spare
from hopyard.driver.commit import Clock
from hopyard.driver.directory import room
from hopyard.driver.in_process import InProcess
from hopyard.driver.links import Link
from hopyard.driver.pickling import PYTHON, RunInputs
from hopyard.driver.router import Router
from hopyard.driver.runs.again import for_workers
from hopyard.driver.runs.loop import Loop, View
from hopyard.driver.runs.ownership import Owned, here, using
from hopyard.driver.runs.recovery import Earlier
from hopyard.driver.runs.run import Handle, Run, reasons
from hopyard.engines.local import cores
from hopyard.errors import ResourceError, RunFailed, SpecError
from hopyard.ports import AgentEngine, Engine, Store, starts_agents
from hopyard.spec import Encrypt, RunSpec, Timeouts
from hopyard.store import summary
from hopyard.store.arena import Folder, memory_root, sweep
from hopyard.store.bulk.certificate import make_certificate
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server, secured
from hopyard.store.guard import Guarded
from hopyard.store.journal import Journal, read, write_whole
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.remote import Depot
from hopyard.store.states import open_store, sign, unsign
from hopyard.views.report import brief
from hopyard.views.timeline import Chart
from hopyard.views.words import retriable

log = logging.getLogger(__name__)

DRIVEN: list[Run] = []
"""The runs that this process drives."""


class Outcome(NamedTuple):
    """How a run ended."""

    status: str
    code: int
    """Exit code of the error of a run in the background; 0: none."""


OUTCOMES: set[Outcome] = set()
"""Of the runs that this process drove, for the exit code of `hopyard run`. The runs themselves, which hold files of the
data cache open, live for as long as their users want them."""

ENDED = ("completed", "partial", "failed")
"""Statuses of a run that does not go on."""

ROOM = 1 << 20
"""Bytes of a message to a worker beside recipe and manifest."""

IDLE = 30.0
"""Seconds after which a worker in somebody else's cluster that has nothing to do is given back."""


@dataclass(frozen=True, slots=True)
class Drive:
    """Everything that a driver needs."""

    layout: Layout
    lock: Lock
    inputs: RunInputs
    manifest: Manifest
    machine: Machine
    """Of a new run, or of one that goes on: folded up to where the journal ends."""
    states: Owned
    earlier: Earlier | None = None
    """What earlier drivers of the run did; None: it is a new one."""
    again: tuple[Retried, ...] = ()
    """Failed trials that are tried again."""
    encrypt: Encrypt = "between hosts"
    timeouts: Timeouts | None = None
    """Other than the run has so far."""


def drive(it: Drive, wait: bool) -> Run:
    """Drive it to its end, here or (`wait` False) in a thread of its own."""
    if not it.inputs.engine.apart and it.inputs.engine.workers > cores():
        warnings.warn(
            f"{it.inputs.engine.workers} workers on {cores()} cores: they take turns, and nothing gets faster",
            stacklevel=4,
        )
    with room(it.layout.root):
        journal = Journal(it.layout.journal, CODEC, resume=it.earlier is not None)
    handle = Handle()
    run = Run(it.layout, it.machine, it.inputs, handle)
    DRIVEN.append(run)

    def over() -> None:
        DRIVEN.remove(run)
        handle.detach()
        OUTCOMES.add(Outcome(run.status, 0 if handle.error is None else getattr(handle.error, "exit_code", 1)))
        handle.finish()

    if wait:
        try:
            _to_the_end(it, run, handle, journal)
        finally:
            over()
        return run

    def background() -> None:
        try:
            _to_the_end(it, run, handle, journal)
        except BaseException as error:  # noqa: BLE001 - raised again by run.wait()
            if not (handle.stopped and isinstance(error, KeyboardInterrupt)):
                handle.error = error
                traceback.clear_frames(error.__traceback__)  # they hold the whole driver
                log.error("%s ended: %s: %s", run.directory, type(error).__name__, error)
        finally:
            over()

    handle.begin()
    threading.Thread(target=background, name="hopyard-driver").start()
    return run


def _to_the_end(it: Drive, run: Run, handle: Handle, journal: Journal[Line]) -> None:
    """Bring up the agents, loop to the end, leave nothing behind but the run directory."""
    layout, machine, inputs = it.layout, it.machine, it.inputs
    engine = inputs.engine
    spec, earlier = machine.spec, it.earlier or Earlier()
    with contextlib.ExitStack() as stack:
        stack.callback(it.lock.free)
        stack.callback(journal.close)
        token = secrets.token_hex(8)
        root = memory_root(layout.root.absolute() / ".memory")
        sweep(root)
        need(it.manifest, layout.root)
        stack.callback(_spared, it.manifest, layout, machine)
        recipe = for_workers(inputs.recipe, machine, it.again)
        manifest = msgspec.json.encode(it.manifest)
        if starts_agents(engine):
            fits(it.manifest, len(manifest))
        folder = Folder(root, token)
        stack.callback(folder.close)
        opened = open_store(it.states.store)
        with using(it.states.store):
            opened.sweep()
        store = Guarded(opened, it.states.store)
        clock = Clock()
        known = {
            "hopyard": __version__,
            "python": PYTHON,
            "threads": engine.threads,
            "data": it.manifest.digest,
        }
        first = (
            Resumed(
                at=clock.now(),
                fingerprint=known,
                mark=it.states.mark,
                directory=here(layout),
                timeouts=it.timeouts,
                gone=it.states.gone,
            )
            if it.earlier is not None
            else Began(at=clock.now(), spec=spec, fingerprint=known, mark=it.states.mark, directory=here(layout))
        )

        sampler = inputs.search.open(inputs.space, spec.seed)
        bulk = _depot(it, engine, store, token, stack) if starts_agents(engine) and engine.apart else None

        def setup(device: str) -> Setup:
            return Setup(spec, recipe, manifest, it.states.store, str(root), token, engine.threads, device, bulk)

        link = _link(engine, setup, layout, it.timeouts or spec.timeouts)
        with contextlib.ExitStack() as opened_link:
            opened_link.callback(link.close)
            loop = Loop(
                machine,
                journal,
                link,
                store,
                sampler,
                engine.workers,
                layout.log,
                _views(spec, link),
                first,
                earlier,
                folder.path,
                IDLE if engine.apart else None,
                it.again,
            )
            opened_link.pop_all()  # the loop closes it
        handle.attach(loop.stop)
        try:
            loop.run()
        except KeyboardInterrupt:
            how = "` goes on"
            if engine.apart:
                how = " --workers …` goes on here, hopyard.resume(directory, engine=…) elsewhere"
            log.warning("interrupted; `hopyard resume %s%s", layout.root, how)
            raise
    try:
        write_whole(layout.report, run.report().encode())
        run.gantt()
        found = Chart(keep=False)
        for line in read(layout.journal, CODEC):
            found.see(line)
        summary.write(layout, brief(found, machine))
    except (ResourceError, OSError) as error:  # the run is whole; `hopyard show` tells the same from the journal
        log.warning("%s: no report was written: %s", layout.root, error)
    if machine.status == "failed":
        raise RunFailed(f"{layout.root}: every trial failed{reasons(machine)}")


def fits(manifest: Manifest, size: int) -> None:
    """Raises SpecError when a manifest of so many bytes is too large to send beside the largest recipe."""
    if size <= LIMIT // 2 - ROOM:
        return
    sizes = {name: len(msgspec.json.encode(values)) for name, values in manifest.vocabularies.items()}
    name = max(sizes, key=sizes.__getitem__, default="")
    why = "it has very many partitions or sources"
    if name:
        count = len(manifest.vocabularies[name])
        why = (
            f"the vocabulary of column {name!r} has {count:,} values, {sizes[name]:,} bytes. "
            "Hash them into fewer codes in transform=, or leave the column out of encode="
        )
    raise SpecError(
        f"data: its manifest has {size:,} bytes, at most {LIMIT // 2 - ROOM:,} are sent to each worker: {why}"
    )


def _spared(manifest: Manifest, layout: Layout, machine: Machine) -> None:
    """A run that does not go on needs its rows no longer. One with trials that no recipe has ended may go on, by
    `hopyard resume --failed`."""
    if machine.status in ENDED and not retriable(machine):
        spare(manifest, layout.root)


def _depot(it: Drive, engine: AgentEngine, store: Store, run: str, stack: contextlib.ExitStack) -> Bulk:
    """For workers that cannot reach the States' place: they store and get them through this process."""

    def first() -> None:
        log.warning(
            "workers cannot reach %s: their States go through this process. Give store= a place that all of them reach "
            "(NFS, HDFS, S3, …) where that is too slow",
            it.states.store,
        )

    with using(it.states.store):
        sign(it.states.store, run)
    stack.callback(unsign, it.states.store, run)
    host, _ = engine.address
    token, certificate = secrets.token_hex(16), make_certificate() if secured(it.encrypt, host) else ""
    services = Depot(store, first).services()
    server = Server(host, Credentials(token, certificate), services, port=engine.states_port, encrypt=it.encrypt)
    stack.callback(server.close)
    return Bulk(server.address, token, certificate, it.encrypt)


def _link(engine: Engine, setup: Callable[[str], Setup], layout: Layout, timeouts: Timeouts) -> Link:
    if not starts_agents(engine):
        return InProcess(setup)
    return Router(engine, setup, layout.log, timeouts.heartbeat_timeout, timeouts.stall_timeout)


def _views(spec: RunSpec, link: Link) -> Sequence[View]:
    from hopyard.views.live import Table

    return [Table(spec, stalls=link.stalls)]

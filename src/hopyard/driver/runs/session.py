"""Driving a run: starts the agents, runs the loop to its end, leaves nothing behind but the run directory."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from hopyard import __version__
from hopyard.certificate import make_certificate
from hopyard.checks import flag
from hopyard.code import places
from hopyard.core.messages import LIMIT, Bulk, Setup
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Extended, Line, Resumed, Retried
from hopyard.core.runs.machine import Machine
from hopyard.data.manifest import Manifest
from hopyard.data.partitions.supply import serve
from hopyard.data.shared.needed import need, spare
from hopyard.driver.commit import Clock, Link
from hopyard.driver.in_process import InProcess
from hopyard.driver.interrupts import without_frames
from hopyard.driver.pickling import PYTHON, RunInputs
from hopyard.driver.router import Router
from hopyard.driver.runs.changes import for_workers
from hopyard.driver.runs.fold import EarlierDrivers
from hopyard.driver.runs.loop import Handle, RunLoop, View
from hopyard.driver.runs.ownership import Owned, location, store_errors
from hopyard.driver.runs.run import Run, why_failed
from hopyard.driver.runs.trial import without_time
from hopyard.driver.runs.workers import Workers
from hopyard.engines import followers
from hopyard.engines.local import cores
from hopyard.errors import HopyardError, PreflightError, ResourceError, RunFailed, SpecError
from hopyard.ports.engines import AgentEngine, Engine, GivesBack, starts_agents
from hopyard.ports.states import Store
from hopyard.search.kinds import open_sampler
from hopyard.search.proposer import Proposer
from hopyard.spec import Encrypt, RunSpec, Timeouts, with_members
from hopyard.store.arena import memory_name, memory_root
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server, Service, secured
from hopyard.store.guard import Guarded
from hopyard.store.journal import Journal, read, room, write_whole
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.remote import GETS, Depot
from hopyard.store.standing import standing, write_summary
from hopyard.store.states import open_store, sign, unsign
from hopyard.store.urls.mirror import LEASES
from hopyard.system.scratch import Folder, sweep
from hopyard.text import shell_command
from hopyard.training.build import needed, required
from hopyard.views.report import brief
from hopyard.views.timeline import chart
from hopyard.views.words import retriable

log = logging.getLogger(__name__)

DRIVEN: list[Run] = []
"""The runs that this process drives."""


class Outcome(NamedTuple):
    """The end of a run."""

    status: str
    code: int
    """Exit code of the error of a run in the background; 0: none."""


OUTCOMES: set[Outcome] = set()
"""Outcomes of the runs that this process drove, for the exit code of `hopyard run`. The runs themselves, which hold
files of the data cache open, live for as long as their users keep them."""

ROOM = 1 << 20
"""Bytes of a message to a worker beside those of recipe and manifest."""

IDLE = 30.0
"""Seconds after which an idle worker in somebody else's cluster is given back."""


UNEVEN = 1.05
"""The ratio of an epoch's time to the least one from which a warning names a better number of partitions."""


@dataclass(frozen=True, slots=True)
class Drive:
    """Everything that a driver needs."""

    layout: Layout
    lock: Lock
    inputs: RunInputs
    manifest: Manifest
    machine: Machine
    """New, or, of a run that goes on, folded up to where the journal ends."""
    states: Owned
    earlier: EarlierDrivers | None = None
    """What earlier drivers of the run did; None: the run is new."""
    changes: tuple[Extended | Retried, ...] = ()
    """What the user changes: more epochs or trials, failed trials that are tried again."""
    encrypt: Encrypt = "between hosts"
    timeouts: Timeouts | None = None
    """Other timeouts than the run has so far."""
    members: int = 0
    """Another number of workers in a gang than the run has so far; 0: the same."""
    copies: int = -1
    """Another number of homes of a partition than the run has so far, as in Resumed; -1: the same."""
    track: tuple[str, ...] = ()
    """The trackers that followers bring the run to."""
    live: RunInputs | None = None
    """The user's own objects, of which `inputs` has copies; None: this process has no others."""


def drive(job: Drive, wait: bool) -> Run:
    """Drive a run to its end, here or (`wait` False) in a thread of its own."""
    if not job.inputs.engine.apart and job.inputs.engine.workers > cores():
        warnings.warn(
            f"{job.inputs.engine.workers} workers on {cores()} cores: they take turns, and nothing gets faster",
            stacklevel=4,
        )
    display = _display()
    with room(job.layout.root):
        journal = Journal(job.layout.journal, CODEC, job.earlier is not None, job.lock.mirror)
    handle = Handle()
    run = Run(job.layout, Machine(job.machine.spec), job.inputs, handle, live=job.live)
    DRIVEN.append(run)

    def over() -> None:
        DRIVEN.remove(run)
        try:
            status = standing(job.layout, job.machine.status, live=False)
            OUTCOMES.add(Outcome(status, 0 if handle.error is None else getattr(handle.error, "exit_code", 1)))
        finally:
            handle.over.set()

    if wait:
        try:
            _run_to_end(job, run, handle, journal, display)
        finally:
            over()
        return run

    def background() -> None:
        try:
            _run_to_end(job, run, handle, journal, display)
        except BaseException as error:  # noqa: BLE001 - raised again by run.wait()
            if handle.request is None or not isinstance(error, KeyboardInterrupt):
                handle.error = error
                for each in (error, error.__cause__):
                    traceback.clear_frames(None if each is None else each.__traceback__)  # they hold the whole driver
                log.error("%s ended: %s: %s", run.directory, type(error).__name__, error)
        finally:
            over()

    handle.over.clear()
    threading.Thread(target=background, name="hopyard-driver").start()
    return run


def _run_to_end(job: Drive, run: Run, handle: Handle, journal: Journal[Line], display: Any) -> None:
    """Start the agents, run the loop to its end, leave nothing behind but the run directory. `display`: the notebook's,
    if any."""
    layout, machine = job.layout, job.machine
    try:
        link = _train(job, run, handle, journal, display)
        try:
            write_whole(layout.report, run.report().encode())
            run.gantt()
            write_summary(layout, brief(chart(read(layout.journal, CODEC), keep=False), machine))
        except (ResourceError, OSError) as error:  # the run is whole; `hopyard show` shows the same from the journal
            log.warning("%s: no report was written: %s", layout.place, error)
    finally:
        job.lock.free()
    if machine.status == "failed":
        failure = RunFailed(f"{layout.place}: {why_failed(machine)}")
        _explain(failure, machine, link)
        raise failure


def _train(job: Drive, run: Run, handle: Handle, journal: Journal[Line], display: Any) -> Link:
    """Do all but the last files; returns the link, which is closed."""
    layout, machine, inputs = job.layout, job.machine, job.inputs
    engine = inputs.engine
    spec, earlier = _changed(job), job.earlier or EarlierDrivers()
    with contextlib.ExitStack() as stack:
        stack.callback(journal.close)
        token = memory_name(layout.root)
        root = memory_root(layout.root / ".memory")
        sweep(root)
        need(job.manifest, layout.root)
        stack.callback(_release_rows, job.manifest, layout, machine)
        recipe = for_workers(inputs.recipe, machine, job.changes)
        manifest = msgspec.json.encode(job.manifest)
        if starts_agents(engine):
            fits(job.manifest, len(manifest))
        folder = Folder(root, token)
        stack.callback(folder.close)
        raw_store = open_store(job.states.store)
        with store_errors(job.states.store):
            raw_store.sweep()
        store = Guarded(lambda: raw_store, job.states.store)
        clock = Clock(earlier.at)
        fingerprint = {
            "hopyard": __version__,
            "python": PYTHON,
            "threads": engine.threads,
            "data": job.manifest.digest,
        }
        apart = _workers_apart(engine, spec, new=job.earlier is None)
        facts: dict[str, Any] = {"at": clock.now(), "fingerprint": fingerprint, "mark": job.states.mark}
        facts |= {"directory": location(layout), "workers": apart}
        began = (
            Began(spec=spec, **facts)
            if job.earlier is None
            else Resumed(
                timeouts=job.timeouts,
                gone=job.states.gone,
                members=job.members,
                copies=job.copies,
                skipped=LEASES if layout.url else 0,
                **facts,
            )
        )

        sampler = open_sampler(inputs.search, inputs.space, spec.seed, spec.modes)

        def stops_trial(number: int) -> bool:
            trial = run._trial(machine.trials[number], machine.spec, machine.status)
            trial = without_time(trial) if spec.exact is True else trial
            answer = inputs.stop(trial, trial.history)
            return answer is not None and flag("what the function of stop= returns", answer)

        stops, defined = (None, "") if inputs.stop is None else (stops_trial, places.of_function(inputs.stop))
        proposer = Proposer(machine, sampler, engine.workers, stops, defined)
        bulk = _depot(job, engine, store, token, stack) if starts_agents(engine) and engine.apart else None

        def setup(device: str) -> Setup:
            return Setup(spec, recipe, manifest, job.states.store, str(root), token, engine.threads, device, bulk)

        timeouts = job.timeouts or spec.timeouts
        link = _link(engine, setup, layout, msgspec.structs.replace(spec, timeouts=timeouts), inputs.recipe)
        with contextlib.ExitStack() as link_stack:
            link_stack.callback(link.close)
            workers = Workers(
                link,
                machine,
                engine.workers,
                layout.log,
                first=earlier.slots,
                fingerprint=earlier.fingerprint,
                memory=folder.path,
                idle_timeout=IDLE if engine.apart else None,
                shared=_shared(engine, link),
            )
            opening = [began, *(msgspec.structs.replace(fact, at=clock.now()) for fact in job.changes)]
            views = _views(spec, link, job.manifest, display)
            loop = RunLoop(machine, journal, link, store, proposer, workers, views, opening, clock, handle)
            link_stack.pop_all()  # the loop closes it
        followers.start(job.track, layout.root, layout.tracking_log)
        try:
            loop.run()
        except PreflightError as error:
            _explain(error, machine, link)
            raise
        except KeyboardInterrupt as error:
            resume = shell_command("resume", layout.shown, " --workers …" if engine.apart else "")
            log.warning(
                "interrupted; hy.resume(%r%s) goes on, and so does `%s` in a shell",
                *(layout.shown, ", engine=…" if engine.apart else "", resume),
            )
            raise without_frames(error) from None
    return link


def _workers_apart(engine: Engine, spec: RunSpec, new: bool) -> int:
    """Return by how many workers partitions are cut into blocks with a home each; 0: they have no homes. Warn where
    such partitions of a new run cannot keep all workers busy. Workers of a host share what is at home there."""
    by_host = () if spec.copies is None else engine.workers_by_host
    if spec.copies is None or len(by_host) == 1:
        return 0
    ratio, better = uneven(spec.partitions, engine.workers // (math.gcd(*by_host) or 1))
    if new and ratio > UNEVEN and spec.copies == 1 and spec.members == 1:
        log.warning(
            "%d partitions over %d workers: an epoch takes %.2f times the minimum, as each partition has one home; "
            "partitions=%d of the Dataset divides evenly, and parallel=hy.Hopper(copies=2) gives each two homes",
            *(spec.partitions, engine.workers, ratio, better),
        )
    return engine.workers


def uneven(partitions: int, workers: int) -> tuple[float, int]:
    """Return how an epoch of many trials compares with the least time where each partition has one home: the partitions
    of the worker that has most, over those of an average one. With it comes the number of partitions nearest to this
    one that divides evenly."""
    if partitions < workers:
        return 1.0, partitions  # each further worker is another home
    ratio = math.ceil(partitions / workers) * workers / partitions
    return ratio, max(1, round(partitions / workers)) * workers


def _explain(error: HopyardError, machine: Machine, link: Link) -> None:
    """Add to the error of a run what its trials raised: the exception itself, where this process has it, else the
    first trial's traceback, as a note."""
    if isinstance(link, InProcess):
        error.__cause__ = link.error
    elif (first := next((trial for trial in machine.trials.values() if trial.trace), None)) is not None:
        error.add_note(f"What trial {first.id} raised in its worker:\n{first.trace.rstrip()}")


def _changed(job: Drive) -> RunSpec:
    """Return the spec of the run with what the user changes of it."""
    spec = job.machine.spec
    for change in job.changes:
        if isinstance(change, Extended):
            spec = msgspec.structs.replace(spec, epochs=change.epochs, trials=change.trials)
    if job.copies >= 0:
        spec = msgspec.structs.replace(spec, copies=job.copies or None)
    return with_members(spec, job.members) if job.members else spec


def fits(manifest: Manifest, size: int) -> None:
    """Raise SpecError when a manifest of so many bytes is too large to send beside the largest recipe."""
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


def _release_rows(manifest: Manifest, layout: Layout, machine: Machine) -> None:
    """Release the rows of a run that does not go on. A run with trials that no recipe has ended may go on, by
    `hopyard resume --failed`."""
    if machine.ended and not retriable(machine):
        spare(manifest, layout.root)


def _depot(job: Drive, engine: AgentEngine, store: Store, run: str, stack: contextlib.ExitStack) -> Bulk:
    """Serve the store to workers that cannot reach it, and rows to hosts that do not share the data cache."""

    def warn() -> None:
        log.warning(
            "workers cannot reach %s: their States go through this process. Give store= a place that all of them reach "
            "(NFS, HDFS, S3, …) where that is too slow",
            job.states.store,
        )

    with store_errors(job.states.store):
        sign(job.states.store, run)
    stack.callback(unsign, job.states.store, run)
    host, port = engine.endpoint
    token, certificate = secrets.token_hex(16), make_certificate() if secured(job.encrypt, host) else ""
    services = Depot(store, warn).services()
    services["rows"] = Service(lambda ask, data: serve(job.manifest, ask.where), threading.Semaphore(GETS), largest=0)
    server = Server(host, Credentials(token, certificate), services, port=port and port + 2, encrypt=job.encrypt)
    stack.callback(server.close)
    return Bulk(server.address, token, certificate, job.encrypt)


def _link(
    engine: Engine, setup: Callable[[str], Setup], layout: Layout, spec: RunSpec, recipe: Callable[..., Any]
) -> Link:
    if not starts_agents(engine):
        return InProcess(setup)
    return Router(
        *(engine, setup, layout.log, spec.timeouts.heartbeat_timeout, spec.timeouts.stall_timeout),
        frameworks=needed(recipe),
        required=required(recipe),
        together=spec.members,
    )


def _shared(engine: Engine, link: Link) -> GivesBack | None:
    """Return the agents, where others may want the places of all of them; None: the places are the run's own."""
    if not (isinstance(link, Router) and isinstance(link.agents, GivesBack) and starts_agents(engine)):
        return None
    return link.agents if engine.shared_places and not engine.driver_workers else None


def _display() -> Any:
    from hopyard.views.live import open_display

    return open_display()


def _views(spec: RunSpec, link: Link, manifest: Manifest, display: Any) -> Sequence[View]:
    from hopyard.views.live import LiveTable

    return [LiveTable(spec, stalls=link.stalls, sizes=manifest.sizes, display=display)]

"""What the user holds: `select`, `fit`, `resume`, `load`, and the Run they give."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from hopyard import __version__
from hopyard.agent.build import Plan, wants_context
from hopyard.core.books import TrialBook
from hopyard.core.events import Began, Line, Resumed
from hopyard.core.machine import Machine, fold
from hopyard.core.messages import Setup
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.driver.loop import Clock, Loop, View
from hopyard.driver.ship import PYTHON, Cargo, dump
from hopyard.driver.ship import load as unpickle
from hopyard.driver.trial import Shelf, Trial
from hopyard.driver.wire import Direct, Link, Router
from hopyard.engines.local import Local, cores
from hopyard.errors import HopyardError, ResourceError, RunDirectoryError, RunFailed, SpecError
from hopyard.ports import Engine
from hopyard.search.listed import Configs, Search
from hopyard.space import Space
from hopyard.spec import Config, Hopper, RunSpec, better
from hopyard.store.arena import Folder, memory_root, sweep
from hopyard.store.journal import NO_ROOM, Journal, Lock, read, write_whole
from hopyard.store.layout import Layout, find, fresh
from hopyard.store.states import open_store

log = logging.getLogger(__name__)

FINISHED: list[Run] = []
"""The runs that this process drove to their end, for `hopyard run`."""

LINKS: dict[str, Callable[[Engine, Callable[[str], Setup], Layout, float], Link]] = {
    "inline": lambda engine, setup, layout, silence: Direct(setup),
}
"""Engine → its link; the others dial home through a Router."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: plain facts, read without unpickling anything."""

    hopyard: str
    python: str
    started: float
    engine: str
    workers: int
    threads: int
    store: str
    data: str
    """Digest of the data."""
    rows: int
    sources: list[str]
    recipe: str
    """Name of the recipe's function."""


@dataclass(frozen=True, slots=True)
class Order:
    """All that a run was asked to do."""

    cargo: Cargo
    epochs: int
    metric: str | None
    mode: Literal["min", "max"]
    parallel: Hopper
    seed: int
    exact: bool | Literal["warn"]
    store: str | None
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of RunSpec that no argument sets: deadlines, silence, strikes."""


def select(
    recipe: Callable[..., Any],
    space: Space | None,
    data: Dataset,
    *,
    search: Search,
    epochs: int,
    metric: str,
    mode: Literal["min", "max"],
    engine: Engine | None = None,
    parallel: Hopper | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    exact: bool | Literal["warn"] = "warn",
    wait: bool = True,
    encrypt: bool = False,
) -> Run:
    """Train many configurations of a recipe on a data set; find the best.

    Args:
        recipe: `recipe(config)` or `recipe(config, ctx)`; returns a hy.torch.Model or any hy.Trainable. Runs in
            workers.
        space: what to search; None where the search has its own list (hy.Configs).
        data: what to train on.
        search: hy.Grid(), hy.Random(n) or hy.Configs([...]).
        epochs: passes of each trial over the training partitions.
        metric: what decides, any name that the recipe reports: "val_loss", "val_accuracy", "loss", …
        mode: "min" or "max".
        engine: hy.Local() (the default) or hy.Inline().
        parallel: hy.Hopper() (the default).
        seed: of everything random. Equal seeds give equal bits, whatever the number of workers.
        directory: of the run; default `runs/<time>-<word>`. An existing one is refused unless `resume`.
        store: where States are kept, any fsspec URL; a folder is made there for each run. Default: inside the
            directory.
        resume: go on with what is in `directory`, if there is a run.
        exact: True: fail on what cannot be exact; "warn": say it once; False: be silent.
        wait: False: return at once; `run.wait()` waits.
        encrypt: bulk by CURVE too; on one host bulk goes by shared memory and nothing changes.

    Returns:
        Run: `.best`, `.trials`, `.to_pandas()`, `.gantt(path)`.

    Raises:
        SpecError, DataError, PreflightError, RunDirectoryError: before anything is trained.
        RunFailed: no trial completed.
        ResourceError: disk or memory ran out; `hy.resume(directory)` goes on.
    """
    chosen = _engine(engine)
    if not isinstance(search, Search):
        raise SpecError(f"search = {search!r}: hy.Grid(), hy.Random(n) or hy.Configs([...]) is needed")
    if not isinstance(metric, str) or not metric:
        raise SpecError(f'metric = {metric!r}: the name of a metric is needed, for example "val_loss"')
    if not isinstance(encrypt, bool):
        raise SpecError(f"encrypt = {encrypt!r}: True or False is needed")
    order = Order(
        Cargo(recipe, data, space, search, chosen),
        epochs,
        metric,
        mode,
        Hopper() if parallel is None else parallel,
        seed,
        exact,
        None if store is None else str(store),
    )
    return begin(order, directory, resume, wait)


def fit(
    recipe: Callable[..., Any],
    config: Config,
    data: Dataset,
    *,
    epochs: int,
    metric: str | None = None,
    mode: Literal["min", "max"] = "min",
    engine: Engine | None = None,
    parallel: Hopper | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    exact: bool | Literal["warn"] = "warn",
    wait: bool = True,
    encrypt: bool = False,
) -> Run:
    """Train one configuration: a Run of one trial. As `select`; without a metric the best epoch is the last."""
    if not isinstance(config, dict):
        raise SpecError(f"config = {config!r}: a dict is needed")
    search = Configs([config])
    cargo = Cargo(recipe, data, None, search, _engine(engine))
    chosen = Hopper() if parallel is None else parallel
    order = Order(cargo, epochs, metric, mode, chosen, seed, exact, None if store is None else str(store))
    return begin(order, directory, resume, wait)


def resume(run_directory: str | Path, *, engine: Engine | None = None, wait: bool = True) -> Run:
    """Go on with a run whose driver ended, from its last durable States, with the recipe that it was started with.

    Args:
        run_directory: its directory, or its name under `runs/`.
        engine: another than it was started with.
        wait: as for `select`.

    Raises:
        RunDirectoryError: no run there, in use by a live driver, or started by another Python version.
        JournalError: the journal is damaged, or of a newer version.
    """
    layout = find(run_directory)
    lock = Lock(layout.lock)
    with _freed_on_error(lock):
        machine = fold(_told(layout))
        if machine.status in ("completed", "partial", "failed"):
            lock.free()
            return load(layout.root)
        about = _about(layout)
        cargo: Cargo = unpickle(layout.recipe, about.python)
        manifest = _same_data(layout, cargo.data)
        drive = _Drive(layout, lock, engine or cargo.engine, cargo, manifest, machine.spec, about.store, again=True)
        return _run(drive, wait)


def load(run_directory: str | Path) -> Run:
    """A run as its journal tells it; changes nothing.

    Raises:
        RunDirectoryError: no run there.
        JournalError: damaged, or of a newer version.
    """
    layout = find(run_directory)
    return Run(layout, fold(_told(layout)))


def _told(layout: Layout) -> list[Line]:
    """The journal, which has at least its first line."""
    lines, _ = read(layout.journal)
    if not lines:
        raise RunDirectoryError(
            f"{layout.root}: the journal is empty, the driver ended before anything happened; start the run again, "
            "with resume=True or in another directory"
        )
    return lines


class Run:
    """A run, live or read.

    Attributes:
        directory: where it is.
        status: "checking", "running", "completed", "partial" (some trials failed) or "failed".
    """

    def __init__(self, layout: Layout, machine: Machine, cargo: Cargo | None = None) -> None:
        self._layout = layout
        self._machine = machine
        self._cargo = cargo
        self._known: Shelf | None = None
        self._ended = threading.Event()
        """No driver of this process is at work on it. (Not Thread.join: in Python 3.11 a Ctrl-C in it makes later joins
        return at once, though the thread still runs.)"""
        self._ended.set()
        self._error: BaseException | None = None
        self._stopped = ""
        """Why the user stopped it, else empty."""
        self._halt: Callable[[str], None] = lambda reason: None
        self.directory = layout.root

    def __repr__(self) -> str:
        done = sum(trial.status == "completed" for trial in self._machine.trials.values())
        return f"<Run {self.directory} {self.status}: {done} of {len(self._machine.trials)} trials completed>"

    @property
    def status(self) -> str:
        """How it stands."""
        return self._machine.status

    @property
    def spec(self) -> RunSpec:
        """What was asked for."""
        return self._machine.spec

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        spec = self._machine.spec
        return [Trial(book, spec.steps, spec.partitions, self._shelf) for book in self.books]

    @property
    def best(self) -> Trial:
        """The completed trial with the best (trial, epoch) by the run's metric; ties: the lower trial, NaN is worst.

        Raises:
            RunFailed: no trial completed.
        """
        spec = self._machine.spec
        chosen = None
        for book in self._machine.trials.values():
            if book.status == "completed" and (
                chosen is None or better(spec.mode, book.value(spec.metric), chosen.value(spec.metric))
            ):
                chosen = book
        if chosen is None:
            raise RunFailed(f"{self.directory}: no trial has completed{_reasons(self._machine)}")
        return Trial(chosen, spec.steps, spec.partitions, self._shelf, best=True)

    @property
    def books(self) -> list[TrialBook]:
        """What the machine knows of each trial."""
        return list(self._machine.trials.values())

    @property
    def cargo(self) -> Cargo:
        """Recipe, data, space, search and engine; opens the pickle of the run at the first use."""
        if self._cargo is None:
            self._cargo = unpickle(self._layout.recipe, _about(self._layout).python)
        return self._cargo

    def checked_data(self) -> Dataset:
        """The Dataset, once it is sure that it still gives the same partitions.

        Raises:
            RunDirectoryError: it does not.
        """
        _same_data(self._layout, self.cargo.data)
        data: Dataset = self.cargo.data
        return data

    def wait(self, seconds: float | None = None) -> Run:
        """Until the run has ended, or for so long. Raises what the run raised."""
        try:
            self._ended.wait(seconds)
        except KeyboardInterrupt:  # else the interpreter would wait for the run's end all the same
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        """End the driver of a run started with `wait=False`; `hy.resume` goes on."""
        self._stopped = "stopped by the user"
        self._halt(self._stopped)
        self._ended.wait()

    def lines(self) -> list[Line]:
        """The journal."""
        return read(self._layout.journal)[0]

    def report(self) -> str:
        """The report, plain text."""
        from hopyard.views.report import report

        about = {**msgspec.to_builtins(_about(self._layout)), "directory": str(self.directory)}
        return report(self.lines(), self._machine, about)

    def gantt(self, path: str | Path | None = None) -> Path:
        """A chart of who did what when: HTML that opens without network, or PNG by the name's ending."""
        from hopyard.views import gantt

        target = Path(path) if path is not None else self._layout.gantt
        if target.suffix == ".png":
            gantt.png(self.lines(), target)
        else:
            target.write_text(gantt.html(self.lines(), self.directory.name), encoding="utf-8")
        return target

    def to_pandas(self) -> Any:
        """One row a trial: id, status, epoch, configuration, metrics of the last epoch, digest, error."""
        try:
            import pandas
        except ImportError:
            raise HopyardError("to_pandas needs pandas: pip install pandas") from None
        rows = [
            {
                "trial": t.id,
                "status": t.status,
                "epoch": t.epoch,
                **t.config,
                **t.metrics,
                "state": t.state,
                "error": t.error,
            }
            for t in self.trials
        ]
        return pandas.DataFrame(rows)

    def _shelf(self) -> Shelf:
        """Where its models come from; opens the pickled recipe at the first use."""
        if self._known is None:
            about = _about(self._layout)
            manifest = Manifest.load(self._layout.manifest, check=False)
            plan = Plan(self.cargo.recipe, manifest, self._machine.spec, threads=about.threads)
            self._known = Shelf(plan, open_store(about.store), getattr(self.cargo.data, "transform", None))
        return self._known


# -------------------------------------------------------------------- how a run is driven


@dataclass(frozen=True, slots=True)
class _Drive:
    """Everything that a driver needs."""

    layout: Layout
    lock: Lock
    engine: Engine
    cargo: Cargo
    manifest: Manifest
    spec: RunSpec
    store: str
    again: bool


def _engine(engine: Engine | None) -> Engine:
    if engine is None:
        return Local()
    if not callable(getattr(engine, "open", None)) or not hasattr(engine, "workers"):
        raise SpecError(f"engine = {engine!r}: hy.Local(…) or hy.Inline() is needed")
    return engine


def begin(order: Order, directory: str | Path | None, again: bool, wait: bool) -> Run:
    """Check the order, prepare the data, make the directory, drive the run. Raises as `select`."""
    cargo = order.cargo
    wants_context(cargo.recipe)
    if not isinstance(cargo.data, Dataset):
        raise SpecError(
            f"data = {type(cargo.data).__name__}: a hy.Dataset is needed, for example hy.Dataset.numpy(x, y) or "
            "hy.Dataset.parquet(path, features=[…], label=…)"
        )
    if not isinstance(order.parallel, Hopper):
        raise SpecError(f"parallel = {order.parallel!r}: hy.Hopper() is needed")
    if again and directory is None:
        raise SpecError("resume=True: directory= says which run")
    layout = Layout(Path(directory) if directory is not None else fresh())
    unborn = again and _unborn(layout)
    if again and layout.exists and not unborn:
        return _again(order, layout, wait)
    if not unborn and layout.root.exists() and (not layout.root.is_dir() or any(layout.root.iterdir())):
        raise RunDirectoryError(
            f"directory = {str(layout.root)!r} exists: give another, or resume=True to go on with the run in it"
        )
    sampler = cargo.search.open(cargo.space, order.seed)
    group = order.parallel.group
    spec = RunSpec(  # checked before the data is read
        epochs=order.epochs,
        partitions=1,
        validation=0,
        trials=sampler.total,
        seed=order.seed,
        metric=order.metric,
        mode=order.mode,
        exact=order.exact,
        group=group if isinstance(group, int) else 0,
        group_seconds=0.0 if group == "off" else 1.0,
        **order.limits,
    )
    freight = dump(cargo, "the run (recipe, data, space, search, engine)") if _pickles(cargo) else b""
    manifest = cargo.data.prepare()
    spec = msgspec.structs.replace(spec, partitions=len(manifest.train), validation=len(manifest.validate))
    if order.metric is not None and order.metric.startswith("val_") and not manifest.validate:
        raise SpecError(
            f"metric = {order.metric!r}, but the data has no validation rows: give the Dataset validation=0.2, or "
            'choose a metric of training such as "loss"'
        )
    with _room(layout.root):
        layout.root.mkdir(parents=True, exist_ok=True)
        lock = Lock(layout.lock)
    with _freed_on_error(lock), _room(layout.root):
        if unborn:
            layout.journal.unlink(missing_ok=True)
        store = str(layout.states.absolute()) if order.store is None else _room_of_its_own(order.store, layout)
        sources = list(dict.fromkeys(source.name for source in manifest.sources))[:20]
        about = About(
            hopyard=__version__,
            python=PYTHON,
            started=time.time(),
            engine=cargo.engine.name,
            workers=cargo.engine.workers,
            threads=cargo.engine.threads,
            store=store,
            data=manifest.digest,
            rows=manifest.rows,
            sources=sources,
            recipe=getattr(cargo.recipe, "__name__", type(cargo.recipe).__name__),
        )
        open_store(store)
        write_whole(layout.recipe, freight)
        write_whole(layout.manifest, msgspec.json.encode(manifest))
        write_whole(layout.about, msgspec.json.encode(about))
        return _run(_Drive(layout, lock, cargo.engine, cargo, manifest, spec, store, again=False), wait)


def _room_of_its_own(store: str, layout: Layout) -> str:
    """A folder in `store` for this run alone: its States have the same addresses as another run's, and what is not of
    this run is deleted. Absolute, because whoever resumes may stand in another directory."""
    name = f"{layout.root.absolute().name}-{secrets.token_hex(4)}"
    return f"{store.rstrip('/')}/{name}" if "://" in store else str(Path(store).absolute() / name)


def _unborn(layout: Layout) -> bool:
    """Whether a driver ended here before the first line of its journal was whole: nothing had happened."""
    if layout.exists:
        return not read(layout.journal)[0]
    ours = {layout.recipe, layout.manifest, layout.about, layout.lock, layout.states}
    return layout.lock.exists() and all(path in ours or path.name.startswith(".") for path in layout.root.iterdir())


def _pickles(cargo: Cargo) -> bool:
    """Each part on its own first, so that the message names the part."""
    for name in ("recipe", "space", "search"):
        dump(getattr(cargo, name), name)
    return True


def _again(order: Order, layout: Layout, wait: bool) -> Run:
    """`resume=True` on a directory with a run: it must be the run that is asked for."""
    known = fold(_told(layout)[:1]).spec
    for name in ("epochs", "metric", "mode", "seed"):
        if getattr(known, name) != getattr(order, name):
            raise RunDirectoryError(
                f"{layout.root} holds a run with {name}={getattr(known, name)!r}, not {getattr(order, name)!r}: give "
                "another directory, or hy.resume(directory) to go on with what it was started with"
            )
    return resume(layout.root, engine=order.cargo.engine, wait=wait)


def _same_data(layout: Layout, data: Dataset) -> Manifest:
    """The partitions that the run was started with; made again if they were evicted."""
    known = Manifest.load(layout.manifest, check=False)
    found = data.prepare()
    if found.digest != known.digest:
        raise RunDirectoryError(
            f"{layout.root}: the data has changed since the run was started (digest {found.digest[:16]}, was "
            f"{known.digest[:16]}): restore it, or start another run"
        )
    return found


def _about(layout: Layout) -> About:
    try:
        about = msgspec.json.decode(layout.about.read_bytes(), type=About)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunDirectoryError(f"{layout.about}: {error}; the run directory is not whole") from error
    moved = Path(about.store).name == layout.states.name and not Path(about.store).exists() and layout.states.is_dir()
    return msgspec.structs.replace(about, store=str(layout.states.absolute())) if moved else about


def _run(drive: _Drive, wait: bool) -> Run:
    if drive.engine.name == "local" and drive.engine.workers > cores():
        warnings.warn(
            f"{drive.engine.workers} workers on {cores()} cores: they take turns, and nothing gets faster",
            stacklevel=4,
        )
    with _room(drive.layout.root):
        journal = Journal(drive.layout.journal, resume=drive.again)
    machine = fold(journal.lines) if drive.again else Machine(drive.spec)
    run = Run(drive.layout, machine, drive.cargo)
    if wait:
        _drive(drive, run, machine, journal)
        return run

    def background() -> None:
        try:
            _drive(drive, run, machine, journal)
        except BaseException as error:  # noqa: BLE001 - raised again by run.wait()
            if not (run._stopped and isinstance(error, KeyboardInterrupt)):
                run._error = error
        finally:
            run._ended.set()

    run._ended.clear()
    threading.Thread(target=background, name="hopyard-driver").start()
    return run


def _drive(drive: _Drive, run: Run, machine: Machine, journal: Journal) -> None:
    """Bring up the agents, loop to the end, leave nothing behind but the run directory."""
    layout, spec = drive.layout, machine.spec
    with contextlib.ExitStack() as stack:
        stack.callback(drive.lock.free)
        stack.callback(journal.close)
        token = secrets.token_hex(8)
        root = memory_root(layout.root.absolute() / ".memory")
        sweep(root)
        recipe = dump(drive.cargo.recipe, "recipe")
        manifest = msgspec.json.encode(drive.manifest)
        folder = Folder(root, token)
        stack.callback(folder.close)
        store = open_store(drive.store)
        store.sweep()
        clock = Clock()
        known = {
            "hopyard": __version__,
            "python": PYTHON,
            "threads": drive.engine.threads,
            "data": drive.manifest.digest,
        }
        first = (
            Resumed(at=clock.now(), fingerprint=known)
            if drive.again
            else Began(at=clock.now(), spec=spec, fingerprint=known)
        )
        machine.handle(first)
        journal.append([first])

        def setup(device: str) -> Setup:
            return Setup(spec, recipe, manifest, drive.store, str(root), token, drive.engine.threads, device)

        make = LINKS.get(drive.engine.name, _router)
        loop = Loop(
            machine,
            journal,
            make(drive.engine, setup, layout, spec.silence),
            store,
            drive.cargo.search.open(drive.cargo.space, spec.seed),
            drive.engine.workers,
            layout.log,
            _views(spec),
            1 + max((line.slot for line in journal.lines if hasattr(line, "slot")), default=-1),
        )
        run._halt = loop.stop
        if run._stopped:  # before there was anything to halt
            loop.stop(run._stopped)
        loop.run()
    FINISHED.append(run)
    try:
        write_whole(layout.report, run.report().encode())
        run.gantt()
    except (ResourceError, OSError) as error:  # the run is whole; `hopyard show` tells the same from the journal
        log.warning("%s: no report was written: %s", layout.root, error)
    if machine.status == "failed":
        raise RunFailed(f"{layout.root}: every trial failed{_reasons(machine)}")


def _router(engine: Engine, setup: Callable[[str], Setup], layout: Layout, silence: float) -> Link:
    return Router(engine, setup, layout.log, silence)


def _views(spec: RunSpec) -> Sequence[View]:
    from hopyard.views.table import Table

    return [Table(spec)]


def _reasons(machine: Machine) -> str:
    failed = [trial for trial in machine.trials.values() if trial.status == "failed"]
    lines = [f"\n  trial {trial.id}, config {trial.config}: {trial.error}" for trial in failed[:3]]
    more = f"\n  and {len(failed) - 3} more" if len(failed) > 3 else ""
    return ":" + "".join(lines) + more if lines else ""


@contextlib.contextmanager
def _room(root: Path) -> Iterator[None]:
    """A full disk is no defect: exit 4, not a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ResourceError(
            f"{root}: no room for the run directory ({error.strerror}). Nothing is lost: make room, then start again "
            "with resume=True"
        ) from error


@contextlib.contextmanager
def _freed_on_error(lock: Lock) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            lock.free()
        raise

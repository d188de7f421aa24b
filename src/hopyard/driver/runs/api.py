"""Starting a run: `select`, `fit`, `resume`. What was asked for is checked here, before anything is trained."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from hopyard import __version__
from hopyard.checks import unwritable
from hopyard.code.digest import Unseen, digest
from hopyard.core.runs.events import CODEC, Dispatch
from hopyard.core.runs.machine import Machine
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest, difference, split
from hopyard.data.shared.needed import need, spare
from hopyard.driver.directory import claimed, freed_on_error, refused, room
from hopyard.driver.pickling import PYTHON, Cargo, dump
from hopyard.driver.pickling import load as unpickle
from hopyard.driver.runs.again import chosen, with_recipe
from hopyard.driver.runs.ownership import lost, new_folder, parent_of, take_new, take_over
from hopyard.driver.runs.recovery import Earlier, recover
from hopyard.driver.runs.run import About, Run, about_of, load, manifest_of, same_data
from hopyard.driver.runs.session import Drive, drive
from hopyard.engines.local import Local
from hopyard.errors import Inexact, RunDirectoryError, SpecError
from hopyard.filesystems import absolute
from hopyard.ports import Engine, is_engine
from hopyard.search.listed import Configs, Search
from hopyard.space import Space
from hopyard.spec import Config, Encrypt, Hopper, RunSpec, Timeouts
from hopyard.store.journal import Lock, read, retire, retired, sweep_temporary, write_whole
from hopyard.store.layout import Layout, find
from hopyard.store.states import private
from hopyard.training.recipes import wants_context
from hopyard.views.words import retriable

log = logging.getLogger(__name__)

WHOLE = "the run (recipe, data, space, search, engine)"
"""What is pickled, for messages."""

BY_VALUE = ("recipe", "space", "search")
"""Parts of a run that are known again by what they are."""


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
    encrypt: Encrypt = "between hosts"
    timeouts: Timeouts = field(default_factory=Timeouts)


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
    encrypt: Encrypt = "between hosts",
    heartbeat_timeout: float = 15.0,
    stall_timeout: float = 600.0,
    unit_timeout: float | None = None,
    durable_timeout: float = 600.0,
) -> Run:
    """Train many configurations of a recipe on a data set; find the best.

    Args:
        recipe: `recipe(config)` or `recipe(config, ctx)`; returns a compiled keras.Model, a hy.torch.Model
            or any hy.Trainable. Runs in
            workers.
        space: what to search; None where the search has its own list (hy.Configs).
        data: what to train on.
        search: hy.Grid(), hy.Random(n) or hy.Configs([...]).
        epochs: passes of each trial over the training partitions.
        metric: what decides, any name that the recipe reports: "val_loss", "val_accuracy", "loss", …
        mode: "min" or "max".
        engine: hy.Local() (the default), hy.Spark(spark, workers=…) or hy.Inline().
        parallel: hy.Hopper() (the default).
        seed: of everything random. Equal seeds give equal bits, whatever the number of workers.
        directory: of the run; default `runs/<time>-<word>`. An existing one is refused unless `resume`.
        store: where States are kept, any fsspec URL (memory:// with hy.Inline() only); a folder is made there for each
            run. Default: inside the directory.
        resume: go on with what is in `directory`, if there is a run.
        exact: True: fail on what cannot be exact; "warn": say it once; False: be silent.
        wait: False: return at once; `run.wait()` waits.
        encrypt: whether States that go by network are encrypted (TLS 1.3); messages always are. "between hosts":
            unless they stay on one host. True: always. False: never; the network can then read them, and change them
            on their way. (On one host nearly all go by shared memory, and nothing changes.)
        heartbeat_timeout: seconds without a heartbeat after which a worker is lost: its process was stopped, or its
            host is gone. A worker that ended is noticed at once.
        stall_timeout: seconds without progress after which a worker is lost. Progress is a batch that is finished,
            bytes that are read, a change of phase; while a model is built or compiled, processor time as well.
        unit_timeout: seconds that one unit may take, whatever progress it makes; None: any number. A worker that is
            lost in one of these ways is replaced, and its unit done again; a unit that loses three ends its trial. With
            hy.Inline(), whose worker is this process, only unit_timeout means anything, once the unit has ended.
        durable_timeout: seconds in which a worker that owes the State at the end of an epoch must store something,
            before it is replaced; the time in which the store is away, as the worker then says, does not count. A
            trial whose workers were replaced twice in a row gets double.

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
    order = Order(
        Cargo(recipe, data, space, search, chosen),
        epochs,
        metric,
        mode,
        Hopper() if parallel is None else parallel,
        seed,
        exact,
        None if store is None else str(store),
        encrypt,
        Timeouts(
            heartbeat_timeout=heartbeat_timeout,
            stall_timeout=stall_timeout,
            unit_timeout=unit_timeout,
            durable_timeout=durable_timeout,
        ),
    )
    return begin(order, directory, resume, wait)


def fit(
    recipe: Callable[..., Any],
    config: Config,
    data: Dataset,
    *,
    epochs: int,
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
    engine: Engine | None = None,
    parallel: Hopper | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    exact: bool | Literal["warn"] = "warn",
    wait: bool = True,
    encrypt: Encrypt = "between hosts",
    heartbeat_timeout: float = 15.0,
    stall_timeout: float = 600.0,
    unit_timeout: float | None = None,
    durable_timeout: float = 600.0,
) -> Run:
    """Train one configuration: a Run of one trial. As `select`; without metric and mode the best epoch is the last."""
    if not isinstance(config, dict):
        raise SpecError(f"config = {config!r}: a dict is needed")
    if metric is not None and mode is None:
        raise SpecError(f'mode = None: metric = {metric!r} needs "min" or "max", which of its values is the best')
    search = Configs([config])
    cargo = Cargo(recipe, data, None, search, _engine(engine))
    order = Order(
        cargo,
        epochs,
        metric,
        mode or "min",
        Hopper() if parallel is None else parallel,
        seed,
        exact,
        None if store is None else str(store),
        encrypt,
        Timeouts(
            heartbeat_timeout=heartbeat_timeout,
            stall_timeout=stall_timeout,
            unit_timeout=unit_timeout,
            durable_timeout=durable_timeout,
        ),
    )
    return begin(order, directory, resume, wait)


def resume(
    run_directory: str | Path,
    *,
    engine: Engine | None = None,
    wait: bool = True,
    failed: bool = False,
    recipe: Callable[..., Any] | None = None,
    heartbeat_timeout: float | None = None,
    stall_timeout: float | None = None,
    unit_timeout: float | None = None,
    durable_timeout: float | None = None,
) -> Run:
    """Go on with a run whose driver ended, from its last durable States, with the recipe that it was started with. Of a
    run that has ended, States that are gone from its store, or were cut, are made again.

    Args:
        run_directory: its directory, or its name under `runs/`.
        engine: another than it was started with.
        wait: as for `select`.
        heartbeat_timeout, stall_timeout, unit_timeout, durable_timeout: as for `select`; None: as they were.
            unit_timeout=math.inf: from now on a unit may take as long as it likes.
        failed: try failed trials again, also of a run that has ended: those that a fault of the system, the store, the
            data or memory ended, and poison, from their last durable States, with nothing counted against them.
        recipe: with failed=True: with this one those failed trials begin anew that errors of their recipe ended, or
            too much memory, or workers that crashed (poison), and those that had come to no State. The other failed
            trials go on with theirs. To try first what can go on, leave it out the first time.

    Raises:
        SpecError: a timeout is not allowed; recipe= without failed=True, or it is no recipe.
        RunDirectoryError: no run there, in use by a live driver, or started by another Python version.
        JournalError: the journal is damaged, or of a newer version.
    """
    if not isinstance(failed, bool):
        raise SpecError(f"failed = {failed!r}: True or False is needed")
    if recipe is not None and not failed:
        raise SpecError("recipe=: only trials that failed begin anew with another recipe; give failed=True as well")
    given = {
        "heartbeat_timeout": heartbeat_timeout,
        "stall_timeout": stall_timeout,
        "unit_timeout": unit_timeout,
        "durable_timeout": durable_timeout,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if unit_timeout == math.inf:
        changes["unit_timeout"] = None
    Timeouts(**changes)
    layout = find(run_directory)
    with room(layout.root):
        lock = Lock(layout.lock)
    with freed_on_error(lock):
        return _go_on(layout, lock, engine, wait, changes, failed=failed, recipe=recipe)


def _go_on(
    layout: Layout,
    lock: Lock,
    engine: Engine | None,
    wait: bool,
    changes: Mapping[str, Any],
    data: tuple[Dataset, Manifest] | None = None,
    recovered: tuple[Machine, Earlier] | None = None,
    failed: bool = False,
    recipe: Callable[..., Any] | None = None,
) -> Run:
    """The run in a directory whose lock is ours, from where its journal ends.

    Args:
        layout, lock, engine, wait: as everywhere here.
        changes: fields of its Timeouts that are others from now on.
        data: a Dataset that has the run's rows, and its manifest; None: the run's own.
        recovered: what `recover` gives, where the journal was read already.
        failed, recipe: as for `resume`.
    """
    machine, earlier = recovered or recover(layout)
    again = chosen(layout, machine, recipe) if failed else ()
    ended = machine.status in ("completed", "partial", "failed") and not again
    gone = lost(layout, about_of(layout), machine, earlier) if ended else []
    if gone:
        words = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        log.warning("%s: the run had ended, but %s; what is not there is made again", layout.root, words)
    elif ended:
        lock.free()
        more = "; `hopyard resume --failed` tries again what no recipe is to blame for" if retriable(machine) else ""
        log.warning("%s: the run had ended before (%s), nothing was trained%s", layout.root, machine.status, more)
        return load(layout.root)
    about = about_of(layout)
    cargo: Cargo = unpickle(layout.recipe, about.python)
    selected = engine or cargo.engine
    _shared(parent_of(about.store), selected)
    _compare_threads(layout, about, selected, machine.spec.exact)
    manifest = same_data(layout, cargo.data) if data is None else data[1]
    with room(layout.root):
        sweep_temporary(layout.root)
        if data is not None:
            cargo = _on(layout, cargo, *data)
        if recipe is not None:
            about, cargo = with_recipe(layout, machine, about, cargo, recipe, again)
        states = take_over(layout, about, machine, earlier)
    timeouts = msgspec.structs.replace(machine.spec.timeouts, **changes)
    return drive(
        Drive(
            layout,
            lock,
            selected,
            cargo,
            manifest,
            machine,
            states,
            earlier,
            again,
            encrypt=about.encrypt,
            timeouts=None if timeouts == machine.spec.timeouts else timeouts,
        ),
        wait,
    )


def _shared(store: str, engine: Engine) -> None:
    """Raises SpecError where the agents of this engine would each have a store of their own."""
    if private(store) and not engine.in_process:
        raise SpecError(
            f"store = {store!r}: States there live in the memory of one process, and the workers of engine "
            f"{engine.name!r} are other processes: give a path or URL that all of them reach, or hy.Inline()"
        )


def _compare_threads(layout: Layout, about: About, engine: Engine, exact: bool | Literal["warn"]) -> None:
    """Equal digests are promised for an equal number of threads only: sums are cut by it.

    Raises:
        Inexact: it is another, and exact=True.
    """
    if engine.threads == about.threads or exact is False:
        return
    text = (
        f"{layout.root}: workers have threads={engine.threads}, the run was begun with {about.threads}: its results "
        "may differ in the last bits"
    )
    if exact is True:
        raise Inexact(f"{text}; exact=True does not go on: give an engine with threads={about.threads}")
    log.warning("%s", text)


def _on(layout: Layout, cargo: Cargo, data: Dataset, manifest: Manifest) -> Cargo:
    """What the run was started with, but on this Dataset of the same rows. Where they are in another folder than its
    own, the run needs that one from now on."""
    before, cargo = cargo.data.url, replace(cargo, data=data)
    if data.url != before:
        need(manifest, layout.root)
        write_whole(layout.recipe, dump(cargo, WHOLE))
        spare(manifest_of(layout), layout.root)
        write_whole(layout.manifest, msgspec.json.encode(manifest))
    return cargo


def _engine(engine: Engine | None) -> Engine:
    if engine is None:
        return Local()
    if not is_engine(engine):
        raise SpecError(f"engine = {engine!r}: hy.Local(…), hy.Spark(spark, …) or hy.Inline() is needed")
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
    if order.metric is not None and not isinstance(order.metric, str):
        raise SpecError(f'metric = {order.metric!r}: the name of a metric is needed, for example "val_loss"')
    if directory is not None and not isinstance(directory, (str, Path)):
        raise SpecError(f"directory = {directory!r}: a path is needed")
    if not isinstance(order.encrypt, bool) and order.encrypt != "between hosts":
        raise SpecError(f'encrypt = {order.encrypt!r}: True, False or "between hosts" is needed')
    if again and directory is None:
        raise SpecError("resume=True: directory= says which run")
    root = str(Path.cwd() if directory is None else Path(directory).absolute())
    for name, text in (("directory", root), ("store", order.store)):
        if fault := unwritable(text):
            raise SpecError(f"{name} = {text!a}: {fault}")
    _shared(order.store or "", cargo.engine)
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
        void_epochs=True,
        group=group if isinstance(group, int) else 0,
        group_seconds=0.0 if group == "off" else 1.0,
        timeouts=order.timeouts,
    )
    freight = dump(cargo, WHOLE) if _pickles(cargo) else b""
    with claimed(directory) as (layout, lock):
        if _holds_a_run(layout, lock, again):
            return _again(order, layout, lock, wait)
        manifest = cargo.data.prepare()
        spec = msgspec.structs.replace(spec, partitions=len(manifest.train), validation=len(manifest.validate))
        if order.metric is not None and order.metric.startswith("val_") and not manifest.validate:
            raise SpecError(
                f"metric = {order.metric!r}, but the data has no validation rows: give the Dataset validation=0.2, or "
                'choose a metric of training such as "loss"'
            )
    with freed_on_error(lock), room(layout.root):
        retire(layout.journal)  # of a run that trained nothing
        sweep_temporary(layout.root)
        sources = list(dict.fromkeys(source.name for source in manifest.sources))[:20]
        about = About(
            hopyard=__version__,
            python=PYTHON,
            started=time.time(),
            engine=cargo.engine.name,
            workers=cargo.engine.workers,
            threads=cargo.engine.threads,
            store="" if order.store is None else new_folder(layout, inside=order.store),
            data=manifest.digest,
            rows=manifest.rows,
            sources=sources,
            split=split(manifest),
            recipe=getattr(cargo.recipe, "__name__", type(cargo.recipe).__name__),
            backend=getattr(cargo.engine, "env", {}).get("KERAS_BACKEND", ""),
            encrypt=order.encrypt,
            digests={name: _digest(getattr(cargo, name)) for name in BY_VALUE},
        )
        about, states = take_new(layout, about)
        write_whole(layout.recipe, freight)
        write_whole(layout.manifest, msgspec.json.encode(manifest))
        write_whole(layout.about, msgspec.json.encode(about))
        ready = Drive(layout, lock, cargo.engine, cargo, manifest, Machine(spec), states, encrypt=order.encrypt)
        return drive(ready, wait)


def _holds_a_run(layout: Layout, lock: Lock, again: bool) -> bool:
    """Whether there is a run to go on with in the directory, whose lock is ours. False: it is free for a new one; a run
    that trained nothing, as it ended in preflight for example, is nothing to lose.

    Raises:
        RunDirectoryError: it holds a run that is not to go on, or something else.
        JournalError: the journal is damaged.
    """
    if layout.exists:
        if not any(isinstance(line, Dispatch) for line in read(layout.journal, CODEC)):
            return False
        if again:
            return True
        raise refused(layout)
    others = [path for path in layout.root.iterdir() if path != layout.lock]
    earlier = retired(layout.journal).values()  # of runs that trained nothing; the driver of the next was killed
    ours = {layout.recipe, layout.manifest, layout.about, layout.logs, *earlier}
    free = [path in ours or path.name.startswith((".", layout.states.name)) for path in others]
    if others and not ((earlier or (again and not lock.made)) and all(free)):
        raise refused(layout)
    return False


def _pickles(cargo: Cargo) -> bool:
    """Each part on its own first, so that the message names the part."""
    for name in ("recipe", "space", "search"):
        dump(getattr(cargo, name), name)
    return True


def _again(order: Order, layout: Layout, lock: Lock, wait: bool) -> Run:
    """`resume=True` on a directory with a run: it must be the run that is asked for.

    Raises:
        RunDirectoryError: it is another; says in what.
    """
    recovered = recover(layout)
    machine = recovered[0]
    about, cargo = about_of(layout), order.cargo
    known = machine.spec
    asked = {
        "epochs": (known.epochs, order.epochs),
        "metric": (known.metric, order.metric),
        "mode": (known.mode, order.mode),
        "seed": (known.seed, order.seed),
        "exact": (known.exact, order.exact),
        "parallel": (Hopper(known.group or ("auto" if known.group_seconds else "off")), order.parallel),
        "store": (parent_of(about.store) or None, None if order.store is None else absolute(order.store)),
        "encrypt": (about.encrypt, order.encrypt),
    }
    differ = [f"with {name}={then!r}, not {now!r}" for name, (then, now) in asked.items() if then != now]
    differ += [f"with another {name}" for name in BY_VALUE if _differs(layout, about, name, getattr(cargo, name))]
    manifest = cargo.data.prepare()
    if manifest.digest != about.data:
        differ.append(difference(manifest_of(layout), manifest) or "on other data")
    sampler = cargo.search.open(cargo.space, order.seed)
    if machine.exhausted and sampler.total != len(machine.trials):
        differ.append(f"of {len(machine.trials)} trials, the search proposes {sampler.total}")
    for trial in machine.trials.values():
        if (config := sampler.ask(trial.id)) != trial.config:
            differ.append(f"whose trial {trial.id} has {trial.config}, the search proposes {config}")
            break
    if differ:
        raise RunDirectoryError(
            f"{layout.root} holds a run {'; '.join(differ)}: give another directory, or hy.resume(directory) to go on "
            "with what it was started with"
        )
    timeouts = msgspec.structs.asdict(order.timeouts)
    return _go_on(layout, lock, cargo.engine, wait, timeouts, (cargo.data, manifest), recovered)


def _differs(layout: Layout, about: About, name: str, now: Any) -> bool:
    """Whether a part of the run is another than the one that it was started with, by its code and its values. Where
    that cannot be told it is said, and the run goes on with its own."""
    then, asked = about.digests.get(name, ""), _digest(now)
    if then and asked == then:
        return False
    if then and asked and _digest(getattr(unpickle(layout.recipe, about.python), name)) == then:
        return True
    log.warning(
        "%s: whether the %s was edited cannot be told; the one that it was started with is used", layout.root, name
    )
    return False


def _digest(value: Any) -> str:
    """Empty: there is none. What bodies import does not count: no pickle holds it, workers import it where they are."""
    try:
        return digest(value, imports=False)
    except Unseen:
        return ""

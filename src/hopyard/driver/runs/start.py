"""Starts a driver, of a new run or of one that goes on from its journal."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, Literal

import msgspec

from hopyard import __version__
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Dispatch
from hopyard.core.runs.machine import Machine
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest, difference, split
from hopyard.data.shared.needed import need, spare
from hopyard.driver.directory import claim_url, claimed, copy_end, freed_on_error, refused
from hopyard.driver.pickling import PYTHON, RunInputs, dump, opened
from hopyard.driver.pickling import load as unpickle
from hopyard.driver.runs.about import About, about_of, manifest_of, same_data
from hopyard.driver.runs.changes import (
    Changes,
    extension,
    members_of,
    trials_to_retry,
    value_digest,
    with_recipe,
    with_search,
)
from hopyard.driver.runs.fold import EarlierDrivers, recover
from hopyard.driver.runs.keywords import KEYWORDS
from hopyard.driver.runs.ownership import lost_states, new_folder, parent_of, take_new, take_over
from hopyard.driver.runs.request import RunRequest, check_background, check_shared, check_workers
from hopyard.driver.runs.run import Run, load
from hopyard.driver.runs.session import Drive, drive
from hopyard.engines import followers
from hopyard.engines.environment import with_environment
from hopyard.errors import Inexact, RunDirectoryError, SpecError
from hopyard.filesystems import absolute
from hopyard.parallel import any_workers, for_table, parallel_of
from hopyard.ports.engines import Engine
from hopyard.ports.searches import LearningSampler
from hopyard.search.kinds import learns, open_sampler
from hopyard.spec import RunSpec
from hopyard.stopping import ASHA, Asked
from hopyard.store.journal import read, retire, retired, room
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.urls import working
from hopyard.store.urls.mirror import publish
from hopyard.system.files import sweep_parts
from hopyard.system.owners import other_writers
from hopyard.text import without_passwords
from hopyard.views.words import retriable

log = logging.getLogger(__name__)

WHOLE_RUN = "the run (recipe, data, space, search, engine)"
"""The name of the pickle in messages."""

COMPARED = ("recipe", "space")
BY_VALUE = (*COMPARED, "search")
"""Parts of a run that are compared by their code and values."""


def begin(request: RunRequest, resume: bool, wait: bool, trust: bool = False) -> Run:
    """Prepare the data, make the directory, drive the run; or, with `resume`, go on with the run in it. Raises as
    `select` does."""
    inputs = request.inputs
    check_background(wait, inputs.engine)
    if resume and request.directory is None:
        raise SpecError(
            "directory must be given with resume=True and under `hopyard run --resume`: the directory says what goes "
            "on, got None"
        )
    pickle = _pickled(inputs)
    with claimed(request.directory) as (layout, lock):
        if _holds_a_run(layout, lock, resume):
            return _resume(request, layout, lock, wait, trust)
        manifest = inputs.data.prepare()
        if inputs.data.rows.is_streamed:  # only now they have the identity by which a resume finds them in the cache
            pickle = _pickled(inputs)
        copied = replace(opened(pickle, WHOLE_RUN), engine=inputs.engine)  # whatever the user changes from now on
        for metric in [each.metric for each in request.spec.objectives if each.metric.startswith("val_")]:
            if manifest.validate:
                break
            raise SpecError(
                f"metric = {metric!r}, but the data has no validation rows: give the Dataset validation=0.2, or "
                'choose a metric of training such as "loss"'
            )
        sizes = {"partitions": len(manifest.train), "validation": len(manifest.validate)}
        spec = for_table(request.parallel, msgspec.structs.replace(request.spec, **sizes), manifest.bytes)
        if isinstance(spec.stop, ASHA):
            spec.stop.check_partitions(spec.epochs, spec.partitions)
        claim_url(layout, lock, layout.journal)
        with room(layout.root):
            about, states = take_new(layout, _about(request, manifest, layout))
    with freed_on_error(lock), room(layout.root):
        if retire(layout.journal) is not None:
            log.warning("%s: the run here had trained nothing, so it begins anew, with what is given now", layout.place)
        sweep_parts(layout.root)
        publish(layout.recipe, pickle, private=True)
        if not layout.url and (writers := other_writers(layout.recipe)):
            log.warning("%s: %s, so whoever goes on with this run must give trust=True", layout.place, writers)
        publish(layout.manifest, msgspec.json.encode(manifest))
        publish(layout.about, msgspec.json.encode(about))
        job = Drive(
            layout,
            lock,
            copied,
            manifest,
            Machine(spec),
            states,
            encrypt=request.encrypt,
            track=(*(request.track or ()), *request.follow),
            live=inputs,
        )
        return drive(job, wait)


def _about(request: RunRequest, manifest: Manifest, layout: Layout) -> About:
    inputs, engine = request.inputs, request.inputs.engine
    return About(
        hopyard=__version__,
        python=PYTHON,
        started=time.time(),
        engine=engine.name,
        workers=engine.workers,
        threads=engine.threads,
        store="" if request.store is None else new_folder(layout, inside=str(request.store)),
        data=manifest.digest,
        rows=manifest.rows,
        sources=list(dict.fromkeys(source.name for source in manifest.sources))[:20],
        split=split(manifest),
        recipe=getattr(inputs.recipe, "__name__", type(inputs.recipe).__name__),
        backend=engine.env.get("KERAS_BACKEND", ""),
        encrypt=request.encrypt,
        digests={name: value_digest(getattr(inputs, name)) for name in _by_value(inputs)},
        track=tuple(map(without_passwords, request.track or ())),
    )


def go_on(
    layout: Layout,
    lock: Lock,
    engine: Engine | None,
    wait: bool,
    changes: Changes,
    data: tuple[Dataset, Manifest] | None = None,
    recovered: tuple[Machine, EarlierDrivers] | None = None,
    trust: bool = False,
    follow: tuple[str, ...] = (),
) -> Run:
    """Go on with the run in a directory whose lock is ours, from where its journal ends.

    Args:
        layout, lock, engine, wait: as in the other functions here.
        changes: what the user changes of it.
        data: a Dataset that has the run's rows, and its manifest; None: the run's own.
        recovered: what `recover` returned, where the journal was read already.
        trust: as for `resume`.
        follow: as in RunRequest.
    """
    machine, earlier = recovered or recover(layout)
    retries = trials_to_retry(layout, machine, changes.recipe) if changes.failed else ()
    ended = machine.ended and not retries and not changes.extend
    if ended and members_of(layout, machine.spec, changes):
        raise SpecError(
            f"workers = {changes.workers}: {layout.place} has ended ({machine.status}), and trains nothing more; what "
            "is lost of it is made again by as many workers as before; give epochs= or failed=True too"
        )
    lost = lost_states(layout, about_of(layout), machine, earlier) if ended else []
    if lost:
        text = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        log.warning("%s: the run had ended, but %s; what is not there is made again", layout.place, text)
    elif ended:
        copy_end(layout, lock, layout.journal, CODEC)
        lock.free()
        more = "; `hopyard resume --failed` tries again what no recipe is to blame for" if retriable(machine) else ""
        log.warning("%s: the run had ended before (%s), nothing was trained%s", layout.place, machine.status, more)
        tracks = about_of(layout).track if changes.track is None else changes.track
        followers.start((*tracks, *follow), layout.root, layout.tracking_log)  # they may have been killed with it
        return load(layout.root, trust=trust)
    about = about_of(layout)
    inputs: RunInputs = unpickle(layout.recipe, about.python, trust)
    added = (extension(layout, machine, inputs, changes),) if changes.extend else ()
    selected = engine or with_environment(inputs.engine, layout.root, about.backend)
    check_background(wait, selected)
    check_shared(parent_of(about.store), selected)
    members = members_of(layout, machine.spec, changes)
    check_workers(members or machine.spec.members, selected)
    _compare_threads(layout, about, selected, machine.spec.exact)
    manifest = same_data(layout, inputs.data) if data is None else data[1]
    claim_url(layout, lock, layout.journal)
    with room(layout.root):
        sweep_parts(layout.root)
        if data is not None:
            inputs = _with_data(layout, inputs, *data)
        if changes.recipe is not None:
            about, inputs = with_recipe(layout, machine, about, inputs, changes.recipe, retries)
        if changes.search is not None:
            about, inputs = with_search(layout, about, inputs, changes.search)
        if changes.track is not None:
            about = msgspec.structs.replace(about, track=tuple(map(without_passwords, changes.track)))
            publish(layout.about, msgspec.json.encode(about))
        states = take_over(layout, about, machine, earlier)
    return drive(
        Drive(
            layout,
            lock,
            replace(inputs, engine=selected),
            manifest,
            machine,
            states,
            earlier,
            (*retries, *added),
            encrypt=about.encrypt,
            timeouts=None if changes.timeouts == machine.spec.timeouts else changes.timeouts,
            members=members,
            copies=changes.copies,
            track=(*(about.track if changes.track is None else changes.track), *follow),
        ),
        wait,
    )


def _compare_threads(layout: Layout, about: About, engine: Engine, exact: bool | Literal["warn"]) -> None:
    """Check the number of threads: equal digests are promised for equal numbers only, as sums are split by it.

    Raises:
        Inexact: it has changed, and exact=True.
    """
    if engine.threads == about.threads or exact is False:
        return
    text = (
        f"{layout.place}: workers have threads={engine.threads}, the run was begun with {about.threads}: its results "
        "may differ in the last bits"
    )
    if exact is True:
        raise Inexact(f"{text}; exact=True does not go on: give an engine with threads={about.threads}")
    log.warning("%s", text)


def _with_data(layout: Layout, inputs: RunInputs, data: Dataset, manifest: Manifest) -> RunInputs:
    """Return what the run was started with, but on this Dataset of the same rows. Where they are in another folder than
    its own, the run needs that one from now on."""
    old_url, inputs = inputs.data.url, replace(inputs, data=data)
    if data.url != old_url:
        need(manifest, layout.root)
        publish(layout.recipe, dump(inputs, WHOLE_RUN), private=True)
        spare(manifest_of(layout), layout.root)
        publish(layout.manifest, msgspec.json.encode(manifest))
    return inputs


def _holds_a_run(layout: Layout, lock: Lock, resume: bool) -> bool:
    """Whether the directory, whose lock is ours, holds a run to go on with. False: it is free for a new one; a run that
    trained nothing, for example as it ended in preflight, may be replaced.

    Raises:
        RunDirectoryError: it holds a run that is not to go on, or something else.
        JournalError: the journal is damaged.
    """
    if layout.exists:
        if not any(isinstance(line, Dispatch) for line in read(layout.journal, CODEC)):
            return False
        if resume:
            return True
        raise refused(layout)
    others = [path for path in layout.root.iterdir() if path not in (layout.lock, *layout.copying)]
    earlier = retired(layout.journal).values()  # of runs that trained nothing; the driver of the next was killed
    own_paths = {layout.recipe, layout.manifest, layout.about, layout.logs, *earlier}
    free = [path in own_paths or path.name.startswith((".", layout.states.name)) for path in others]
    if others and not ((earlier or (resume and not lock.made)) and all(free)):
        raise refused(layout)
    if layout.url and working.others(layout.url):
        raise refused(layout)
    return False


def _by_value(inputs: RunInputs) -> tuple[str, ...]:
    return BY_VALUE if inputs.stop is None else (*BY_VALUE, "stop")


def _pickled(inputs: RunInputs) -> bytes:
    """Pickle the run; each part on its own first, so that an error names the part."""
    for name in _by_value(inputs):
        dump(getattr(inputs, name), name)
    return dump(inputs, WHOLE_RUN)


def _resume(request: RunRequest, layout: Layout, lock: Lock, wait: bool, trust: bool) -> Run:
    """Go on with the run in a directory at `resume=True`: it must be the run that is asked for.

    Raises:
        RunDirectoryError: it is another run; says in what.
    """
    recovered = recover(layout)
    machine = recovered[0]
    about, inputs = about_of(layout), request.inputs
    then, now = machine.spec, request.spec
    now = for_table(request.parallel, msgspec.structs.replace(now, partitions=then.partitions), 0)
    if (
        then.gang is not None
        and now.gang is not None
        and (any_workers(request.parallel) or now.gang.size == recovered[1].members)
    ):
        gang = msgspec.structs.replace(now.gang, size=then.gang.size)
        now = msgspec.structs.replace(now, gang=gang)
    fields = [name for name in RunSpec.__struct_fields__ if name in (*KEYWORDS, "batch") and name != "timeouts"]
    asked = {name: (getattr(then, name), getattr(now, name)) for name in fields}
    asked |= {
        "metric": (_one_or_all(then, "metric"), _one_or_all(now, "metric")),
        "mode": (_one_or_all(then, "mode"), _one_or_all(now, "mode")),
        "parallel": (parallel_of(then), parallel_of(now)),
        "store": (parent_of(about.store) or None, None if request.store is None else absolute(str(request.store))),
        "encrypt": (about.encrypt, request.encrypt),
    }
    differ = [f"with {name}={before!r}, not {after!r}" for name, (before, after) in asked.items() if before != after]
    compared = [*COMPARED, *(["stop"] if isinstance(now.stop, Asked) else []), *(["search"] * learns(inputs.search))]
    differ += [
        f"with another {name}" for name in compared if _differs(layout, about, name, getattr(inputs, name), trust)
    ]
    manifest = inputs.data.prepare()
    if manifest.digest != about.data:
        differ.append(difference(manifest_of(layout), manifest) or "on other data")
    sampler = open_sampler(inputs.search, inputs.space, now.seed, now.modes)
    final = then.stop is not None or learns(inputs.search)
    more = "" if final else ", with more epochs= or a search= of more trials if you like"
    if machine.search.error:
        differ.append(f"of {len(machine.trials)} trials, after which {machine.search.error} and proposes nothing more")
        more = "; another run learns from it by search=hy.Optuna(study=hy.load(directory).to_optuna(), trials=n)"
    elif machine.exhausted and not machine.search.closed and now.trials != len(machine.trials):
        differ.append(f"of {len(machine.trials)} trials, the search proposes {now.trials}")
    for trial in machine.trials.values():
        if isinstance(sampler, LearningSampler):  # it cannot be asked again without what came between
            break
        if (config := sampler.ask(trial.id)) != trial.config:
            differ.append(f"whose trial {trial.id} has {trial.config}, the search proposes {config}")
            break
    if differ:
        raise RunDirectoryError(
            f"{layout.place} holds a run {'; '.join(differ)}: give another directory, or hy.resume(directory) to go on "
            f"with what it was started with{more}"
        )
    copies = for_table(request.parallel, now, manifest.bytes).copies
    changes = Changes(now.timeouts, copies=-1 if copies == then.copies else copies or 0, track=request.track)
    return go_on(layout, lock, inputs.engine, wait, changes, (inputs.data, manifest), recovered, trust, request.follow)


def _one_or_all(spec: RunSpec, field: Literal["metric", "mode"]) -> Any:
    """Return metric or mode as the user gave it: a list where there are several objectives."""
    several = [getattr(each, field) for each in spec.objectives]
    return several if len(several) > 1 else getattr(spec, field)


def _differs(layout: Layout, about: About, name: str, now: Any, trust: bool) -> bool:
    """Whether a part of the run differs, in code or values, from the one that it was started with. Where that is
    unknown, a warning says so, and the run goes on with its own part."""
    then, asked = about.digests.get(name, ""), value_digest(now)
    if then and asked == then:
        return False
    if then and asked and value_digest(getattr(unpickle(layout.recipe, about.python, trust), name)) == then:
        return True
    log.warning(
        "%s: whether the %s was edited cannot be told; the one that it was started with is used", layout.place, name
    )
    return False

"""Which run owns a folder of States, where runs are copied, moved, and resumed from several places.

Each driver puts one new mark into the folder of its run's States, and its journal holds the id. The run whose journal
holds the newest mark owns the folder: it alone deletes there. Another run that needs States of it copies them into a
folder of its own. A driver that resumes writes its mark into `run.json` before it puts it into the folder: one that
ends before it wrote the journal, killed or by an error, costs the next one nothing.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.machine import Machine
from hopyard.driver.runs.about import About, states_url
from hopyard.driver.runs.fold import EarlierDrivers, dispatched_refs
from hopyard.errors import ResourceError, SpecError
from hopyard.filesystems import absolute, reaching
from hopyard.spec import Ref
from hopyard.store.journal import read
from hopyard.store.layout import Layout
from hopyard.store.states import FsspecStore, LocalStore, claim, open_store, private
from hopyard.store.tree import digest
from hopyard.store.urls.mirror import LEASES, check_claim, publish

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owned:
    """A folder of States that this driver owns."""

    store: str
    """Path or URL, absolute."""
    mark: str
    gone: tuple[Ref, ...] = ()
    """States of the journal that are lost."""


def new_folder(layout: Layout, beside: str = "", inside: str = "") -> str:
    """Return the name, as in `run.json`, of a folder for this run alone: other runs' States have the same addresses.

    Args:
        layout: layout of the run directory.
        beside: the folder that it had; "": inside the run directory.
        inside: where the user wants folders of States; absolute, as a later driver may start elsewhere.
    """
    parent = absolute(inside) if inside else parent_of(beside)
    if not parent:
        return f"{layout.states.name}-{secrets.token_hex(4)}"
    name = f"{layout.root.name}-{secrets.token_hex(4)}"
    return f"{parent}/{name}" if "://" in parent else str(Path(parent) / name)


def parent_of(store: str) -> str:
    """Return the `store=` that the user passed, from the name in `run.json`; "": there was none."""
    if _is_inside(store):
        return ""
    return absolute(store.rpartition("/")[0] + "/") if "://" in store else str(Path(store).parent)


def _is_inside(store: str) -> bool:
    return "://" not in store and not Path(store).is_absolute()


def take_new(layout: Layout, about: About) -> tuple[About, Owned]:
    """Claim an empty folder for a new run; the caller holds the lock of the run directory, and writes `run.json`.

    Raises:
        SpecError, ResourceError: the store cannot be used, or another run's States are in the folder; names it.
    """
    url, mark = states_url(layout, about), secrets.token_hex(8)
    store = open_store(url)
    own: Collection[str] = ()
    if not about.store:  # inside the run directory, whose lock keeps others away
        with store_errors(url):
            used, own = bool(store.refs()), store.marks()
        if used:  # by a run whose journal is not there any longer
            about = msgspec.structs.replace(about, store=new_folder(layout))
            url, own = states_url(layout, about), ()
            store = open_store(url)
    with store_errors(url):
        if store.refs() or not claim(store, own, mark):
            raise SpecError(f"store: {url} is a new folder for this run, but States of another run belong there")
    return about, Owned(url, mark)


def lost_states(layout: Layout, about: About, machine: Machine, earlier: EarlierDrivers) -> list[str]:
    """Describe the States of completed trials that are not in the store, or have another size than the journal says.
    Where the store cannot be asked, or is not mounted, a warning says so, and the list is empty."""
    url = states_url(layout, about)
    try:
        if reason := _unmounted(url, about, earlier.marks):
            raise ResourceError(f"store: {url}: {reason}; mount it or bring it back, then resume")
        store = open_store(url)
        with store_errors(url):
            sizes = store.sizes()
    except (SpecError, ResourceError) as error:
        log.warning("%s: it cannot be told whether its States are there: %s", layout.root, error)
        return []
    completed = [trial for trial in machine.trials.values() if trial.status in ("completed", "stopped")]
    states = [state for trial in completed for state in trial.states.values() if state.digest]
    return [
        f"State {state.ref} is damaged: it has {sizes[state.ref]} bytes, not {state.bytes}"
        if state.ref in sizes
        else f"State {state.ref} is gone"
        for state in states
        if sizes.get(state.ref) != state.bytes
    ]


def take_over(layout: Layout, about: About, machine: Machine, earlier: EarlierDrivers) -> Owned:
    """Claim the folder of the States of a run that goes on: its own; or, where another run has it, a new one with
    copies of what this run needs, which `run.json` then names. The caller holds the lock of the run directory.

    Raises:
        SpecError, ResourceError: the store cannot be used, or is not mounted; names it.
    """
    url, mark = states_url(layout, about), secrets.token_hex(8)
    states = [state for trial in machine.trials.values() for state in trial.durable]
    seals = {state.ref: state.digest for state in states}
    if seals and (reason := _unmounted(url, about, earlier.marks)):
        raise ResourceError(
            f"store: {url}: {reason}, but the journal names {len(seals)} States there; mount it or bring it back, then "
            "resume; where they were deleted for good, start the run again in another directory"
        )
    store = open_store(url)
    journaled = earlier.marks
    marks = {} if journaled & about.marks.keys() else about.marks  # what came before a mark in the journal is over
    with store_errors(url):
        sizes = store.sizes()
    stored = set(sizes)
    lost = LEASES if layout.url else 0
    if stored == dispatched_refs(read(layout.journal, CODEC), stored, lost) and not _is_copy(
        layout, about, earlier.directories, marks
    ):
        about = msgspec.structs.replace(about, marks={**marks, mark: location(layout)})
        publish(layout.about, msgspec.json.encode(about))
        check_claim(layout.root)
        with store_errors(url):
            if claim(store, journaled | marks.keys(), mark):
                damaged = {state.ref for state in states if sizes.get(state.ref, state.bytes) != state.bytes}
                for ref in damaged:  # or it would be in the place of the one that is made again
                    log.warning("the stored State %s is damaged: it has %d bytes; it is made again", ref, sizes[ref])
                    store.delete(ref)
                return Owned(url, mark, tuple(sorted(seals.keys() - stored | damaged, key=str)))
    about = msgspec.structs.replace(about, store=new_folder(layout, about.store), marks={mark: location(layout)})
    new_url = states_url(layout, about)
    new_store = open_store(new_url)
    gone = []
    for ref, seal in seals.items():
        with store_errors(url):
            data = _intact(store, ref, seal)
        if data is None:
            gone.append(ref)
            continue
        with store_errors(new_url):
            new_store.put(ref, data)
    with store_errors(new_url):
        claim(new_store, (), mark)
    publish(layout.about, msgspec.json.encode(about))
    log.warning(
        "%s: the folder of its States is another run's by now; %d of the %d that it needs were copied to %s%s",
        *(layout.root, len(seals) - len(gone), len(seals), new_url),
        ", the others are made again" if gone else "",
    )
    return Owned(new_url, mark, tuple(gone))


def _unmounted(url: str, about: About, driver_marks: Collection[str]) -> str:
    """Return what is missing where a file server is not mounted, so that nothing tells whether States are there; "":
    nothing is missing. A folder in the run directory, or in the memory of a process, is not checked.

    Args:
        url: of the States.
        about: the run.
        driver_marks: the marks that its drivers put there. A driver that takes a folder over puts a newer one first.

    Raises:
        SpecError, ResourceError: the store cannot be asked.
    """
    if _is_inside(about.store) or private(url) or not any(driver_marks):
        return ""
    store = open_store(url, make=False)
    with store_errors(url):
        try:
            marks = store.marks()
        except FileNotFoundError:
            return "the folder is not there"
    return "" if marks else "the folder has none of the marks that the drivers of this run left there"


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn what the store at `url` raises into an error that names it: the run directory is not at fault.

    Raises:
        ResourceError: no room there.
        SpecError: all else.
    """
    with reaching(url, "keep States in", SpecError, "store", "store= must be a place that can be written to"):
        try:
            yield
        except ResourceError as error:
            raise ResourceError(
                f"store: {error}. Nothing is lost: make room there, then start again with resume=True"
            ) from error


def location(layout: Layout) -> str:
    """Return the run directory as the journal names it: its URL, or its path with its host."""
    return layout.url or f"{socket.gethostname()}:{layout.root.resolve()}"


def _is_copy(layout: Layout, about: About, directories: list[str], marks: Mapping[str, str]) -> bool:
    """Whether the run of the last driver may still exist somewhere else: then that one owns the folder."""
    last = [*directories, *marks.values()][-1]
    host, _, path = last.partition(":")
    if not last or _is_inside(about.store) or last == location(layout) or path == str(layout.root.resolve()):
        return False
    return host != socket.gethostname() or _first_line(Layout(Path(path))) == _first_line(layout)


def _first_line(layout: Layout) -> bytes:
    """Return the first line of the journal, which no other run has."""
    try:
        with layout.journal.open("rb") as file:
            return file.readline()
    except OSError:
        return b""


def _intact(store: LocalStore | FsspecStore, ref: Ref, seal: str) -> memoryview | None:
    """Return a stored State; None: it is not there, or damaged."""
    try:
        data = memoryview(store.get(ref))
    except FileNotFoundError:
        return None
    return data if digest(data) == seal else None

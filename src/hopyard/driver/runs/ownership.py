"""Which run owns a folder of States, where runs are copied, moved, and resumed from several places.

Each driver puts one new mark into the folder of its run's States, and its journal holds the id. The run whose journal
holds the newest mark owns the folder: it alone deletes there. Whoever else needs States of it copies them into a folder
of its own. A driver that resumes writes its mark into `run.json` before it puts it into the folder: one that ends
before it wrote the journal, killed or by an error, costs the next one nothing.
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

from hopyard.core.runs.events import CODEC
from hopyard.core.runs.machine import Machine
from hopyard.driver.runs.recovery import Earlier, named
from hopyard.driver.runs.run import About, place
from hopyard.errors import ResourceError, SpecError
from hopyard.filesystems import absolute, reaching
from hopyard.spec import Ref
from hopyard.store.journal import read, write_whole
from hopyard.store.layout import Layout
from hopyard.store.states import FsspecStore, LocalStore, claim, open_store, private
from hopyard.store.tree import digest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owned:
    """A folder of States that this driver owns."""

    store: str
    """Path or URL, absolute."""
    mark: str
    gone: tuple[Ref, ...] = ()
    """States of the journal that are nowhere any longer."""


def new_folder(layout: Layout, beside: str = "", inside: str = "") -> str:
    """A name, as `run.json` has it, of a folder for this run alone: other runs' States have the same addresses.

    Args:
        layout: of the run.
        beside: the folder that it had; "": inside the run directory.
        inside: where the user wants folders of States; absolute, because whoever resumes may stand elsewhere.
    """
    parent = absolute(inside) if inside else parent_of(beside)
    if not parent:
        return f"{layout.states.name}-{secrets.token_hex(4)}"
    name = f"{layout.root.absolute().name}-{secrets.token_hex(4)}"
    return f"{parent}/{name}" if "://" in parent else str(Path(parent) / name)


def parent_of(store: str) -> str:
    """What `store=` was, by what `run.json` has; "": it was not given."""
    if _is_inside(store):
        return ""
    return absolute(store.rpartition("/")[0] + "/") if "://" in store else str(Path(store).parent)


def _is_inside(store: str) -> bool:
    return "://" not in store and not Path(store).is_absolute()


def take_new(layout: Layout, about: About) -> tuple[About, Owned]:
    """A folder for a new run; the caller holds the lock of the run directory, and writes `run.json`.

    Raises:
        SpecError, ResourceError: the store cannot be used; names it.
    """
    url = place(layout, about)
    store = open_store(url)
    with using(url):
        used = bool(store.refs())  # by a run whose journal is not there any longer
    if used:
        about = msgspec.structs.replace(about, store=new_folder(layout, about.store))
        url = place(layout, about)
        store = open_store(url)
    mark = secrets.token_hex(8)
    with using(url):
        claim(store, store.marks(), mark)
    return about, Owned(url, mark)


def lost(layout: Layout, about: About, machine: Machine, earlier: Earlier) -> list[str]:
    """The States of completed trials that are not in the store, or have another size than the journal says, in words.
    Where the store cannot be asked, or is not mounted, a warning says so, and none are known."""
    url = place(layout, about)
    try:
        if missing := _unmounted(url, about, earlier.marks):
            raise ResourceError(f"store: {url}: {missing}; mount it or bring it back, then resume")
        store = open_store(url)
        with using(url):
            sizes = store.sizes()
    except (SpecError, ResourceError) as error:
        log.warning("%s: it cannot be told whether its States are there: %s", layout.root, error)
        return []
    completed = [trial for trial in machine.trials.values() if trial.status == "completed"]
    states = [state for trial in completed for state in trial.states.values() if state.digest]
    return [
        f"State {state.ref} is damaged: it has {sizes[state.ref]} bytes, not {state.bytes}"
        if state.ref in sizes
        else f"State {state.ref} is gone"
        for state in states
        if sizes.get(state.ref) != state.bytes
    ]


def take_over(layout: Layout, about: About, machine: Machine, earlier: Earlier) -> Owned:
    """The folder of the States of a run that goes on: its own; or, where another run has it, a new one with copies of
    what this one needs, which `run.json` then names. The caller holds the lock of the run directory.

    Raises:
        SpecError, ResourceError: the store cannot be used, or is not mounted; names it.
    """
    url, mark = place(layout, about), secrets.token_hex(8)
    states = [state for trial in machine.trials.values() for state in trial.states.values() if state.digest]
    kept = {state.ref: state.digest for state in states}
    if kept and (missing := _unmounted(url, about, earlier.marks)):
        raise ResourceError(
            f"store: {url}: {missing}, but the journal names {len(kept)} States there; mount it or bring it back, then "
            "resume; where they were deleted for good, start the run again in another directory"
        )
    store = open_store(url)
    known = earlier.marks
    marks = {} if known & about.marks.keys() else about.marks  # what came before a mark in the journal is over
    with using(url):
        sizes = store.sizes()
    there = set(sizes)
    if there == named(read(layout.journal, CODEC), there) and not _is_copy(layout, about, earlier.directories, marks):
        about = msgspec.structs.replace(about, marks={**marks, mark: here(layout)})
        write_whole(layout.about, msgspec.json.encode(about))
        with using(url):
            if claim(store, known | marks.keys(), mark):
                damaged = {state.ref for state in states if sizes.get(state.ref, state.bytes) != state.bytes}
                for ref in damaged:  # or it would stand where the one that is made again is put
                    log.warning("the stored State %s is damaged: it has %d bytes; it is made again", ref, sizes[ref])
                    store.delete(ref)
                return Owned(url, mark, tuple(sorted(kept.keys() - there | damaged, key=str)))
    about = msgspec.structs.replace(about, store=new_folder(layout, about.store), marks={mark: here(layout)})
    new = place(layout, about)
    own = open_store(new)
    gone = []
    for ref, seal in kept.items():
        with using(url):
            data = _whole(store, ref, seal)
        if data is None:
            gone.append(ref)
            continue
        with using(new):
            own.put(ref, data)
    with using(new):
        claim(own, (), mark)
    write_whole(layout.about, msgspec.json.encode(about))
    log.warning(
        "%s: the folder of its States is another run's by now; %d of the %d that it needs were copied to %s%s",
        *(layout.root, len(kept) - len(gone), len(kept), new),
        ", the others are made again" if gone else "",
    )
    return Owned(new, mark, tuple(gone))


def _unmounted(url: str, about: About, known: Collection[str]) -> str:
    """What is missing where a file server is not mounted: then nothing tells whether States are there. "": nothing is.
    A folder in the run directory, or in the memory of a process, is what it is.

    Args:
        url: of the States.
        about: the run.
        known: the marks that its drivers put there. Whoever takes a folder over puts a newer one first.

    Raises:
        SpecError, ResourceError: the store cannot be asked.
    """
    if _is_inside(about.store) or private(url) or not any(known):
        return ""
    store = open_store(url, make=False)
    with using(url):
        try:
            marks = store.marks()
        except FileNotFoundError:
            return "the folder is not there"
    return "" if marks else "the folder has none of the marks that the drivers of this run left there"


@contextmanager
def using(url: str) -> Iterator[None]:
    """Turns what the store at `url` raises into an error that names it: nothing is wrong with the run directory then.

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


def here(layout: Layout) -> str:
    """The run directory as the journal names it."""
    return f"{socket.gethostname()}:{layout.root.resolve()}"


def _is_copy(layout: Layout, about: About, drivers: list[str], marks: Mapping[str, str]) -> bool:
    """Whether the run that the last driver drove may be somewhere else still: that one owns the folder."""
    last = [*drivers, *marks.values()][-1]
    host, _, path = last.partition(":")
    if not last or _is_inside(about.store) or path == str(layout.root.resolve()):
        return False
    return host != socket.gethostname() or _head(Layout(Path(path))) == _head(layout)


def _head(layout: Layout) -> bytes:
    """The first line of the journal, which no other run has."""
    try:
        with layout.journal.open("rb") as file:
            return file.readline()
    except OSError:
        return b""


def _whole(store: LocalStore | FsspecStore, ref: Ref, seal: str) -> memoryview | None:
    """A stored State; None: it is not there, or damaged."""
    try:
        data = memoryview(store.get(ref))
    except FileNotFoundError:
        return None
    return data if digest(data) == seal else None

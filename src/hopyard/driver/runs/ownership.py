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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hopyard.core.runs.machine import Machine
from hopyard.driver.runs.recovery import Earlier, named
from hopyard.driver.runs.run import About, place
from hopyard.spec import Ref
from hopyard.store.journal import read, write_whole
from hopyard.store.layout import Layout
from hopyard.store.states import FsspecStore, LocalStore, claim, open_store
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
    parent = inside or ("" if _is_inside(beside) else beside.rstrip("/").rpartition("/")[0])
    if not parent:
        return f"{layout.states.name}-{secrets.token_hex(4)}"
    name = f"{layout.root.absolute().name}-{secrets.token_hex(4)}"
    return f"{parent.rstrip('/')}/{name}" if "://" in parent else str(Path(parent).absolute() / name)


def parent_of(store: str) -> str:
    """What `store=` was, by what `run.json` has."""
    return "" if _is_inside(store) else store.rpartition("/")[0]


def _is_inside(store: str) -> bool:
    return "://" not in store and not Path(store).is_absolute()


def take_new(layout: Layout, about: About) -> tuple[About, Owned]:
    """A folder for a new run; the caller holds the lock of the run directory, and writes `run.json`."""
    store = open_store(place(layout, about))
    if store.refs():  # of a run whose journal is not there any longer
        about = msgspec.structs.replace(about, store=new_folder(layout, about.store))
        store = open_store(place(layout, about))
    mark = secrets.token_hex(8)
    claim(store, store.marks(), mark)
    return about, Owned(place(layout, about), mark)


def take_over(layout: Layout, about: About, machine: Machine, earlier: Earlier) -> Owned:
    """The folder of the States of a run that goes on: its own; or, where another run has it, a new one with copies of
    what this one needs, which `run.json` then names. The caller holds the lock of the run directory."""
    store, mark = open_store(place(layout, about)), secrets.token_hex(8)
    states = [state for trial in machine.trials.values() for state in trial.states.values() if state.digest]
    kept = {state.ref: state.digest for state in states}
    known = earlier.marks
    marks = {} if known & about.marks.keys() else about.marks  # what came before a mark in the journal is over
    sizes = store.sizes()
    there = set(sizes)
    if there == named(read(layout.journal), there) and not _is_copy(layout, about, earlier.directories, marks):
        about = msgspec.structs.replace(about, marks={**marks, mark: here(layout)})
        write_whole(layout.about, msgspec.json.encode(about))
        if claim(store, known | marks.keys(), mark):
            damaged = {state.ref for state in states if sizes.get(state.ref, state.bytes) != state.bytes}
            for ref in damaged:  # or it would stand where the one that is made again is put
                log.warning("the stored State %s is damaged: it has %d bytes; it is made again", ref, sizes[ref])
                store.delete(ref)
            return Owned(place(layout, about), mark, tuple(sorted(kept.keys() - there | damaged, key=str)))
    about = msgspec.structs.replace(about, store=new_folder(layout, about.store), marks={mark: here(layout)})
    own = open_store(place(layout, about))
    gone = tuple(ref for ref, seal in kept.items() if not _copied(store, own, ref, seal))
    claim(own, (), mark)
    write_whole(layout.about, msgspec.json.encode(about))
    log.warning(
        "%s: the folder of its States is another run's by now; %d of the %d that it needs were copied to %s%s",
        *(layout.root, len(kept) - len(gone), len(kept), place(layout, about)),
        ", the others are made again" if gone else "",
    )
    return Owned(place(layout, about), mark, gone)


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


def _copied(store: LocalStore | FsspecStore, own: LocalStore | FsspecStore, ref: Ref, seal: str) -> bool:
    try:
        data = memoryview(store.get(ref))
    except FileNotFoundError:
        return False
    if digest(data) != seal:
        return False
    own.put(ref, data)
    return True

"""What the files of a run directory say of the run: `run.json`, `manifest.json`, and where its States are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest, difference
from hopyard.driver.directory import not_whole
from hopyard.errors import DataError, RunDirectoryError
from hopyard.spec import Encrypt
from hopyard.store.layout import Layout


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: plain facts, read without unpickling anything."""

    hopyard: str
    python: str
    started: float
    engine: str
    workers: int
    threads: int
    store: str
    """URL or absolute path, or the name of a folder inside the run directory; empty: its folder `states`."""
    data: str
    """Digest of the data."""
    rows: int
    sources: list[str]
    split: str = ""
    """What decided which rows validate, and which partition a row is in."""
    recipe: str
    """Name of the recipe's function."""
    backend: str = ""
    """Keras' backend, where the engine names one."""
    encrypt: Encrypt = False
    """Whether States are encrypted on the network."""
    digests: dict[str, str] = {}
    """Digests of recipe, space and search; empty: it has none."""
    recipes: dict[str, str] = {}
    """Recipes with which failed trials began anew: digest → name."""
    track: tuple[str, ...] = ()
    """Trackers that followers bring the run to, without passwords."""
    marks: dict[str, str] = {}
    """Marks of drivers that ended before their journal had them → the run directory, as the journal names it."""


def about_of(layout: Layout) -> About:
    """Read `run.json`.

    Raises:
        RunDirectoryError: it is not there, or not readable.
    """
    try:
        return msgspec.json.decode(layout.about.read_bytes(), type=About)
    except (OSError, msgspec.MsgspecError) as error:
        raise not_whole(layout.about, error) from error


def manifest_of(layout: Layout) -> Manifest:
    """Read `manifest.json`; the rows need not be there.

    Raises:
        RunDirectoryError: it is not there, or not readable.
        DataError: it is of a newer version.
    """
    try:
        return Manifest.load(layout.manifest, check=False)
    except DataError as error:
        if not isinstance(error.__cause__, Exception):
            raise
        raise not_whole(layout.manifest, error.__cause__) from error


def states_url(layout: Layout, about: About) -> str:
    """Return where the States are. Those inside the run directory go along with it: a copy of a run has its own."""
    folder = about.store or layout.states.name
    if "://" in folder or Path(folder).is_absolute():
        return folder
    return f"{layout.url or layout.root}/{folder}"


def same_data(layout: Layout, data: Dataset) -> Manifest:
    """Return the partitions that the run was started with; they are made again if they were evicted."""
    original = manifest_of(layout)
    current = data.prepare()
    if differs := difference(original, current):
        raise RunDirectoryError(
            f"{layout.root}: the data has changed since the run was started {differs} (digest {current.digest[:16]}, "
            f"was {original.digest[:16]}): restore it, or start another run"
        )
    return current

"""The cache of prepared partitions: one directory per key, safe between processes, bounded.

    <root>/<key>/manifest.json, train-00000/inputs-0.npy, …      an entry; appears by one rename, never changes
    <root>/.tmp-<key>-<random>/                                   an entry that is being made
    <root>/locks/<key>.make                                       exclusive while it is made or evicted
    <root>/locks/<key>.use                                        shared by whoever pins it, exclusive while evicted

All locks are `flock`s on files, which the kernel releases when a process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import logging
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hopyard import meter
from hopyard.data.manifest import FILE, Manifest, ManifestHead, PartitionInfo, all_files, folder_name, read_manifest
from hopyard.data.npy import HEADER, compare
from hopyard.data.shared.needed import needed
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.filesystems import Directory, is_there, open_url
from hopyard.folders import cache_folder
from hopyard.system.files import FULL, still_there, total_bytes
from hopyard.system.limits import remedy

log = logging.getLogger(__name__)

STALE_SECONDS = 30 * 86_400.0
"""An entry that nobody has used for so long is removed."""
KILLED_SECONDS = 86_400.0
"""A folder that Spark's tasks wrote to, and that has no manifest after so long, is removed."""
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
"""Errors that say that a folder is another user's, read-only, or not a folder."""
_ROWS = re.compile(r"spark-([0-9A-Za-z][0-9A-Za-z._-]*-)?[0-9a-f]{24,32}")
"""Names of the folders that Dataset.spark makes."""
_WRITTEN = re.compile(
    rf"\.part-.+|\.needed-.+|{re.escape(FILE)}|index-[0-9a-f]{{64}}\.json"
    r"|[0-9a-f]{12}-(probe|[0-9a-f]{16}\.copies|\d{5,}-[0-9a-f]{12}\.seg)"
)
"""Names of the files in these folders."""
THREADS = 8
"""How many threads compare the partitions of an entry."""


def default_root() -> Path:
    """Return the cache of this user on this host. Raises as `cache_folder`."""
    return cache_folder() / "data"


class Pin:
    """A shared lock on an entry: as long as it lives, nobody evicts the entry. `close` may be called twice."""

    def __init__(self, file: int) -> None:
        self._close = weakref.finalize(self, os.close, file)

    def close(self) -> None:
        """Releases the lock."""
        self._close()


def pin(root: Path, key: str) -> Pin | None:
    """Pins the entry `key` and marks it as used now; None when there is none."""
    if not (root / key / FILE).is_file():
        return None
    file = _lock(root, f"{key}.use", fcntl.LOCK_SH)
    assert file is not None
    try:
        os.utime(root / key / FILE)
    except FileNotFoundError:  # evicted between the two lines above
        os.close(file)
        return None
    except PermissionError:  # another user's, who alone may mark it
        pass
    return Pin(file)


def find_or_make(root: Path, key: str, make: Callable[[Path], Manifest], limit: int) -> Manifest:
    """Return the manifest of entry `key`. If there is none, one process calls `make(empty directory)`; others wait.

    An existing entry is read in full, once in each process, to check that it holds what was written (about 2 GB/s a
    core); a damaged one is made again, which is logged.

    The entry is pinned for as long as the Manifest object lives. After making one, the least recently used entries are
    evicted until all take at most `limit` bytes, but never one that is pinned.

    Raises:
        ResourceError: no room, or the folder cannot be written; what was written is removed.
        What `make` raises; what was written is removed.
    """
    with usable(root):
        if (manifest := _entry(root, key)) is not None:
            return manifest
        with making(root, key):
            if (manifest := _entry(root, key, warn=True)) is None:
                with scratch(root, key) as directory:
                    adopt(root, key, directory, make(directory))
                manifest = _entry(root, key)
        evict(root, limit)  # not the new entry, which `manifest` pins
    if manifest is None:
        raise DataError(f"{root / key} was deleted while it was made; call prepare() again")
    return manifest


def adopt(root: Path, key: str, directory: Path, manifest: Manifest) -> None:
    """Makes `directory` the entry `key`; the caller is `making` it."""
    manifest.key, manifest.path = key, str(root / key)
    with usable(root):
        manifest.save(directory / FILE)
        if (root / key).is_dir():  # without a readable manifest
            shutil.rmtree(root / key)
        else:
            (root / key).unlink(missing_ok=True)  # a file of somebody else's
        directory.rename(root / key)


@contextmanager
def making(root: Path, key: str) -> Iterator[None]:
    """Lets one process at a time make or evict `key`. A process that waits reports progress while the entry grows."""
    pause, last_size = 0.01, 0
    while (file := _lock(root, f"{key}.make", fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
        if pause == 0.5:
            size = sum(total_bytes(folder) for folder in root.glob(f".tmp-{key}-*"))
            if size != last_size:
                meter.advance()
            last_size = size
    try:
        yield
    finally:
        os.close(file)


@contextmanager
def scratch(root: Path, key: str) -> Iterator[Path]:
    """An empty directory beside the entries, removed at the end if it is still there. The caller is `making` `key`."""
    for leftover in root.glob(f".tmp-{key}-*"):  # of a process that was killed: we hold its lock
        shutil.rmtree(leftover, ignore_errors=True)
    with usable(root):
        directory = Path(tempfile.mkdtemp(prefix=f".tmp-{key}-", dir=root))
    try:
        with usable(root):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def usable(root: Path) -> Iterator[None]:
    """Turn errors for what the host lacks ("no space", "too many open files"), and "not allowed" for what is in `root`
    or leads there, into ResourceError."""
    try:
        yield
    except OSError as error:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if error.errno in CLOSED and any(name.startswith(str(root)) or str(root).startswith(name) for name in names):
            raise ResourceError(
                f"the data cache in {root} cannot be used ({error.strerror}: {error.filename}): this user needs to "
                f"write there; set XDG_CACHE_HOME to a directory of your own, or call prepare(cache=) with one"
            ) from error
        if error.errno not in FULL:
            if advice := remedy(error):
                raise ResourceError(
                    f"the data cache in {root} cannot be used now ({error.strerror}: {error.filename}): {advice}"
                ) from error
            raise
        nearest = next(folder for folder in (root, *root.parents) if folder.exists())
        raise ResourceError(
            f"no room for the data cache in {root} ({error.strerror}, {shutil.disk_usage(nearest).free:,} bytes free); "
            f"what was written of this entry is removed; free some, or call prepare(cache=) with another directory"
        ) from error


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a cache.

    Attributes:
        path: its directory.
        bytes: size of all its files.
        used: when it was last used, in seconds since the epoch of Unix.
        runs: the run directories that may still need it.
    """

    path: Path
    bytes: int
    used: float
    runs: list[str]

    def remove(self) -> bool:
        """Removes the entry unless somebody makes or pins it. Returns whether it was removed."""
        return _remove(self.path.parent, self.path.name, self.path)


def entries(root: Path) -> list[Entry]:
    """Return all entries of the cache at `root`, least recently used first; anything else there is skipped."""
    result = []
    for path in root.glob(f"*/{FILE}"):
        try:
            if not _is_entry(path.parent.name, path.read_bytes()):
                continue
            size = total_bytes(path.parent)
            result.append(Entry(path.parent, size, path.stat().st_mtime, needed(path.parent)))
        except FileNotFoundError:  # another process evicts as well
            continue
    return sorted(result, key=lambda entry: entry.used)


def _is_entry(name: str, data: bytes) -> bool:
    """Whether a folder of this name with this manifest is one that a cache has, of whatever version."""
    try:
        manifest = msgspec.json.decode(data, type=ManifestHead)
    except msgspec.MsgspecError:
        return False
    return manifest.key == name or (manifest.stored is not None and _ROWS.fullmatch(name) is not None)


def is_pinned(path: Path) -> bool:
    """Whether a process pins or makes the entry there."""
    with _alone(path.parent, path.name) as alone:
        return not alone


def sweep(root: Path) -> None:
    """Removes the files of processes that were killed."""
    for leftover in root.glob(".tmp-*-*"):
        _remove(root, leftover.name[5:].rpartition("-")[0], leftover)
    for leftover in root.glob("spark-*"):  # of a driver that was killed before there was a manifest
        with suppress(OSError):
            young = time.time() - leftover.stat().st_mtime <= KILLED_SECONDS
            if (
                not young
                and not (leftover / FILE).exists()
                and _is_begun(leftover.name, [file.name for file in leftover.iterdir()])
            ):
                _remove(root, leftover.name, leftover)


def evict(root: Path, limit: int) -> None:
    """Removes entries that nobody has used for STALE_SECONDS; then the least recently used ones until all take at most
    `limit` bytes; and files of killed processes. Never one that is pinned, or that a run needs that may go on."""
    sweep(root)
    oldest_first = entries(root)
    total = sum(entry.bytes for entry in oldest_first)
    for entry in oldest_first:
        stale = time.time() - entry.used > STALE_SECONDS
        if (stale or total > limit) and not entry.runs and entry.remove():
            total -= entry.bytes


def rows_in(path: str) -> list[str]:
    """Return the folders of rows that Dataset.spark(…, path=path) made there; or `path` itself, if it is one. Raises
    as `reaching`."""
    with reaching(path, "read"):
        if _are_rows(shared_directory(path)):
            return [path]
        files, root = open_url(path)
        listing: list[Any] = files.ls(root, detail=True) if is_there(files, root) else []
        names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in listing if entry["type"] == "directory"]
        urls = sorted(f"{path}/{name}" for name in names if _ROWS.fullmatch(name))
        return [url for url in urls if _are_rows(shared_directory(url))]


def _are_rows(folder: Directory) -> bool:
    """Whether Dataset.spark wrote the files in a folder, or began to. Files of others must never be removed."""
    names = folder.sizes()
    if FILE not in names:
        return _is_begun(folder.url.rpartition("/")[2], names)
    try:
        manifest = read_manifest(folder.get(FILE))
    except msgspec.MsgspecError:
        return False
    return manifest.stored is not None and manifest.stored.file in names  # a run directory has a copy, and no index


def _is_begun(name: str, files: Iterable[str]) -> bool:
    """Whether tasks have written to a folder, and their driver was killed before it wrote the manifest."""
    return _ROWS.fullmatch(name) is not None and all(_WRITTEN.fullmatch(file) for file in files)


def remove_rows(url: str) -> None:
    """Removes the rows that Dataset.spark wrote to a folder, and the partitions of them that this host has fetched.

    Raises:
        SpecError: somebody else wrote the files there, or they cannot be removed.
    """
    folder = shared_directory(url)
    with reaching(url, "remove"):
        if not _are_rows(folder):
            raise SpecError(f"{url} is no folder of rows that Dataset.spark wrote; nothing is removed")
        names = sorted(folder.sizes(), key=lambda name: name != FILE)  # first what makes it a data set
        key = read_manifest(folder.get(FILE)).key if FILE in names else ""
        for name in filter(_WRITTEN.fullmatch, names):
            folder.remove(name)
        folder.drop()
    for kind in ("train", "validate") if key else ():
        for path in default_root().glob(f"{glob.escape(key)}-{kind}-*"):
            _remove(path.parent, path.name, path)


def compare_part(folder: Path, manifest: Manifest, part: PartitionInfo) -> None:
    """Raises as `compare` where a file of a partition does not hold what was written."""
    for name, digest in zip(all_files(manifest.fields), part.files, strict=True):
        compare(folder / name, digest)


def _entry(root: Path, key: str, warn: bool = False) -> Manifest | None:
    pinned = pin(root, key)
    if pinned is None:
        return None
    try:
        manifest = Manifest.load(root / key / FILE, check=False)
    except DataError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None  # of the host, not of the manifest
        return None  # no manifest, so treated as missing
    manifest.path = str(root / key)
    if fault := _fault(manifest):
        if warn:
            log.warning(
                "the prepared rows in %s are damaged (%s): they are made again where their source is at hand",
                root / key,
                fault,
            )
        return None
    weakref.finalize(manifest, pinned.close)
    return manifest


def _fault(manifest: Manifest) -> str:
    """Return what is wrong with the files of an entry; "" where they hold what was written. A power failure soon after
    writing can leave them short, and a disk can flip bits."""
    parts = [
        (Path(manifest.path) / folder_name(kind, number), part)
        for kind, infos in (("train", manifest.train), ("validate", manifest.validate))
        for number, part in enumerate(infos)
    ]
    for folder, part in parts:
        files = list(folder.glob("*.npy"))
        if sum(file.stat().st_size for file in files) != part.bytes + HEADER * len(files) or not files:
            return f"{folder.name} is not as long as it was"
    try:
        with ThreadPoolExecutor(THREADS, "hopyard-compare") as pool:
            list(pool.map(lambda one: compare_part(one[0], manifest, one[1]), parts))
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    return ""


def _lock(root: Path, name: str, operation: int) -> int | None:
    """Return the descriptor of the locked file; None when `operation` has LOCK_NB and somebody else holds the lock."""
    folder = root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, operation)
            if still_there(file, folder / name):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except OSError as error:
            os.close(file)
            raise ResourceError(f"{folder} cannot be locked ({error}); prepare(cache=) needs a local disk") from error
        os.close(file)  # removed by an evictor between open and lock: that lock protects nothing


def _remove(root: Path, key: str, path: Path) -> bool:
    """Removes `path`, which belongs to `key`, unless somebody makes or pins it."""
    with _alone(root, key) as alone:
        if alone:
            if not path.name.startswith("."):
                path = path.rename(root / f".tmp-{key}-{os.getpid()}")  # disappears at once for all processes
            shutil.rmtree(path, ignore_errors=True)
            for kind in ("use", "make"):
                (root / "locks" / f"{key}.{kind}").unlink(missing_ok=True)
        return alone


@contextmanager
def _alone(root: Path, key: str) -> Iterator[bool]:
    """Hold both locks of `key`, and say whether nobody else makes or pins it; else hold none."""
    with ExitStack() as locks:
        for kind in ("make", "use"):
            file = _lock(root, f"{key}.{kind}", fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file is None:
                yield False
                return
            locks.callback(os.close, file)
        yield True

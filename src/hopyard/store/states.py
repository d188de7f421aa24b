"""Where States are kept: a local directory, or any URL that fsspec can open.

Both are put-if-absent under the State's address, where other bytes are refused. The reader compares the digest: this
module knows nothing of what is in the bytes. A State is there whole or not at all, also after a power cut: a local file
is written under a temporary name, synced, renamed, and its directory synced. Object stores give the same by themselves:
an upload is seen when it is complete.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from hopyard import meter
from hopyard.checks import without_scheme
from hopyard.errors import ResourceError, SpecError
from hopyard.filesystems import PART, Directory, full, reaching
from hopyard.spec import Ref
from hopyard.store.guard import StateConflict
from hopyard.store.room import room
from hopyard.store.tree import digest
from hopyard.system.files import sync_directory

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.safetensors")
_MARK = ".run-"
"""Prefix of the files that `sign` leaves."""

_OWNER = ".owner-"
"""Prefix of the files that `claim` leaves; number and id of a driver follow."""

_PIECE = 64 << 20
"""Bytes of one call to write: each is counted."""

_BLOCK = 8 << 20
"""Bytes of one call to read from fsspec: each is counted. A slow network has to end one within half a minute, or the
store counts as away."""

_LACKING = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
"""What `rename` raises where the file system has no such operation."""

_PRIVATE = {"memory"}
"""Protocols of file systems in the memory of one process."""


def address(url: str, ref: Ref) -> str:
    """Return the address of one State in the store at `url`."""
    return f"{url.rstrip('/')}/{_file(ref)}"


def private(url: str) -> bool:
    """Whether what is stored at `url` lives in the memory of the process that stores it, where no other sees it."""
    return any(part.partition("://")[0] in _PRIVATE for part in url.split("::") if "://" in part)


def open_store(url: str | Path, make: bool = True) -> LocalStore | FsspecStore:
    """Return the store at `url`: a path, or any URL that fsspec knows.

    Args:
        url: the URL of the store.
        make: make its folder when it is missing. A worker must not: where a file server is not mounted, it would make
            one in its place.

    Raises:
        SpecError: it cannot be opened; names the cause. Or its file system takes it for another folder.
        ResourceError: no room there.
    """
    text = without_scheme(os.fspath(url))
    with reaching(text, "open", SpecError, "store", "it must be a path or a URL where folders can be made"):
        return FsspecStore(text, make) if "://" in text else LocalStore(Path(text), make)


def sign(url: str, run: str) -> None:
    """Leave a mark of this driver, so that a worker can tell whether it sees the same place (`signed`)."""
    directory = Directory(url)
    directory.make()
    directory.put(f"{_MARK}{run}", b"")


def signed(url: str, run: str) -> bool:
    """Whether the place at `url` is the one that the driver sees, and can be written from here. Never raises."""
    try:
        directory = Directory(url)
        if not directory.has(f"{_MARK}{run}"):
            return False
        probe = f"{_MARK}{run}-{secrets.token_hex(4)}"
        directory.put(probe, b"")
        directory.remove(probe)
        return True
    except Exception:  # noqa: BLE001 - no package, no rights, no network: it cannot be reached from here
        return False


def unsign(url: str, run: str) -> None:
    """Remove the mark. Never raises: the next driver sweeps what is left."""
    try:
        Directory(url).remove(f"{_MARK}{run}")
    except Exception as error:  # noqa: BLE001 - the run is over, and whole
        log.warning("%s: the mark of this driver stays there: %s", url, error)


def claim(store: LocalStore | FsspecStore, own_marks: Collection[str], mark: str) -> bool:
    """Take a folder of States over: put the mark `mark` into it, newer than those that are there.

    Of several drivers that try at once at most one succeeds. A driver that is killed in between leaves a mark that
    nobody knows, and the next one does not own the folder.

    Args:
        store: the folder.
        own_marks: the marks that this run has put into it.
        mark: a new id.

    Returns:
        Whether this run owns it: the newest mark was one of its own, or there was none. Else nothing has changed.
    """
    marks = store.marks()
    newest = max(marks.values(), default=0)
    if any(number == newest and name not in own_marks for name, number in marks.items()):
        return False
    store.mark(mark, newest + 1)
    if any(number > newest and name != mark for name, number in store.marks().items()):  # at the same time
        store.unmark(mark, newest + 1)
        return False
    for name, number in marks.items():
        store.unmark(name, number)
    return True


def is_mark(name: str) -> bool:
    """Whether a file is a mark of `claim`."""
    return name.startswith(_OWNER)


def owner_of(url: str) -> str:
    """Return the mark that was put last into a folder by `claim`; "" where there is none."""
    marks = FsspecStore(url, make=False).marks()
    return max(marks, key=lambda mark: marks[mark], default="")


def disown(url: str, mark: str) -> None:
    """Remove a mark that `claim` put. Never raises: the next owner takes over what is left."""
    try:
        store = FsspecStore(url, make=False)
        if (number := store.marks().get(mark)) is not None:
            store.unmark(mark, number)
    except Exception as error:  # noqa: BLE001 - the program is over, and whole
        log.warning("%s: the mark of this driver stays there: %s", url, error)


def _marks(names: Iterable[str]) -> dict[str, int]:
    """Return id → number of the marks among `names`."""
    pairs = [name.removeprefix(_OWNER).split("-", 1) for name in names if name.startswith(_OWNER)]
    return {parts[1]: int(parts[0]) for parts in pairs if len(parts) == 2 and parts[0].isdecimal()}


def _file(ref: Ref) -> str:
    return f"{ref}.safetensors"


def _ref(name: str) -> Ref | None:
    match = _NAME.fullmatch(name)
    return Ref(*map(int, match.groups())) if match else None


def _require_equal(ref: Ref, stored: memoryview | bytearray, data: memoryview, location: str) -> None:
    """Raise StateConflict unless the State that is stored under an address is the one to be stored there."""
    if len(stored) != data.nbytes or digest(stored) != digest(data):
        raise StateConflict(
            f"State {ref} is in {location} already, with other bytes ({len(stored)} of them, not {data.nbytes}): "
            "another run stores its States there; give each run a folder of its own"
        )


@contextmanager
def _room(ref: Ref, size: int, location: str) -> Iterator[None]:
    """Turn "the disk is full" into a ResourceError. The driver, which knows the run, says what to do then."""
    try:
        yield
    except Exception as error:
        if not (detail := full(error)):
            raise
        raise ResourceError(f"no room for State {ref} ({size} bytes) in {location} ({detail})") from error


class LocalStore:
    """States as files of one directory, which is made with mode 0700. Any number of processes may use it at once."""

    def __init__(self, directory: Path, make: bool = True) -> None:
        self.directory = directory
        if make:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync; does nothing where the same bytes are stored. Raises ResourceError, leaving nothing behind,
        or StateConflict."""
        path = self.directory / _file(ref)
        with _room(ref, data.nbytes, str(self.directory)):
            if self.has(ref) and (self._renames or path.stat().st_size == data.nbytes):
                return _require_equal(ref, self.get(ref), data, str(self.directory))
            part = self.directory / f"{PART}{ref}-{secrets.token_hex(4)}" if self._renames else path
            try:
                _write(part, data, os.O_EXCL if self._renames else os.O_TRUNC)
                # Two writers of one address would have to hold the same lease, so looking first is enough; a hard
                # link would be atomic, but not every file system has them.
                if self._renames:
                    part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            sync_directory(self.directory)

    @cached_property
    def _renames(self) -> bool:
        """Whether files can be renamed there. Where they cannot, as in mounted buckets, a State is written under its
        own name. Readers know it from the journal, once it is whole; half a State is written over."""
        probe = self.directory / f"{PART}{secrets.token_hex(4)}"
        probe.touch()
        try:
            probe = probe.rename(probe.with_suffix(".renamed"))  # Linux asks no file system for a rename to itself
        except OSError as error:
            if error.errno in _LACKING:
                return False
            raise
        finally:
            probe.unlink(missing_ok=True)
        return True

    def get(self, ref: Ref) -> memoryview:
        """Return the bytes as stored. Raises FileNotFoundError."""
        if not self.directory.is_dir():  # a file server that is not mounted: the State is not gone
            raise OSError(errno.ENOTDIR, "the folder of the States is not there", str(self.directory))
        with (self.directory / _file(ref)).open("rb", buffering=0) as file:
            data, at = room(os.fstat(file.fileno()).st_size), 0
            while at < len(data):
                count = file.readinto(data[at:])  # at most 2 GB come at once
                if not count:
                    raise OSError(errno.EIO, f"State {ref} ends at byte {at} of {len(data)}", str(self.directory))
                at += count
                meter.moved(count)
        return data

    def has(self, ref: Ref) -> bool:
        """Whether it is stored."""
        return (self.directory / _file(ref)).exists()

    def delete(self, ref: Ref) -> None:
        """Delete a State; no error when it is not there."""
        (self.directory / _file(ref)).unlink(missing_ok=True)

    def refs(self) -> set[Ref]:
        """Return all that is stored; one listing of the directory."""
        return {ref for name in os.listdir(self.directory) if (ref := _ref(name))}  # noqa: PTH208 (3× faster)

    def sizes(self) -> dict[Ref, int]:
        """Return the bytes of each State that is stored."""
        with os.scandir(self.directory) as entries:
            return {ref: entry.stat().st_size for entry in entries if (ref := _ref(entry.name))}

    def marks(self) -> dict[str, int]:
        """Return the marks of drivers: id → number; the largest is the newest."""
        return _marks(os.listdir(self.directory))  # noqa: PTH208

    def mark(self, name: str, number: int) -> None:
        """Leave a mark; it is on disk when this returns."""
        (self.directory / f"{_OWNER}{number}-{name}").touch()
        sync_directory(self.directory)

    def unmark(self, name: str, number: int) -> None:
        """Remove a mark; no error when it is not there."""
        (self.directory / f"{_OWNER}{number}-{name}").unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove what a crash left half written; only while nobody writes. Returns the number of files."""
        parts = [*self.directory.glob(f"{PART}*"), *self.directory.glob(f"{_MARK}*")]
        for part in parts:
            part.unlink(missing_ok=True)
        return len(parts)


def _write(path: Path, data: memoryview, flag: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flag | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        view, at = data.cast("B"), 0
        while at < view.nbytes:
            count = os.write(fd, view[at : at + _PIECE])
            at += count
            meter.moved(count)
        os.fsync(fd)
    finally:
        os.close(fd)


class FsspecStore:
    """States as objects under a URL: S3, GCS, HDFS, …. Each put costs one look more, so that what is stored stays."""

    def __init__(self, url: str, make: bool = True) -> None:
        self.url = url
        self._directory = Directory(url)
        name = posixpath.basename(url.rstrip("/"))
        if self._directory.root and posixpath.basename(self._directory.root) != name:
            raise SpecError(
                f"store: {url} is the folder {self._directory.root} to its file system, which takes a part of the URL "
                'for something else, and runs would share it; give store= a URL without "?" and "#"'
            )
        if make:
            self._directory.make()

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store; does nothing where the same bytes are stored. Raises ResourceError, leaving nothing behind, or
        StateConflict."""
        if self.has(ref):
            return _require_equal(ref, self.get(ref), data, self.url)
        with _room(ref, data.nbytes, self.url):
            self._directory.put(_file(ref), bytes(data))

    def get(self, ref: Ref) -> bytearray:
        """Return the bytes as stored. Raises FileNotFoundError."""
        data = bytearray()
        for block in self._directory.blocks(_file(ref), _BLOCK):
            data += block
            meter.moved(len(block))
        return data

    def has(self, ref: Ref) -> bool:
        """Whether it is stored."""
        return self._directory.has(_file(ref))

    def delete(self, ref: Ref) -> None:
        """Delete a State; no error when it is not there."""
        self._directory.remove(_file(ref))

    def refs(self) -> set[Ref]:
        """Return all that is stored; one listing of the URL, never from a cache."""
        return {ref for name in self._directory.sizes() if (ref := _ref(name))}

    def sizes(self) -> dict[Ref, int]:
        """Return the bytes of each State that is stored; one listing of the URL, never from a cache."""
        return {ref: size for name, size in self._directory.sizes().items() if (ref := _ref(name))}

    def marks(self) -> dict[str, int]:
        """Return the marks of drivers: id → number; the largest is the newest."""
        return _marks(self._directory.sizes())

    def mark(self, name: str, number: int) -> None:
        """Leave a mark."""
        self._directory.put(f"{_OWNER}{number}-{name}", b"")

    def unmark(self, name: str, number: int) -> None:
        """Remove a mark; no error when it is not there."""
        self._directory.remove(f"{_OWNER}{number}-{name}")

    def sweep(self) -> int:
        """Remove what a crash left half written; only while nobody writes. Returns the number of files."""
        parts = [name for name in self._directory.sizes() if name.startswith((PART, _MARK))]
        for name in parts:
            self._directory.remove(name)
        return len(parts)

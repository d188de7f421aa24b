"""Shared memory between the agents of one host: a State is laid by the agent that made it and taken by any other.

A fresh file of 100 MB costs 25–47 ms, most of it page faults; a copy into one that is mapped already costs 6–7. So an
agent keeps its files and uses them again, oldest first, once their State is *settled*. Readers ask nobody: each file
begins with a header of 64 bytes,

    magic (8 bytes) | counter | trial | step | attempt | length     little-endian, 8 bytes each

whose counter is odd while the file is written and has changed when it was written again (a sequence lock). A reader
checks address and counter, copies, and checks the counter again; when it has changed, the State is taken from the
store, where it is by then: it was settled. (Stores of one thread are seen in order on x86. Elsewhere the same holds
between the calls that lie between here, but it is the digest that vouches for a durable State.)

One writer for each file, the `Arena` that made it; any number of readers. Whose folder it is, is known by a lock that
the kernel drops with the last process of the run: see `Folder`.

Source: the sequence lock is that of Lameter, "Effective Synchronization on Linux/NUMA Systems", 2005, §3; we differ:
a reader that loses does not try again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.system.files import FULL
from hopyard.system.locks import still_there

_log = logging.getLogger(__name__)

_MAGIC = b"hopyard1"
_HEAD = struct.Struct("<8sQqqqq")
_COUNTER = struct.Struct("<Q")
_COUNTER_AT = 8
HEADER = 64
"""Bytes before the State: it is as aligned in shared memory as in a buffer of its own."""

_SMALLEST = 1 << 16
_FILES = 256
"""Files of one arena: enough for the States of many small trials, few enough for the limit on open mappings."""

_WORD = re.compile(r"(\d+-[0-9a-f]{8}-\d+)\.(\d+)")
"""slot, a number drawn by the arena, file; counter. Words of other agents are matched before they become a path. Files
are used again, words never: what is said late of a State does not touch the one that lies in its file by then."""

_NO_ROOM = (*FULL, errno.ENOMEM, errno.ENOENT, errno.EMFILE, errno.ENFILE)
"""What makes a State go by the store alone. ENOENT: the folder was swept, the run is over."""

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class Writable(Protocol):
    """What can be laid: `tree.Layout`, for one."""

    @property
    def total(self) -> int:
        """Bytes."""
        ...

    def write(self, buffer: memoryview) -> None:
        """Copy all of it to `buffer`."""
        ...


@dataclass(slots=True, eq=False)
class _File:
    name: str
    map: mmap.mmap
    counter: int = 0
    length: int = 0
    settled: bool = False
    removed: bool = False
    """Nobody can open it any more; it goes when it is settled."""


class Arena:
    """The files of one agent. It owns them; `lay` (the worker's thread), `settle` and `view` (the sealing thread) may
    be called at the same time.

    Args:
        directory: for all agents of the run on this host, for example `Folder.path`; made when missing, mode 0700.
        slot: of this agent. Files of an earlier agent of the same slot are removed.
        limit_bytes: of all files together.
        keep: how many settled States stay readable before the file of the oldest is used again, room permitting; for
            callers that settle what is durable though another agent may still be about to take it.
        renew: makes `directory` again where somebody has removed it (systemd does when a user logs out, with
            `RemoveIPC=yes`).
    """

    def __init__(
        self,
        directory: Path,
        slot: int,
        limit_bytes: int,
        keep: int = 0,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._root = str(directory)
        self._renew = renew
        self._prefix = f"{slot}-{secrets.token_hex(4)}"
        self._limit = limit_bytes
        self._keep = keep
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()  # in the order in which they were laid
        self._made = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._identity = _identity(directory)
        for left in directory.glob(f"{slot}-*"):
            left.unlink(missing_ok=True)

    def lay(self, ref: Ref, layout: Writable) -> str:
        """Copy a State in; gives the word under which `take` finds it, "" when there is no room: then it goes by the
        store alone. 6–7 ms for 100 MB into a file that is there, 25–47 into a new one."""
        file = self._find(layout.total)
        if file is None:
            return ""
        # odd: whoever reads now sees that it is being written
        _COUNTER.pack_into(file.map, _COUNTER_AT, file.counter + 1)
        file.length = layout.total
        _HEAD.pack_into(file.map, 0, _MAGIC, file.counter + 1, ref.trial, ref.step, ref.attempt, layout.total)
        try:
            with memoryview(file.map) as whole, whole[HEADER : HEADER + layout.total] as place:
                layout.write(place)
        except BaseException:
            with self._lock:
                file.settled = True  # the counter stays odd until the next State is whole
            raise
        file.counter += 2
        _COUNTER.pack_into(file.map, _COUNTER_AT, file.counter)
        return f"{file.name}.{file.counter}"

    def own(self, where: str, ref: Ref) -> memoryview | None:
        """The State, if it was laid here and still is: also when its file was removed, the mapping has it."""
        with self._lock:
            file = self._at(where)
            if file is None:
                return None
            _, _, trial, step, attempt, length = _HEAD.unpack_from(file.map, 0)
            if (trial, step, attempt) != (ref.trial, ref.step, ref.attempt):
                return None
        return memoryview(file.map)[HEADER : HEADER + length].toreadonly()

    def view(self, where: str) -> memoryview:
        """The State as laid, to hash and to write from; good until `settle(where)`. KeyError when it is not here."""
        with self._lock:
            file = self._at(where)
        if file is None:
            raise KeyError(where)
        return memoryview(file.map)[HEADER : HEADER + file.length].toreadonly()

    def settle(self, where: str) -> None:
        """It is durable, or nobody needs it: the file may be used again. No error when it is not here."""
        with self._lock:
            file = self._at(where)
            if file is not None and file.removed:
                del self._files[file.name]
            elif file is not None:
                file.settled = True

    def close(self) -> None:
        """Remove all files."""
        with self._lock:
            files, self._files = list(self._files.values()), OrderedDict()
        for file in files:
            self._drop(file)

    def _at(self, where: str) -> _File | None:
        """The file of this word; None when another State lies in it by now."""
        name, _, counter = where.partition(".")
        file = self._files.get(name)
        return file if file is not None and str(file.counter) == counter else None

    def _find(self, total: int) -> _File | None:
        """A file for `total` bytes that nobody else will be given, mapped; None when there is no room."""
        size = _size_class(total + HEADER)
        with self._lock:
            if (file := self._ready(size)) is not None:
                return file  # it can be opened, so the folder is there: looked at once for each State, not twice
            if self._identity != _identity(self.directory):
                self._missed()
            settled = [file for file in self._files.values() if file.settled]
            bound = sum(len(file.map) for file in self._files.values() if not file.settled)
            if bound + size > self._limit or len(self._files) - len(settled) >= _FILES:
                return None
            fitting = self._fitting(size)
            while True:
                used = sum(len(file.map) for file in self._files.values())
                if used + size <= self._limit and len(self._files) < _FILES and (file := self._add(size)):
                    return file
                if not settled:
                    return None
                if large := [file for file in fitting or settled if len(file.map) >= size]:
                    return self._again(large[0])
                oldest = settled.pop(0)
                del self._files[oldest.name]
                self._drop(oldest)

    def _ready(self, size: int) -> _File | None:
        """The oldest file that may be used again for so many bytes; those that nobody can open any more are let go."""
        fitting = self._fitting(size)
        while len(fitting) > self._keep:
            file = fitting.pop(0)
            if self._opens(file):
                return self._again(file)
            del self._files[file.name]
        return None

    def _fitting(self, size: int) -> list[_File]:
        # one that is much too large would keep its room from States that need it
        return [file for file in self._files.values() if file.settled and size <= len(file.map) <= 2 * size]

    def _opens(self, file: _File) -> bool:
        """Whether others can still open it."""
        return os.path.exists(f"{self._root}/{file.name}")  # noqa: PTH110 - a Path costs as much as the call itself

    def _missed(self) -> None:
        """The folder is not the one that it was. Files that went with it are of no use for States to come; what lies in
        them can still be stored."""
        for file in [file for file in self._files.values() if not self._opens(file)]:
            if file.settled:
                del self._files[file.name]
            file.removed = True
        if not self.directory.exists():
            _log.warning("%s was removed while the run goes on; it is made again", self.directory)
            try:
                self._renew()
            except (OSError, ResourceError) as error:
                _log.warning("States go by the store alone: %s", error)
        self._identity = _identity(self.directory)

    def _add(self, size: int) -> _File | None:
        name = f"{self._prefix}-{self._made}"
        try:
            file = _File(name, _new(self.directory / name, size))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            _log.info("no room for %d bytes of shared memory in %s: %s", size, self.directory, error)
            return None
        self._made += 1
        self._files[name] = file
        return file

    def _again(self, file: _File) -> _File:
        file.settled = False
        self._files.move_to_end(file.name)
        return file

    def _drop(self, file: _File) -> None:
        # the mapping goes when the last view of it does, here or in a reader
        (self.directory / file.name).unlink(missing_ok=True)


def _identity(directory: Path) -> tuple[int, int]:
    """Another one when a directory was removed and made again."""
    try:
        found = directory.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _size_class(size: int) -> int:
    """The next of 1, 1¼, 1½, 1¾ times a power of two: States of nearly the same size share files, ≤ 25 % is lost."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def _new(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes that are really there; else a full /dev/shm is a SIGBUS in the middle of a copy."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # macOS
            os.ftruncate(fd, size)
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | _POPULATE)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """A State in shared memory.

    Attributes:
        data: its bytes, read-only. They may change at any time: copy, then ask.
        intact: True when they had not changed yet; when False, what was copied is worth nothing, and decoding may
            have raised.
    """

    data: memoryview
    intact: Callable[[], bool]


class Reader:
    """Takes States out of the arenas of one host. It owns up to `mappings` mapped files, since mapping 100 MB anew
    costs as much as copying it; files that were removed are let go at the next look."""

    def __init__(self, mappings: int = 32) -> None:
        self._limit = mappings
        self._lock = threading.Lock()
        self._held: OrderedDict[Path, tuple[tuple[int, int], mmap.mmap]] = OrderedDict()

    def take(self, directory: Path, where: str, ref: Ref) -> Taken | None:
        """The State at `where`; None when it is gone, being written, or another one is there by now."""
        word = _WORD.fullmatch(where)
        held = self._open(directory / word[1]) if word else None
        if held is None or len(held) < HEADER:
            return None
        magic, counter, trial, step, attempt, length = _HEAD.unpack_from(held, 0)
        if magic != _MAGIC or counter % 2 or (trial, step, attempt) != (ref.trial, ref.step, ref.attempt):
            return None
        if not 0 <= length <= len(held) - HEADER:
            return None

        def intact() -> bool:
            return bool(_COUNTER.unpack_from(held, _COUNTER_AT)[0] == counter)

        # address and length may be of two different States, each written between our reads
        return Taken(memoryview(held)[HEADER : HEADER + length], intact) if intact() else None

    def _open(self, path: Path) -> mmap.mmap | None:
        with self._lock:
            try:
                known = path.stat()
            except OSError:
                self._held.pop(path, None)
                return None
            key = (known.st_dev, known.st_ino)
            if path in self._held and self._held[path][0] == key:
                self._held.move_to_end(path)
                return self._held[path][1]
            self._held.pop(path, None)
            for gone in [other for other in self._held if not other.exists()]:
                del self._held[gone]
            try:
                made = _map(path)
            except (OSError, ValueError):  # removed just now, or empty
                return None
            self._held[path] = (key, made)
            if len(self._held) > self._limit:
                self._held.popitem(last=False)
            return made


def _map(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def take(directory: Path, where: str, ref: Ref) -> Taken | None:
    """As `Reader.take`, by the one Reader of this process."""
    return _reader.take(directory, where, ref)


_reader = Reader()


class Folder:
    """The folder in shared memory of one run on this host, 0700. Driver and agents each hold one while they live.

    Each holds a shared lock of the kernel on a file in it. Whoever gets it exclusively knows that all of them are
    gone, however they ended, and removes the folder: the last one that closes, or the `sweep` of a later start.

    Args:
        root: where; see `memory_root`.
        run: a name of the run, the same in all its processes.

    Raises:
        ResourceError: the folder cannot be made, or belongs to somebody else.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.path = root / f"{_folder_prefix()}{re.sub(r'[^A-Za-z0-9_.-]', '_', run)}"
        self._fd = -1
        for _ in range(100):
            try:
                self._hold()
            except FileNotFoundError:
                continue  # swept between making and locking it
            except OSError as error:
                raise ResourceError(f"shared memory folder {self.path}: {error}") from error
            if self._fd >= 0:
                return
        raise ResourceError(f"shared memory folder {self.path}: it is removed again and again")

    @staticmethod
    def shared(root: Path, run: str) -> bool:
        """Whether a process of the run has made it there."""
        return (root / f"{_folder_prefix()}{re.sub(r'[^A-Za-z0-9_.-]', '_', run)}" / "lock").exists()

    @property
    def identity(self) -> str:
        """Equal for processes that see the same folder."""
        found = self.path.stat()
        return f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"

    def renew(self) -> None:
        """Make the folder again, and hold it, where somebody has removed it. Nothing where it is there.

        Raises:
            OSError, ResourceError: it cannot be made.
        """
        if self._fd >= 0 and still_there(self._fd, self.path / "lock"):
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        while self._fd < 0:
            self._hold()

    def close(self) -> None:
        """Let go; the last one removes the folder."""
        if self._fd >= 0 and not still_there(self._fd, self.path / "lock"):  # removed, and made again by others
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._fd >= 0:
            _remove_if_alone(self.path, self._fd)
            os.close(self._fd)
            self._fd = -1

    def _hold(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ResourceError(
                f"{self.path} is not a folder of this user alone (0700): remove it, or use another root"
            )
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if still_there(fd, self.path / "lock"):
            self._fd = fd
        else:
            os.close(fd)


def sweep(root: Path) -> list[Path]:
    """Remove the folders of this user's runs of which no process is left. Returns those removed."""
    removed = []
    for path in root.glob(f"{_folder_prefix()}*"):
        try:
            fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # made this moment and not locked yet, or its maker was killed in between
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > 60:
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
            continue
        except OSError:
            continue
        try:
            if _remove_if_alone(path, fd):
                removed.append(path)
        finally:
            os.close(fd)
    return removed


def remove_if_alone(path: Path) -> bool:
    """Remove the folder of a run unless some process of it is left; whether it is gone."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return _remove_if_alone(path, fd)
    finally:
        os.close(fd)


def left(root: Path) -> list[Path]:
    """The folders of this user's runs of which no process is left; nothing is removed."""
    found = []
    for path in root.glob(f"{_folder_prefix()}*"):
        try:
            fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(path)
        except OSError:
            continue
        finally:
            os.close(fd)
    return found


def memory_root(fallback: Path, least_bytes: int = 1 << 28) -> Path:
    """Shared memory where `least_bytes` of it are free (containers often have 64 MB in all), else `fallback`."""
    shm = Path("/dev/shm")  # noqa: S108
    try:
        room = os.statvfs(shm)
    except OSError:
        return fallback
    return shm if room.f_bavail * room.f_frsize >= least_bytes and os.access(shm, os.W_OK) else fallback


def _folder_prefix() -> str:
    return f"hopyard-{os.geteuid()}-"


def _remove_if_alone(path: Path, fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if not still_there(fd, path / "lock"):  # a new run has taken the name
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True

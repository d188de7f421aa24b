"""Shared memory between the agents of one host: a State is laid by the agent that made it and taken by any other.

A fresh file of 100 MB costs 25–47 ms, most of it page faults; a copy into one that is mapped already costs 6–7. So an
agent keeps its files and uses them again, oldest first, once their State is *settled*. Readers ask nobody: each file
begins with a header of 64 bytes,

    magic (8 bytes) | counter | trial | step | attempt | length     little-endian, 8 bytes each

whose counter is odd while the file is written and has changed when it was written again (a sequence lock). A reader
checks address and counter, copies, and checks the counter again; when it has changed, the State is read from the
store, where it is by then: it was settled. (Stores of one thread are seen in order on x86. Elsewhere the same holds
between the calls that lie between here, but it is the digest that vouches for a durable State.)

Each file has one writer, the `Arena` that made it, and any number of readers. The processes of a run hold a lock on its
folder, which the kernel drops with the last of them: see `system.scratch.Folder`.

Source: the sequence lock is that of Lameter, "Effective Synchronization on Linux/NUMA Systems", 2005, §3; we differ:
a reader that loses does not try again.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import mmap
import os
import re
import secrets
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hopyard.spec import Ref
from hopyard.system.files import FULL

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

_MEMORY_KEY = re.compile(r"(\d+-[0-9a-f]{8}-\d+)\.(\d+)")
"""Slot, a number drawn by the arena, file; counter. Keys of other agents are matched before they become a path. Files
are used again, keys never: a late message about a State does not touch the one that lies in its file by then."""

_NO_ROOM = (*FULL, errno.ENOMEM, errno.ENOENT, errno.EMFILE, errno.ENFILE)
"""Errors for which a State goes by the store alone. ENOENT: the folder was removed, as it is at the end of a run."""

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class Writable(Protocol):
    """What can be laid, for example a `tree.StateLayout`."""

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


class Arena:
    """The files of one agent. It owns them; `lay` (the worker's thread), `settle` and `view` (the sealing thread) may
    be called at the same time.

    Args:
        directory: for all agents of the run on this host, for example `Folder.path`; made when missing, mode 0700.
        slot: of this agent. Files of an earlier agent of the same slot are removed.
        limit_bytes: of all files together.
    """

    def __init__(self, directory: Path, slot: int, limit_bytes: int) -> None:
        self.directory = directory
        self._root = str(directory)
        self._prefix = f"{slot}-{secrets.token_hex(4)}"
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()  # in the order in which they were laid
        self._next_number = 0
        self._warned = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in directory.glob(f"{slot}-*"):
            path.unlink(missing_ok=True)

    def lay(self, ref: Ref, layout: Writable) -> str:
        """Copy a State in. Returns the memory key by which `take` finds it, "" when there is no room: then it goes by
        the store alone. 100 MB take 6–7 ms into a file that is there, 25–47 into a new one."""
        file = self._allocate(layout.total)
        if file is None:
            return ""
        # odd: a reader sees now that it is being written
        _COUNTER.pack_into(file.map, _COUNTER_AT, file.counter + 1)
        file.length = layout.total
        _HEAD.pack_into(file.map, 0, _MAGIC, file.counter + 1, ref.trial, ref.step, ref.attempt, layout.total)
        try:
            with memoryview(file.map) as view, view[HEADER : HEADER + layout.total] as body:
                layout.write(body)
        except BaseException:
            with self._lock:
                file.settled = True  # the counter stays odd until the next State is whole
            raise
        file.counter += 2
        _COUNTER.pack_into(file.map, _COUNTER_AT, file.counter)
        return f"{file.name}.{file.counter}"

    def own(self, memory_key: str, ref: Ref) -> memoryview | None:
        """Return the State if it was laid here and still is; the mapping has it even when its file was removed."""
        with self._lock:
            file = self._file_of(memory_key)
            if file is None:
                return None
            _, _, trial, step, attempt, length = _HEAD.unpack_from(file.map, 0)
            if (trial, step, attempt) != (ref.trial, ref.step, ref.attempt):
                return None
        return memoryview(file.map)[HEADER : HEADER + length].toreadonly()

    def view(self, memory_key: str) -> memoryview:
        """Return the State as laid, to hash and to write from; valid until `settle`. KeyError when it is not here."""
        with self._lock:
            file = self._file_of(memory_key)
        if file is None:
            raise KeyError(memory_key)
        return memoryview(file.map)[HEADER : HEADER + file.length].toreadonly()

    def settle(self, memory_key: str) -> None:
        """Let the file be used again: the State is durable, or nobody needs it. No error when it is not here."""
        with self._lock:
            file = self._file_of(memory_key)
            if file is not None:
                file.settled = True

    def close(self) -> None:
        """Remove all files."""
        with self._lock:
            files, self._files = list(self._files.values()), OrderedDict()
        for file in files:
            self._drop(file)

    def _file_of(self, memory_key: str) -> _File | None:
        """Return the file of this key; None when another State lies in it by now."""
        name, _, counter = memory_key.partition(".")
        file = self._files.get(name)
        return file if file is not None and str(file.counter) == counter else None

    def _allocate(self, total: int) -> _File | None:
        """Return a mapped file for `total` bytes that nobody else gets; None when there is no room."""
        size = _size_class(total + HEADER)
        with self._lock:
            settled = [file for file in self._files.values() if file.settled]
            # one that is much too large would keep its room from States that need it
            fitting = next((file for file in settled if size <= len(file.map) <= 2 * size), None)
            if fitting is not None and self._can_open(fitting):
                return self._reuse(fitting)
            for removed in [file for file in settled if not self._can_open(file)]:
                settled.remove(removed)
                del self._files[removed.name]
            unsettled_bytes = sum(len(file.map) for file in self._files.values() if not file.settled)
            if unsettled_bytes + size > self._limit or len(self._files) - len(settled) >= _FILES:
                return None
            while True:
                total_bytes = sum(len(file.map) for file in self._files.values())
                if total_bytes + size <= self._limit and len(self._files) < _FILES and (file := self._add(size)):
                    return file
                if not settled:
                    return None
                if large := [file for file in settled if len(file.map) >= size]:
                    return self._reuse(large[0])
                oldest = settled.pop(0)
                del self._files[oldest.name]
                self._drop(oldest)

    def _can_open(self, file: _File) -> bool:
        """Whether others can still open it. systemd removes it at the user's logout, with `RemoveIPC=yes`."""
        return os.path.exists(f"{self._root}/{file.name}")  # noqa: PTH110 - a Path costs as much as the call itself

    def _add(self, size: int) -> _File | None:
        name = f"{self._prefix}-{self._next_number}"
        try:
            file = _File(name, _new(self.directory / name, size))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if error.errno == errno.ENOENT and not self._warned:
                self._warned = True
                _log.warning("%s was removed while the run goes on: States go by the store alone", self.directory)
            _log.info("no room for %d bytes of shared memory in %s: %s", size, self.directory, error)
            return None
        self._next_number += 1
        self._files[name] = file
        return file

    def _reuse(self, file: _File) -> _File:
        file.settled = False
        self._files.move_to_end(file.name)
        return file

    def _drop(self, file: _File) -> None:
        # the mapping goes when the last view of it does, here or in a reader
        (self.directory / file.name).unlink(missing_ok=True)


def _size_class(size: int) -> int:
    """Return the next of 1, 1¼, 1½, 1¾ times a power of two: States of similar size share files, ≤ 25 % is lost."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def _new(path: Path, size: int) -> mmap.mmap:
    """Map a new file of `size` bytes that are really there; else a full /dev/shm is a SIGBUS in the midst of a copy."""
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


class ArenaReader:
    """Reads States from the arenas of one host. It owns up to `mappings` mapped files, since mapping 100 MB anew
    costs as much as copying it; files that were removed are let go at the next look."""

    def __init__(self, mappings: int = 32) -> None:
        self._limit = mappings
        self._lock = threading.Lock()
        self._mapped: OrderedDict[Path, tuple[tuple[int, int], mmap.mmap]] = OrderedDict()

    def take(self, directory: Path, memory_key: str, ref: Ref) -> Taken | None:
        """Return the State of this key; None when it is gone, being written, or another one is there by now."""
        match = _MEMORY_KEY.fullmatch(memory_key)
        mapping = self._open(directory / match[1]) if match else None
        if mapping is None or len(mapping) < HEADER:
            return None
        magic, counter, trial, step, attempt, length = _HEAD.unpack_from(mapping, 0)
        if magic != _MAGIC or counter % 2 or (trial, step, attempt) != (ref.trial, ref.step, ref.attempt):
            return None
        if not 0 <= length <= len(mapping) - HEADER:
            return None

        def intact() -> bool:
            return bool(_COUNTER.unpack_from(mapping, _COUNTER_AT)[0] == counter)

        # address and length may be of two different States, each written between our reads
        return Taken(memoryview(mapping)[HEADER : HEADER + length], intact) if intact() else None

    def _open(self, path: Path) -> mmap.mmap | None:
        with self._lock:
            try:
                status = path.stat()
            except OSError:
                self._mapped.pop(path, None)
                return None
            key = (status.st_dev, status.st_ino)
            if path in self._mapped and self._mapped[path][0] == key:
                self._mapped.move_to_end(path)
                return self._mapped[path][1]
            self._mapped.pop(path, None)
            for removed in [mapped for mapped in self._mapped if not mapped.exists()]:
                del self._mapped[removed]
            try:
                mapping = _map(path)
            except (OSError, ValueError):  # removed just now, or empty
                return None
            self._mapped[path] = (key, mapping)
            if len(self._mapped) > self._limit:
                self._mapped.popitem(last=False)
            return mapping


def _map(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def take(directory: Path, memory_key: str, ref: Ref) -> Taken | None:
    """Call `ArenaReader.take` of the one reader of this process."""
    return _reader.take(directory, memory_key, ref)


_reader = ArenaReader()


def memory_name(directory: Path) -> str:
    """Return a new name, for `Folder`, of the run in this directory. All names of one directory begin alike, so that
    what is left of one run is found among what is left of others."""
    mark = hashlib.blake2b(os.fsencode(directory.absolute()), digest_size=6).hexdigest()
    return f"{mark}-{secrets.token_hex(6)}"


def memory_root(fallback: Path, least_bytes: int = 1 << 28) -> Path:
    """Return shared memory where `least_bytes` of it are free (containers often have 64 MB in all), else `fallback`."""
    shm = Path("/dev/shm")  # noqa: S108
    try:
        status = os.statvfs(shm)
    except OSError:
        return fallback
    return shm if status.f_bavail * status.f_frsize >= least_bytes and os.access(shm, os.W_OK) else fallback

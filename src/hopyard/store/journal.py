"""The journal: JSON Lines, append only, one `fdatasync` for all that is appended at once.

A driver that dies while it appends leaves a torn last line; it is cut off when the run is resumed, because nothing in
it had an effect yet. Damage anywhere else is an error: what follows it cannot be trusted. A codec knows what a
line means: that of a run (`core.runs.codec.CODEC`), or that of a program (`core.programs.events.CODEC`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, Protocol

import msgspec

from hopyard.core.facts import UNREADABLE, Codec, Line
from hopyard.errors import JournalError, ResourceError, RunDirectoryError
from hopyard.system.files import FULL, open_regular, replacing, sync_directory

_CHUNK = 1 << 16


def read(path: Path, codec: Codec[Line]) -> Iterator[Line]:
    """Yield the lines one by one, so that a journal of any length needs little memory. A torn last line is left out.

    Raises:
        JournalError: damaged before its end, or of a newer format. Nothing before is known to be wrong then.
        FileNotFoundError: there is none.
    """
    return JournalReader(path, codec).read()


class JournalReader(Generic[Line]):
    """Reads a journal that grows, each line once. Owner: one thread.

    Args:
        path: the path of the file.
        codec: of the run's or the program's facts.

    Attributes:
        count: number of lines read so far.
    """

    def __init__(self, path: Path, codec: Codec[Line]) -> None:
        self._path = path
        self._codec = codec
        self.restart()

    def restart(self) -> None:
        """Read from the first line again."""
        self.count = 0
        self._end = 0
        self._last = b""

    def read(self) -> Iterator[Line]:
        """Yield the lines behind the last one that was read, as the module's `read` does. If that line is no longer in
        its place, yield all lines: a driver takes back lines for which the disk has no room, and a directory may get
        another journal."""
        with open_regular(self._path) as file:
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:
                self.restart()
                file.seek(0)
            for text in file:
                if not text.endswith(b"\n"):  # torn, or being written right now
                    return
                line = self._decoded(text)
                self.count += 1
                self._end += len(text)
                self._last = text
                yield line

    def _decoded(self, text: bytes) -> Line:
        number = self.count + 1
        if number == 1:
            _refuse_newer(self._path, text, self._codec)
        try:
            line = self._codec.decode(text)
        except JournalError as error:
            raise JournalError(
                f"{self._path}, line {number}: {error}. The journal is damaged here; what follows cannot be trusted. "
                "Restore the file from a copy, or cut it off before this line to go on from there"
            ) from error
        if number == 1 and not isinstance(line, self._codec.first):
            expected, actual = self._codec.first.__name__, type(line).__name__
            raise JournalError(f"{self._path}, line 1: a journal begins with {expected}, not {actual}")
        return line


def whole_bytes(path: Path) -> int:
    """Return the number of bytes up to the end of the last line that is not torn."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _CHUNK)
            file.seek(start)
            position = file.read(end - start).rfind(b"\n")
            if position >= 0:
                return start + position + 1
            end = start
    return 0


class _Head(msgspec.Struct):
    """The fields that the first line has in every format."""

    type: str
    format: int


def _refuse_newer(path: Path, text: bytes, codec: Codec[Line]) -> None:
    """A newer format may have changed all but these two fields, so they are looked at alone."""
    try:
        head = msgspec.json.decode(text, type=_Head)
    except UNREADABLE:
        return  # damaged, as whoever decodes the line will say
    if head.type == codec.first.__name__ and head.format > codec.format:
        raise JournalError(
            f"{path} has format {head.format}, this Hopyard reads up to {codec.format}: it was written by a newer "
            "Hopyard; use that one, or a newer one still"
        )


class Copier(Protocol):
    """Copies a journal to where others read it (`urls.mirror.Mirror`)."""

    def follow(self, size: int) -> None:
        """Begin, with a journal of so many bytes."""
        ...

    def grown(self, size: int) -> None:
        """Take note that it has so many bytes."""
        ...

    def check(self) -> None:
        """Raise RunDirectoryError if another driver has gone on with the run."""
        ...

    def stored(self, size: int, seconds: float) -> bool:
        """Whether so many bytes are copied, after waiting up to `seconds` for it. Raises as `check`."""
        ...

    def keeps_up(self, seconds: float) -> bool:
        """Whether few enough bytes wait, after waiting up to `seconds` for it. Raises as `check`."""
        ...

    def close(self) -> None:
        """Copy what still waits, for at most ten seconds, and end."""
        ...


class Journal(Generic[Line]):
    """The journal of a live run or program. Owner of the file: the driver that holds the lock.

    Args:
        path: the path of the file.
        codec: of the run's or the program's facts.
        resume: go on with a journal that has been read (so it is known to be sound): a torn line is cut off.
        mirror: copies it to the URL of the run directory; None: that is a path.
    """

    def __init__(self, path: Path, codec: Codec[Line], resume: bool = False, mirror: Copier | None = None) -> None:
        self.path = path
        self._codec = codec
        self._mirror = mirror
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        if resume:
            self._size = whole_bytes(path)
            self._file = os.open(path, flags)
            os.ftruncate(self._file, self._size)
        else:
            self._file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            self._size = 0
            sync_directory(path.parent)
        if mirror is not None:
            mirror.follow(self._size)

    def append(self, lines: Iterable[Line]) -> None:
        """Append all of them; they are on disk when this returns.

        Raises:
            ResourceError: there is no room. None of them is there then, whatever is raised.
            RunDirectoryError: the file was removed, or another driver has gone on with the run at its URL.
        """
        if self._mirror is not None:
            self._mirror.check()
        data = b"".join([self._codec.encode(line) + b"\n" for line in lines])
        if not data:
            return
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fdatasync(self._file)
        except BaseException as error:  # Ctrl-C too: what is not appended whole has no effect, so it must not be there
            os.ftruncate(self._file, self._size)
            if not isinstance(error, OSError) or error.errno not in FULL:
                raise
            resume = self._codec.resume.format(directory=shlex.quote(str(self.path.parent)))
            next_step = resume if self.begun else "start again, with resume=True"
            raise ResourceError(
                f"{self.path}: no room for the journal ({error.strerror}). Nothing is lost: make room, then {next_step}"
            ) from error
        self._size += len(data)
        if not os.fstat(self._file).st_nlink:
            raise RunDirectoryError(
                f"{self.path} was removed while its driver lives, so nothing is kept from now on; start the run again"
            )

        if self._mirror is not None:
            self._mirror.grown(self._size)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._size

    def shared(self, size: int, seconds: float) -> bool:
        """Whether all who read the run have its first `size` bytes, after waiting up to `seconds` for it. Raises
        RunDirectoryError if another driver has gone on with the run."""
        return self._mirror is None or self._mirror.stored(size, seconds)

    def keeps_up(self, seconds: float) -> bool:
        """Whether few enough bytes wait to be copied, after waiting up to `seconds` for it. Raises as `shared`."""
        return self._mirror is None or self._mirror.keeps_up(seconds)

    @property
    def begun(self) -> bool:
        """Whether it has a line."""
        return self._size > 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def retire(path: Path) -> Path | None:
    """Give a journal another name, `journal-1.jsonl` and so on, so that a new one can begin; what has been written is
    never deleted, and a name never used twice. The caller holds the lock. None: there is no journal."""
    if not path.exists():
        return None
    number = 1 + max(retired(path), default=0)
    new = path.with_name(f"{path.stem}-{number}{path.suffix}")
    path.rename(new)
    sync_directory(path.parent)
    return new


def retired(path: Path) -> dict[int, Path]:
    """Return number → earlier journal in the place of this one."""
    names = {file.stem.rpartition("-")[2]: file for file in path.parent.glob(f"{path.stem}-*{path.suffix}")}
    return {int(text): file for text, file in names.items() if text.isdecimal()}


def write_whole(path: Path, data: bytes, private: bool = False) -> None:
    """Write the file with this content, or no file: temporary name, sync, rename, sync.

    Args:
        path: of the file.
        data: its content.
        private: nobody but this user may read it.

    Raises:
        ResourceError: there is no room.
    """
    try:
        with replacing(path) as part, open(part, "wb", opener=_private if private else None) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(f"{path}: no room ({error.strerror}); make some, and start again") from error
        raise


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """Turn an `OSError` into an error for the user: a full disk is no defect (exit 4, not a traceback), nor is a
    directory that this user may not write to."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise RunDirectoryError(
                f"{root}: no files can be written here: {error.strerror}; give another directory, or, to go on with a "
                "run that is in it, a copy of it (cp -r)"
            ) from error
        raise ResourceError(
            f"{root}: no room for the run directory ({error.strerror}). Nothing is lost: make room, then start again "
            "with resume=True"
        ) from error


def _private(path: str, flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - left by a killed writer, or planted: its owner and mode would stay
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o600)

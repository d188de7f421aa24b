"""Faults at the writes of some work: it is killed (kill -9), or has no room, at each write in turn.

A write is a call that changes a file system, or syncs it, as far as Python makes it: those of `os` (pathlib, shutil and
tempfile use these), and what is written to files that Python opens. Writes of native libraries are not seen. The work
runs in forks of this process: a kill costs milliseconds, and nothing that the work imports is imported again.

    for point in kills(lambda: save(folder)):
        assert is_whole(folder), point
"""

from __future__ import annotations

import _io
import builtins
import errno
import functools
import io
import itertools
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

CALLS = (
    *("mkdir", "rmdir", "rename", "replace", "link", "symlink", "unlink", "remove", "truncate", "ftruncate", "chmod"),
    *("fsync", "fdatasync", "write", "pwrite", "writev", "sendfile", "posix_fallocate", "open"),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
NEEDS_ROOM = ("mkdir", "link", "symlink", "write", "pwrite", "writev", "sendfile", "posix_fallocate", "open", "fsync")
LIMIT = 5000
"""Points of one work; more means that it never ends."""

Strike = Callable[[str, str], None]
"""Is called with the moment, "before", "halfway in" or "after", and the call."""


def kills(work: Callable[[], Any], every: int = 1) -> Iterator[str]:
    """Kill `work` before, in and after each of its writes, or at every `every`-th such point. Yields the point once the
    killed process is gone; ends when the work came to its end, alive."""

    def kill(moment: str, call: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return _struck(work, kill, lambda moment, call: True, every)


def lacks_room(work: Callable[[], Any], every: int = 1) -> Iterator[str]:
    """Let each write of `work` that needs room, and all that follow it, fail as on a full disk. Yields the first that
    failed, and the traceback of what the work raised, or "nothing raised"."""

    def fail(moment: str, call: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return _struck(work, fail, lambda moment, call: moment != "after" and call.split(" ")[0] in NEEDS_ROOM, every)


def _struck(work: Callable[[], Any], strike: Strike, counts: Callable[[str, str], bool], every: int) -> Iterator[str]:
    """Run `work` in a fork for each of its points that counts. Yields the point, and what became of the work."""
    for first in range(0, LIMIT, every):
        readable, writable = os.pipe()
        process = os.fork()
        if not process:
            _child(work, strike, counts, first, writable)
        os.close(writable)
        with open(readable, "rb") as pipe:
            report = pipe.read().decode()
        os.waitpid(process, 0)
        if report == "nothing raised":
            return
        assert not report.startswith("raised"), report
        yield report
    raise AssertionError(f"more than {LIMIT} points")


def _child(work: Callable[[], Any], strike: Strike, counts: Callable[[str, str], bool], first: int, pipe: int) -> None:
    write, count = os.write, itertools.count()

    def point(moment: str, call: str) -> None:
        if counts(moment, call) and (number := next(count)) >= first:
            if number == first:
                write(pipe, f"{moment} {call}: ".encode())
            strike(moment, call)

    try:
        with watched(point):
            work()
        write(pipe, b"nothing raised")
    except BaseException:  # the parent gets it
        write(pipe, f"raised {traceback.format_exc()}".encode())
    os._exit(0)


@contextmanager
def watched(point: Strike) -> Iterator[None]:
    """Call `point` before, halfway in and after each write of this process. What it raises, the write raises."""
    real_open, inside = io.open, False

    def around(call: str, write: Callable[[], Any]) -> Any:
        nonlocal inside
        if inside:  # by `os.open` of an opener, say
            return write()
        inside = True
        try:
            point("before", call)
            result = write()
            point("after", call)
            return result
        finally:
            inside = False

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            view = memoryview(data).cast("B")
            half = len(view) // 2

            def in_halves() -> int:
                written = super(File, self).write(view[:half]) or 0
                point("halfway in", f"write {self.name}")
                return written + (super(File, self).write(view[half:]) or 0)

            return int(around(f"write {self.name}", in_halves))

    def watched_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        raw = around(f"open {file}", lambda: File(file, plain, closefd, opener))
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

    def watched_call(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **keywords: Any) -> Any:
            if name == "open" and not (args[1] if len(args) > 1 else keywords.get("flags", 0)) & WRITING:
                return real(*args, **keywords)
            text = " ".join([name, *(os.fsdecode(each) for each in args[:2] if isinstance(each, (str, os.PathLike)))])
            return around(text, lambda: real(*args, **keywords))

        return call

    patches = [patch.object(os, name, watched_call(name, getattr(os, name))) for name in CALLS if hasattr(os, name)]
    patches += [patch.object(module, "open", watched_open) for module in (builtins, io, _io)]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()

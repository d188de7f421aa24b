"""The driver's side of a run directory at a URL: claims it, copies the journal, and shows that the driver lives.

There are two threads, so that neither a slow segment nor a long log keeps the other waiting. One copies the journal.
The other one writes `driver.json` again every 10 s, and copies logs, report and charts every minute and at the end.
Requests that fail are retried until they succeed, and logged once.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from hopyard.errors import RunDirectoryError
from hopyard.filesystems import Directory, line_of, reaching, why
from hopyard.store.journal import write_whole
from hopyard.store.urls import working
from hopyard.store.urls.segments import Segments, Writer, pace, patiently, segment
from hopyard.store.urls.working import BEAT, DRIVER, JOURNALS, LOGS, VIEWS, Beat, Copied, url_of

log = logging.getLogger(__name__)

BYTES = 64 << 20
SECONDS = 600.0
"""The bytes of the journal that may wait for a segment, and how long: beyond, the loop waits."""
LEASES = BYTES // 64
"""More leases than a lost end of the journal can have given out: a line that gives one out is longer."""
FIRST_PAUSE, LONGEST = 1.0, 30.0
"""The pause before a segment is tried again, in seconds, and the longest one."""
SILENCE = 30.0
"""Seconds for which a segment may wait before people are told."""
FILES_SECONDS = 60.0
"""Time between two copies of logs, report and charts."""
TAIL = 1 << 20
"""Bytes at the end of a log that are copied."""
LOOK_PAUSE = 1.0
"""Seconds between two looks at the file of another driver."""
CLOSE_SECONDS = 10.0
"""Seconds for what still waits when a driver ends."""


class Overtaken(RunDirectoryError):
    """Another driver has created the next segment, and so has the run."""

    exit_code = 4


def publish(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file of a run directory whole; of one at a URL, which this driver has claimed, there too.

    Raises:
        ResourceError: there is no room.
        RunDirectoryError: the URL cannot be written to; another driver has gone on with the run.
    """
    if url := url_of(path.parent):
        with reaching(url, "write to", RunDirectoryError, "directory"):
            directory = Directory(url)
            patiently(directory.make)
            check_claim(path.parent)
            patiently(lambda: directory.put(path.name, data))
    write_whole(path, data, private)


def check_claim(root: Path) -> None:
    """Raise RunDirectoryError if another driver has gone on with a run at a URL that this one has claimed, and whose
    journal it has not opened yet: it may copy States for minutes before."""
    if (url := url_of(root)) and (claimed := working.copied(root, JOURNALS[0])):
        with reaching(url, "read", RunDirectoryError, "directory"):
            segments = Segments(url, JOURNALS[0])
            if segments.get(claimed.count) is not None:
                raise _in_use(url, segments, claimed.count)


def claim(root: Path, journal: str, take_over: bool = False) -> Mirror:
    """Claim a run directory at a URL: create the segment behind those that were fetched.

    Args:
        root: its working folder, whose driver's lock the caller holds.
        journal: the name of the journal.
        take_over: do not look whether another driver lives.

    Raises:
        RunDirectoryError: another driver lives, or was faster; the URL cannot be written to.
        SpecError: the store lets two writers create one file, so it cannot tell who has the run.
        JournalError: a segment is missing.
    """
    url = url_of(root)
    host, folder = working.host_of(root)
    writer = Writer(secrets.token_hex(8), host, os.getpid(), folder)
    with reaching(url, "write to", RunDirectoryError, "directory"):
        if not take_over:
            _refuse_live(url, writer)
        segments = Segments(url, journal)
        copied = working.copied(root, journal) or Copied(writer.id, 0, 0)
        segments.make(new=not copied.count)
        if segments.count() != copied.count:
            raise _in_use(url, segments, copied.count)
        data = segment(writer, copied.end, b"")
        if not patiently(lambda: segments.create(copied.count, data)):
            raise _in_use(url, segments, copied.count)
    return Mirror(root, journal, segments, writer, msgspec.structs.replace(copied, count=copied.count + 1))


def _refuse_live(url: str, own: Writer) -> None:
    """Raise RunDirectoryError if the file of a driver there changes. One whose lock this process holds is dead."""
    directory = Directory(url)
    if (before := _beat(directory)) is None or (before.writer.host, before.writer.folder) == (own.host, own.folder):
        return
    log.warning("%s: looking for %.0f s whether its driver lives (%s)", url, working.LOOK, before.writer)
    deadline = time.monotonic() + working.LOOK
    while time.monotonic() < deadline:
        time.sleep(LOOK_PAUSE)
        if (now := _beat(directory)) is None:
            return
        if now != before:
            error = RunDirectoryError(
                f"{url} is in use by a live driver ({now.writer}): wait for it, stop it, or take the run over, with "
                "--take-over or hy.resume(…, take_over=True)"
            )
            error.exit_code = 4
            raise error


def _beat(directory: Directory) -> Beat | None:
    try:
        return msgspec.json.decode(patiently(lambda: directory.get(DRIVER)), type=Beat)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _in_use(url: str, segments: Segments, number: int) -> Overtaken:
    """Return the error for a run that another driver has gone on with; `number`: of its segment."""
    other = segments.get(number)
    return Overtaken(
        f"{url}: {'another driver' if other is None else other[0].writer} has gone on with this run; this driver ends, "
        "and deletes nothing"
    )


class Mirror:
    """Copies the journal of a live driver to its URL. Owner of its segments until another driver creates one.

    Args:
        root: the working folder.
        journal: name of the journal.
        segments: of the journal.
        writer: this driver.
        copied: what is there, with the segment of the claim.
    """

    def __init__(self, root: Path, journal: str, segments: Segments, writer: Writer, copied: Copied) -> None:
        self._root, self._path, self._segments, self._writer = root, root / journal, segments, writer
        self._number, self._stored, self._size = copied.count, copied.end, copied.end
        self._first = copied.first
        self.url = url_of(root)
        self._directory = Directory(self.url)
        self._changed = threading.Condition()
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._over: RunDirectoryError | None = None
        self._lags_since = 0.0
        """When the oldest byte began to wait; counts while `_stored` is not `_size`."""
        self._answered = time.monotonic()
        """When the URL last took a segment."""
        self._away = False
        """Whether people were told that the URL cannot be written to."""
        self._behind = False
        """Whether people were told that the run waits for the copy of its journal."""
        self._beaten = False
        """Whether this driver has written `driver.json`."""
        self._removed = False
        """Whether people were told that files of the run were removed."""
        self._complete = False
        """Whether the last copies of logs, report and charts were made."""
        self._files: dict[Path, tuple[int, int]] = {}
        """File → its size and time when it was copied."""
        working.note(root, journal, copied)
        self._beats = threading.Thread(target=self._beat, name="hopyard-beats", daemon=True)
        self._copies = threading.Thread(target=self._copy, name="hopyard-segments", daemon=True)
        self._beats.start()

    def follow(self, size: int) -> None:
        """Begin to copy: the journal is open, and has so many bytes. A new one has none."""
        if size < self._stored:
            self._stored = self._size = 0
            working.note(self._root, self._path.name, Copied(self._first, self._number, 0))
        self._copies.start()
        self.grown(size)

    def grown(self, size: int) -> None:
        """Take note that the journal has so many bytes."""
        now = time.monotonic()
        with self._changed:
            if self._stored == self._size:
                self._lags_since = now
            self._size = size
            self._changed.notify_all()
        if (seconds := now - max(self._lags_since, self._answered)) > max(SILENCE, 2 * pace(self._number)):
            self._warn_away(f"has not answered for {seconds:.0f} s; the run goes on and deletes nothing")

    def check(self) -> None:
        """Raise RunDirectoryError if another driver has gone on with the run."""
        if self._over is not None:
            raise self._over

    def stored(self, size: int, seconds: float) -> bool:
        """Whether so many bytes of the journal are at the URL, after waiting up to `seconds` for it. Raises as
        `check`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stored >= size or self._over is not None, seconds)
            self.check()
            return self._stored >= size

    def keeps_up(self, seconds: float) -> bool:
        """Whether few enough bytes wait, after waiting up to `seconds` for it. Raises as `check`."""

        def few() -> bool:
            lag = self._size - self._stored
            return lag == 0 or (lag <= BYTES and time.monotonic() - self._lags_since <= SECONDS)

        with self._changed:
            self._changed.wait_for(lambda: few() or self._over is not None, seconds)
            self.check()
            behind, was_behind = not few(), self._behind
            self._behind = behind
            waited = time.monotonic() - self._lags_since
        if behind and not was_behind:
            log.warning(
                "%s has %.0f s of the journal to copy: the run waits until %s answers",
                *(self._root, waited, self.url),
            )
        return not behind

    def close(self) -> None:
        """Copy what still waits, for at most ten seconds, and end."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in (self._copies, self._beats):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._abandoned.set()
        if self._complete and self._stored == self._size:
            working.note(self._root, self._path.name, Copied(self._first, self._number, self._stored))
        elif self._over is None:
            log.warning(
                "%s lacks the end of this run; it is in %s, and `hopyard resume` on this host copies it",
                *(self.url, self._root),
            )

    # ---------------------------------------------------------------- the journal

    def _copy(self) -> None:
        """Copy the journal until the driver ends."""
        try:
            with self._path.open("rb") as journal:
                self._copy_lines(journal)
        except OSError as error:
            with self._changed:
                self._over = RunDirectoryError(f"{self._path} cannot be read: {error.strerror}; the run ends")
                self._changed.notify_all()

    def _copy_lines(self, journal: BinaryIO) -> None:
        """Create the next segment whenever there is something for it."""
        begun = -math.inf
        while self._over is None and not self._abandoned.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._size > self._stored or self._closing.is_set())
                if self._size == self._stored:
                    return
            self._closing.wait(begun + pace(self._number) - time.monotonic())
            begun = time.monotonic()
            size = self._size
            journal.seek(self._stored)
            data = journal.read(size - self._stored)
            if self._created(segment(self._writer, self._stored, data)):
                with self._changed:
                    self._number, self._stored, self._lags_since = self._number + 1, size, begun
                    self._changed.notify_all()

    def _created(self, data: bytes) -> bool:
        """Create the next segment, whatever it takes; False: it is another driver's."""
        pause, created, over = FIRST_PAUSE, False, None
        while not self._abandoned.is_set():
            try:
                created = self._segments.create(self._number, data)
                over = None if created else _in_use(self.url, self._segments, self._number)
                break
            except Exception as error:  # noqa: BLE001 - drivers raise anything, and the next try may succeed
                cause = why(self.url, error)
                text = f"{cause[0]}; {cause[1]}" if cause else line_of(error)
                self._warn_away(f"cannot be written to; the run goes on and deletes nothing: {text}")
                self._abandoned.wait(pause)
                pause = min(2 * pause, LONGEST)
        self._answered = time.monotonic()
        if self._away and not self._abandoned.is_set():
            log.warning("%s can be written to again", self.url)
            self._away = False
        with self._changed:
            self._over = over
            self._changed.notify_all()
        return created

    def _warn_away(self, text: str) -> None:
        """Warn once that the URL cannot be written to."""
        if not self._away:
            log.warning("%s %s", self.url, text)
        self._away = True

    # ---------------------------------------------------------------- the other files

    def _beat(self) -> None:
        """Show that the driver lives, and copy what people read, until it ends."""
        files_at = time.monotonic() + FILES_SECONDS
        while self._over is None:
            self._quietly(self._put_beat)
            if self._closing.wait(BEAT):
                break
            if time.monotonic() >= files_at:
                self._copy_files()
                files_at = time.monotonic() + FILES_SECONDS
        if self._copies.ident is not None:
            self._copies.join()
        self._quietly(self._finish)

    def _finish(self) -> None:
        """Copy the files a last time, and remove `driver.json`."""
        copied = self._has_run() and self._copy_files(last=True)
        if self._has_run():
            patiently(lambda: self._directory.remove(DRIVER))
        self._complete = copied

    def _put_beat(self) -> None:
        """Write `driver.json`."""
        if self._has_run():
            self._directory.put(DRIVER, msgspec.json.encode(Beat(self._writer, time.time())))
            self._beaten = True

    def _has_run(self) -> bool:
        """Whether this driver may still write to the URL. Where its `driver.json` is not there any more, see whether
        another driver has gone on with the run: one that was stopped may have nothing to journal for hours."""
        beat = _beat(self._directory)
        if self._beaten if beat is None else beat.writer.id != self._writer.id:
            number = self._number
            other = self._segments.get(number)
            if other is not None and other[0].writer.id != self._writer.id:
                with self._changed:
                    self._over = _in_use(self.url, self._segments, number)
                    self._changed.notify_all()
            elif other is None and not self._removed and self._segments.get(0) is None:
                self._removed = True
                log.warning(
                    "%s: files of this run were removed there, so it cannot be read from there any more; the run goes "
                    "on, and its whole journal is %s",
                    *(self.url, self._path),
                )
        return self._over is None and not self._abandoned.is_set()

    def _copy_files(self, last: bool = False) -> bool:
        """Copy logs, report and charts that have changed, and return whether all are copied. The driver shows that it
        lives between two of them. What fails is tried again a minute later, or at once where this is the `last` time.
        """
        beaten, copied = time.monotonic(), True
        logs = self._root / LOGS
        for path in (*(self._root / name for name in VIEWS), *(sorted(logs.iterdir()) if logs.is_dir() else ())):
            if self._abandoned.is_set() or self._over is not None:
                return False
            with suppress(FileNotFoundError):
                status = path.stat()
                state = status.st_size, status.st_mtime_ns
                copy = partial(self._copy_file, path)
                if self._files.get(path) == state or self._quietly(partial(patiently, copy) if last else copy):
                    self._files[path] = state
                else:
                    copied = False
            if not self._closing.is_set() and time.monotonic() > beaten + BEAT:
                self._quietly(self._put_beat)
                beaten = time.monotonic()
        return copied

    def _copy_file(self, path: Path) -> None:
        """Copy a file, of a log its end."""
        log = path.parent != self._root
        directory = Directory(f"{self.url}/{LOGS}") if log else self._directory
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL) if log else 0)
            if log:
                directory.make()
            directory.put(path.name, file.read())

    def _quietly(self, act: Callable[[], object]) -> bool:
        """Run `act` and return whether it succeeded; an error is only logged."""
        try:
            act()
            return True
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            log.debug("%s: %s", self.url, line_of(error))
            return False

"""The working folder of a run directory at a URL: a folder below this user's folder for caches, with the same files. A
driver works there, readers fetch what is new. Its file `.url` names the URL.

The URL decides: a journal here that is ahead is kept, and copied on by the next driver; one whose URL went another way
meanwhile gets another name.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from hopyard.errors import HopyardError, JournalError, RunDirectoryError, SpecError
from hopyard.filesystems import Directory, absolute, reaching
from hopyard.folders import cache_folder
from hopyard.store.journal import retire, retired, room, write_whole
from hopyard.store.lock import locked
from hopyard.store.urls.segments import Segments, Writer, patiently
from hopyard.text import shown

log = logging.getLogger(__name__)

URL = ".url"
"""The file of a working folder that names its URL; locked while somebody fetches."""
FROM = ".from"
"""The file that names the URL of an earlier run, in the folder into which its copy was moved."""
EARLIER = ".earlier-"
"""Prefix of the folders with copies of earlier runs, which the URL has no longer."""
ID = ".id"
"""The file with the random id of a working folder: hosts may have equal names, and equal paths of their caches."""
FETCHED = ".fetched"
"""The file that says what was fetched."""
JOURNALS = ("journal.jsonl", "program.jsonl")
FILES = ("run.json", "recipe.pkl", "manifest.json")
"""The files that are at the URL before the journal says so (`mirror.publish`)."""
VIEWS = ("report.txt", "summary.json", "gantt.html", "plot.html", "trace.json")
"""The files that people read, which are copied now and then, as logs are."""
LOGS = "logs"
DRIVER = "driver.json"
"""The file at the URL that a live driver writes again every `BEAT` seconds."""
BEAT = 10.0
LOOK = 30.0
"""Seconds for which a new driver looks whether the file of another one changes."""
FRESH = 60.0
"""Age, by the clocks of both hosts, from which on a reader takes a driver for dead."""
AGAIN = 5.0
"""Seconds between two fetches for readers."""
_AWAY: set[str] = set()
"""The URLs that `alive` could not fetch since it last could, so that one warning is given for each."""


class Beat(msgspec.Struct, frozen=True):
    """The content of `driver.json`."""

    writer: Writer
    at: float


class Copied(msgspec.Struct, frozen=True):
    """How far the journal in a working folder is known to be that at the URL."""

    first: str
    """Id of the writer of segment 0, which no other run has."""
    count: int
    """Number of segments."""
    end: int
    """The byte of the present journal at which they end."""


class Fetched(msgspec.Struct):
    """What is in a working folder of what is at its URL."""

    journals: dict[str, Copied] = {}
    files: dict[str, tuple[int, float | None]] = {}
    """Name → size and time at the URL."""


def folder_of(url: str) -> Path:
    """Return the working folder for a URL; its name is the last one of the URL."""
    url = absolute(url)
    name = url.partition("://")[2].rpartition("/")[2]
    if name in ("", ".", "..") or "?" in url or "#" in url:
        raise SpecError(f"directory = {shown(url)} must be the URL of a folder in a bucket or file system")
    return cache_folder() / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def url_of(root: Path) -> str:
    """Return the URL of which this is the working folder; "": of none. A copy of one is a folder like any other."""
    with suppress(OSError, ValueError, HopyardError):
        url = (root / URL).read_text(encoding="utf-8")
        return url if folder_of(url).samefile(root) else ""
    return ""


def origin(root: Path) -> str:
    """Return the URL from which the files in a folder were fetched, also where it is a copy; "": from none."""
    for name in (URL, FROM):
        with suppress(FileNotFoundError, NotADirectoryError):
            return (root / name).read_text(encoding="utf-8", errors="replace") or "an unknown URL"
    return ""


def host_of(root: Path) -> tuple[str, str]:
    """Return what tells the host of a working folder from others: its name, and the id of the folder."""
    try:
        return socket.gethostname(), (root / ID).read_text(encoding="utf-8")
    except OSError:
        return socket.gethostname(), ""


def made(url: str) -> Path:
    """Return the working folder for a URL, which is made where there is none."""
    root = folder_of(url)
    with room(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in ((ID, secrets.token_hex(8)), (URL, absolute(url))):
            if not (root / name).exists():
                write_whole(root / name, text.encode())
    return root


def folders() -> list[Path]:
    """Return this user's working folders, sorted."""
    return sorted(path.parent for path in (cache_folder() / "urls").glob(f"*/*/{URL}") if url_of(path.parent))


def is_whole(root: Path) -> bool:
    """Return True if the journals here are known to be at the URL to their end, and no earlier ones are kept here."""
    journals = _fetched(root).journals
    sizes = {name: (root / name).stat().st_size for name in JOURNALS if (root / name).exists()}
    if any(root.glob(f"{EARLIER}*")) or any(retired(root / name) for name in JOURNALS):
        return False
    return all(name in journals and journals[name].end == size for name, size in sizes.items())


def fetch(root: Path, driving: bool = False) -> None:
    """Bring a working folder up to date. A folder in which a driver is at work is left as it is.

    Args:
        root: the folder.
        driving: the caller holds the driver's lock of this folder.

    Raises:
        RunDirectoryError: the URL cannot be reached; the run is there no longer; a reader has the copy of another one.
        ResourceError: there is no room here.
        JournalError: the journal there is damaged.
    """
    url = url_of(root)
    with reaching(url, "read", RunDirectoryError, "directory"), _fetching(root):
        if not driving and locked(root / "lock"):
            return
        fetched = _fetched(root)
        segments = {name: Segments(url, name) for name in JOURNALS}
        firsts = {name: each.first() for name, each in segments.items()}
        here = {name: fetched.journals[name].first if name in fetched.journals else "" for name in JOURNALS}
        there = {name: first[0].writer.id if first else "" for name, first in firsts.items()}
        if any(there[name] != here[name] and (here[name] or _alone(root / name, there[name])) for name in JOURNALS):
            if not any(there.values()):
                raise RunDirectoryError(
                    f"{url}: no run there any more; its copy on this host is {root}; restore it, or move that folder "
                    "away"
                )
            if not driving:
                raise RunDirectoryError(
                    f"{url} holds another run by now; the copy of the earlier one on this host is {root}: move that "
                    "folder away to read the one at the URL"
                )
            _set_aside(root, url)
            fetched = Fetched()
            _record(root, fetched)
        for name in filter(there.get, JOURNALS):
            start = fetched.journals.get(name, Copied(there[name], 0, 0))
            fetched.journals[name] = _fetch_journal(segments[name], root / name, start)
            _record(root, fetched)
        _fetch_files(url, root, fetched.files)
        _record(root, fetched)
        os.utime(root / URL)
    _AWAY.discard(url)


def copied(root: Path, journal: str) -> Copied | None:
    """Return how far a journal here is known to be that at the URL; None: there is none at the URL."""
    return _fetched(root).journals.get(journal)


def note(root: Path, journal: str, copied: Copied) -> None:
    """Record how far the journal here equals the one at the URL."""
    fetched = _fetched(root)
    fetched.journals[journal] = copied
    _record(root, fetched)


def alive(root: Path) -> bool:
    """Whether a driver on another host is at work on the run at the URL. Fetches what is new first."""
    try:
        if time.time() - (root / URL).stat().st_mtime >= AGAIN:
            fetch(root)
    except RunDirectoryError as error:  # what is here is shown; the next look may succeed
        if (url := url_of(root)) not in _AWAY:
            _AWAY.add(url)
            log.warning("%s", error)
    try:
        beat = msgspec.json.decode((root / DRIVER).read_bytes(), type=Beat)
    except (OSError, msgspec.MsgspecError):
        return False
    here = (beat.writer.host, beat.writer.folder) == host_of(root)  # then its lock would be held
    return not here and abs(time.time() - beat.at) < FRESH


def runs(url: str) -> list[str]:
    """Return the URLs of the runs and programs at a URL and directly below it.

    Raises:
        RunDirectoryError: it cannot be listed.
    """
    with reaching(url, "list", RunDirectoryError, "directory"):
        candidates = [url, *(f"{url}/{name}" for name in Directory(url).folders())]
        return [each for each in candidates if any(Segments(each, name).get(0) for name in JOURNALS)]


def others(url: str) -> list[str]:
    """Return the names of what is at a URL and is of no run: rows, States, other runs.

    Raises:
        RunDirectoryError: it cannot be listed.
    """
    own = {*JOURNALS, *FILES, *VIEWS, LOGS, DRIVER}
    with reaching(url, "list", RunDirectoryError, "directory"):
        directory = Directory(url)
        names = [*patiently(directory.sizes), *patiently(directory.folders)]
    return sorted(name for name in names if name not in own and not name.startswith((".", "states")))


@contextmanager
def _fetching(root: Path) -> Iterator[None]:
    """Let one process at a time change what was fetched."""
    with (root / URL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetched(root: Path) -> Fetched:
    try:
        return msgspec.json.decode((root / FETCHED).read_bytes(), type=Fetched)
    except (OSError, msgspec.MsgspecError):
        return Fetched()


def _record(root: Path, fetched: Fetched) -> None:
    """Write what was fetched, where that has changed."""
    if fetched != _fetched(root):
        with room(root):
            write_whole(root / FETCHED, msgspec.json.encode(fetched))


def _alone(journal: Path, first: str) -> bool:
    """Whether there is a journal here, and none at the URL."""
    return journal.exists() and not first


def _set_aside(root: Path, url: str) -> None:
    """Move what is here into a folder of its own: the URL has another run by now."""
    aside = root / f"{EARLIER}{secrets.token_hex(4)}"
    with room(root):
        aside.mkdir(mode=0o700)
        write_whole(aside / FROM, url.encode())
        for path in root.iterdir():
            if not path.name.startswith(".") and path.name != "lock":
                path.rename(aside / path.name)
    log.warning("%s: the run that was here is there no longer; its copy on this host is in %s", url, aside)


def _fetch_journal(segments: Segments, path: Path, copied: Copied) -> Copied:
    """Append the segments that are not in a journal; returns how far it is."""
    count, end = copied.count, copied.end
    with room(path.parent):
        path.touch()
        file: IO[bytes] = path.open("r+b")
    try:
        if os.fstat(file.fileno()).st_size < end:
            count, end = 0, 0
        for head, data in segments.read(count):
            with room(path.parent):
                if head.start == 0 and end and data:
                    file.close()
                    retire(path)
                    file, end = path.open("x+b"), 0
                if head.start != end and data:
                    raise JournalError(
                        f"{segments.url}: segment {count} begins at byte {head.start} of the journal, and the one "
                        f"before it ends at {end}; restore them from a copy"
                    )
                file.seek(end)
                here = file.read(len(data))
                if here != data[: len(here)]:
                    file.close()
                    file = _renamed(segments, path, end)
                    here = b""
                file.seek(end + len(here))
                file.write(data[len(here) :])
                file.flush()
            count, end = count + 1, end + len(data)
        with room(path.parent):
            os.fsync(file.fileno())
    finally:
        file.close()
    return Copied(copied.first, count, end)


def _renamed(segments: Segments, path: Path, end: int) -> IO[bytes]:
    """Give a journal that went another way from byte `end` on another name; returns a new one, open, up to there."""
    other = retire(path)
    assert other is not None
    log.warning("%s: another driver went on with the run; what this host had beyond is in %s", segments.url, other)
    file = path.open("x+b")
    with other.open("rb") as old:
        file.write(old.read(end))
    return file


def _fetch_files(url: str, root: Path, files: dict[str, tuple[int, float | None]]) -> None:
    """Fetch the files that have changed. Logs of this host are whole, those at the URL have their last MiB. The log of
    a follower is its lock too."""
    for folder in ("", LOGS):
        directory = Directory(f"{url}/{folder}".rstrip("/"))
        versions = patiently(directory.versions)
        for name, version in versions.items():
            path = root / folder / name
            ours = not name.startswith((".", "tracking-")) if folder else name in (*FILES, *VIEWS, DRIVER)
            fetched = path.exists() and version[1] is not None and version == files.get(f"{folder}/{name}")
            if not ours or fetched or (folder and path.exists() and path.stat().st_size > version[0]):
                continue
            with suppress(FileNotFoundError):  # removed since, as `driver.json` is
                data = patiently(partial(directory.get, name))
                with room(root):
                    path.parent.mkdir(exist_ok=True)
                    write_whole(path, data, private=True)
                files[f"{folder}/{name}"] = version
        if not folder and DRIVER not in versions:
            (root / DRIVER).unlink(missing_ok=True)

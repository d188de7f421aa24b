"""The verb clean: lists what runs have left on this host, with its size and age, and removes it when asked."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hopyard.checks import without_scheme
from hopyard.cli.common import AsJson, as_text, columns, echo, say, verb
from hopyard.errors import HopyardError, UsageError
from hopyard.system.files import total_bytes
from hopyard.text import shell_command, shown

DAY = 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}


@dataclass(frozen=True, slots=True)
class Item:
    """A file or folder that may be removed.

    Attributes:
        kind: what it is.
        path: its path or URL.
        bytes: its size.
        used: when it was last used, in seconds since the epoch of Unix; None: not known.
        kept: why it stays, else empty.
        remove: removes it and returns whether that worked.
    """

    kind: str
    path: str
    bytes: int
    used: float | None
    kept: str
    remove: Callable[[], bool]


@verb
def clean(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Also the rows that Dataset.spark(…, path=PATH) wrote there: paths or URLs."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without this it is only listed.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Only what was last used longer ago than this: 12h, 30d, 8w. Default: any age, but 1d for rows at a "
            "PATH, as their readers hold no lock; 0 removes these too.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of run directories, which are counted and never removed.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """List what runs have left here (cached rows, copies of runs at URLs, temporary files, shared memory), and remove
    it with --yes. Rows that an unfinished run needs are kept while its directory is where it was: not those of a run
    that was moved."""
    age, now = 0.0 if older_than is None else seconds(older_than), time.time()
    items = [*_cache_items(), *_row_items(paths or [], older_than is None), *_copies(), *_leftovers()]
    selected = [
        item for item in items if not item.kept and (age == 0 or (item.used is not None and now - item.used >= age))
    ]
    removed = [item for item in selected if yes and item.remove()]
    root, cached = _cache(items, removed)
    if as_json:
        plain = [_plain(item, item in removed) for item in items]
        echo(as_text({"items": plain, "runs": _runs(runs), "cache": {"path": root, "bytes": cached}}))
        return
    _show(items, now)
    _conclude(items, selected, removed, yes)
    if Path(root).is_dir():
        _tell_cache(root, cached)
    count, size = _runs(runs)
    if count:
        from hopyard.views import words

        many = f"{count:,} run director{'y' if count == 1 else 'ies'}"
        ls = shell_command("ls", runs)
        echo(f"{runs}: {many}, {words.size(size)}; clean never removes these: `{ls}`, then rm -r")


def seconds(text: str) -> float:
    """Return "12h" in seconds; "0" needs no unit.

    Raises:
        UsageError: the text is not an age.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", "0d" if text == "0" else text)
    if not match:
        raise UsageError(f"--older-than must be a number with s, m, h, d or w (for example 30d), got {shown(text)}")
    return float(match[1]) * _UNITS[match[2]]


def _show(items: list[Item], now: float) -> None:
    from hopyard.views import words

    if not items:
        return
    rows = [["what", "size", "last used", "stays because", "where"]]
    for item in sorted(items, key=lambda item: (item.kind, item.used or 0.0)):
        ago = "unknown" if item.used is None else f"{_ago(now - item.used)} ago"
        rows.append([item.kind, words.size(item.bytes), ago, item.kept, item.path])
    columns(rows)


def _ago(age: float) -> str:
    if age >= 2 * DAY:
        return f"{age / DAY:.0f} days"
    return f"{age / 3600:.0f} h" if age >= 7200 else f"{max(0.0, age) / 60:.0f} min"


def _conclude(items: list[Item], selected: list[Item], removed: list[Item], yes: bool) -> None:
    from hopyard.views import words

    size = words.size(sum(item.bytes for item in (removed if yes else selected)))
    if yes:
        echo(f"{len(removed)} of {len(items)} removed, {size}")
        for item in selected:
            if item not in removed:
                say(f"{item.path}: could not be removed; it is in use, or may not be written")
    elif selected:
        echo(f"nothing was removed; --yes removes {len(selected)} of {len(items)}, {size}")
    else:
        echo("nothing to remove")


def _plain(item: Item, removed: bool) -> dict[str, Any]:
    names = ("kind", "path", "bytes", "used", "kept")
    return {**{name: getattr(item, name) for name in names}, "removed": removed}


def _cache(items: list[Item], removed: list[Item]) -> tuple[str, int]:
    """Return where the cache is, and how many bytes of these items are left in it."""
    from hopyard.data.partitions.cache import default_root

    root = str(default_root())
    return root, sum(item.bytes for item in items if item not in removed and item.path.startswith(f"{root}/"))


def _tell_cache(root: str, cached: int) -> None:
    from hopyard.data.keywords import CACHE_BYTES
    from hopyard.data.partitions.cache import STALE_SECONDS
    from hopyard.views import words

    echo(
        f"cache: {words.size(cached)} in {root}; at most {words.size(CACHE_BYTES)} (cache_bytes= of a Dataset), and "
        f"nothing that was unused for {STALE_SECONDS / DAY:.0f} days; XDG_CACHE_HOME names another folder"
    )


# ---------------------------------------------------------------- items


def _cache_items() -> Iterator[Item]:
    """Yield the entries of this user's caches."""
    from hopyard.data.partitions.cache import default_root, entries, is_pinned, sweep
    from hopyard.folders import temporary_folders

    for root in dict.fromkeys((default_root(), *(folder / "data" for folder in temporary_folders()))):
        if not root.is_dir() or root.lstat().st_uid != os.geteuid():
            continue
        sweep(root)
        for entry in entries(root):
            name = entry.path.name
            kind = "rows" if name.startswith("spark-") else "fetched rows" if "-" in name else "partitions"
            reason = _needed_by(entry.runs) or ("a process uses it" if is_pinned(entry.path) else "")
            yield Item(kind, str(entry.path), entry.bytes, entry.used, reason, entry.remove)


def _needed_by(runs: list[str]) -> str:
    return f"{runs[0]} may go on" + (f", and {len(runs) - 1} more" if len(runs) > 1 else "") if runs else ""


def _row_items(paths: list[str], keep_young: bool) -> Iterator[Item]:
    """Yield the folders that Dataset.spark wrote to these paths or URLs."""
    from hopyard.data.partitions.cache import rows_in
    from hopyard.filesystems import absolute

    for path in paths:
        for url in rows_in(absolute(path)):
            yield _folder(url, keep_young)


def _folder(url: str, keep_young: bool) -> Item:
    from hopyard.data.manifest import FILE
    from hopyard.data.partitions.cache import KILLED_SECONDS, remove_rows
    from hopyard.data.shared.needed import needed
    from hopyard.data.shared.storage import shared_directory

    folder = shared_directory(url)
    sizes, times = folder.sizes(), folder.times()
    used = max(times.values(), default=None)
    reason = _needed_by(needed(url))
    young = used is None or time.time() - used < KILLED_SECONDS
    if not reason and young and FILE not in sizes:
        reason = "it may be written right now"
    elif not reason and young and keep_young:
        reason = f"{'its age is unknown' if used is None else 'it is not a day old'}; --older-than 0 removes it"

    def remove() -> bool:
        try:
            remove_rows(url)
        except HopyardError as error:
            say(str(error))
            return False
        return True

    return Item("rows", url, sum(sizes.values()), used, reason, remove)


def _copies() -> Iterator[Item]:
    """Yield the copies on this host of runs whose directory is a URL. One that is ahead of its URL stays."""
    from hopyard.store.lock import locked
    from hopyard.store.urls import working

    for root in working.folders():
        reason = "" if working.is_whole(root) else f"{working.url_of(root)} may lack its end; hopyard resume copies it"
        reason = "a driver is at work there" if locked(root / "lock") else reason
        used = (root / working.URL).stat().st_mtime
        yield Item("copy of a run", str(root), total_bytes(root), used, reason, partial(_remove_copy, root))


def _remove_copy(root: Path) -> bool:
    """Remove a copy that its URL still has whole: a driver may have been at work since, or the URL may have lost it."""
    from hopyard.store.lock import Lock
    from hopyard.store.urls import working

    try:
        lock = Lock(root / "lock")
    except (HopyardError, OSError):
        return False
    try:
        working.fetch(root, driving=True)
        if not working.is_whole(root):
            return False
        shutil.rmtree(root)
        root.parent.rmdir()
    except (HopyardError, OSError) as error:
        say(str(error))
        return False
    finally:
        lock.free()
    return True


def _leftovers() -> Iterator[Item]:
    """Yield what killed processes have left in shared memory and in the temporary directory."""
    from hopyard.system.scratch import left, remove_if_alone

    temporary = Path(tempfile.gettempdir())
    for root in dict.fromkeys((Path("/dev/shm"), temporary)):  # noqa: S108
        kind = "shared memory" if root != temporary else "temporary"
        for path in left(root):
            remove = partial(remove_if_alone, path)
            yield Item(kind, str(path), total_bytes(path), path.lstat().st_mtime, "", remove)


def _runs(parent: Path) -> tuple[int, int]:
    """Return how many runs and programs there are, and their bytes."""
    from hopyard.store.layout import Layout

    parent = Path(without_scheme(str(parent)))
    directories = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    runs = []
    for path in directories:
        with contextlib.suppress(OSError):  # another user's
            if Layout(path).exists or Layout(path).program.exists():
                runs.append(path)
    return len(runs), sum(total_bytes(path) for path in runs)

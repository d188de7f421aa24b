"""Which runs may still need which rows: a note in the folder of the rows, for each run that has not ended.

A note names the host and the directory of its run. It counts for as long as that directory is there. Of a directory on
another host nobody here can tell: its note counts for ELSEWHERE_SECONDS after the run was last started or resumed, as
containers have a new host name each time, and would pin all that they ever read.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

from blake3 import blake3

from hopyard.data.manifest import Manifest
from hopyard.data.shared.storage import shared_directory

log = logging.getLogger(__name__)

ELSEWHERE_SECONDS = 30 * 86_400.0
"""For which the note of a run on another host counts."""
_NOTE = ".needed-"


def need(manifest: Manifest, run: Path) -> None:
    """The rows stay until `spare`, or until the run directory is removed. Never raises: of a place that cannot be
    written nothing is removed from here either."""
    try:
        where, name, text = _note(manifest, run)
        if "://" in where:
            shared_directory(where).put(name, text.encode())
        else:
            (Path(where) / name).write_text(text)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: no note that %s needs it: %s", manifest.key, run, error)


def spare(manifest: Manifest, run: Path) -> None:
    """The run has ended, and needs the rows no longer. Never raises."""
    try:
        where, name, _ = _note(manifest, run)
        if "://" in where:
            shared_directory(where).remove(name)
        else:
            (Path(where) / name).unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: the note that %s needs it stays: %s", manifest.key, run, error)


def needed(where: str | Path) -> list[str]:
    """The run directories that may still need the rows in this folder; with the host, when it is another one."""
    now = time.time()
    if isinstance(where, str) and "://" in where:
        folder = shared_directory(where)
        names = [name for name in folder.sizes() if name.startswith(_NOTE)]
        times = folder.times() if names else {}
        notes = [(folder.get(name).decode(), times.get(name, now)) for name in names]
    else:
        notes = [(note.read_text(), note.stat().st_mtime) for note in Path(where).glob(f"{_NOTE}*")]
    found = []
    for text, written in notes:
        host, _, path = text.partition(":")
        if host != socket.gethostname():
            if now - written < ELSEWHERE_SECONDS:
                found.append(text)
        elif Path(path).is_dir():
            found.append(path)
    return sorted(found)


def _note(manifest: Manifest, run: Path) -> tuple[str, str, str]:
    """(folder of the rows, name of the note, what it says)."""
    text = f"{socket.gethostname()}:{run.resolve()}"
    where = manifest.path if manifest.stored is None else manifest.stored.url
    return where, f"{_NOTE}{blake3(text.encode()).hexdigest()[:16]}", text

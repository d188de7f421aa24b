"""Notes which runs may still need which rows: a file in the folder of the rows, for each run that has not ended.

A note names the host and the directory of its run. It counts for as long as that directory exists. A directory on
another host cannot be checked here: its note counts for ELSEWHERE_SECONDS after the run was last started or resumed,
because containers have a new host name each time, and would pin all that they ever read.
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
"""For how long the note of a run on another host counts."""
_NOTE = ".needed-"


def need(manifest: Manifest, run: Path) -> None:
    """Keeps the rows until `spare`, or until the run directory is removed. Never raises: from a folder that cannot
    be written, this process can remove nothing either."""
    try:
        location, name, text = _note(manifest, run)
        if "://" in location:
            shared_directory(location).put(name, text.encode())
        else:
            (Path(location) / name).write_text(text)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: no note that %s needs it: %s", manifest.key, run, error)


def spare(manifest: Manifest, run: Path) -> None:
    """Removes the note of a run that has ended. Never raises."""
    try:
        location, name, _ = _note(manifest, run)
        if "://" in location:
            shared_directory(location).remove(name)
        else:
            (Path(location) / name).unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: the note that %s needs it stays: %s", manifest.key, run, error)


def needed(location: str | Path) -> list[str]:
    """Return the run directories that may still need the rows in this folder; with the host, if it is another."""
    now = time.time()
    if isinstance(location, str) and "://" in location:
        folder = shared_directory(location)
        names = [name for name in folder.sizes() if name.startswith(_NOTE)]
        times = folder.times() if names else {}
        notes = [(folder.get(name).decode(), times.get(name, now)) for name in names]
    else:
        notes = [(note.read_text(), note.stat().st_mtime) for note in Path(location).glob(f"{_NOTE}*")]
    runs = []
    for text, written in notes:
        host, _, path = text.partition(":")
        if host != socket.gethostname():
            if now - written < ELSEWHERE_SECONDS:
                runs.append(text)
        elif Path(path).is_dir():
            runs.append(path)
    return sorted(runs)


def _note(manifest: Manifest, run: Path) -> tuple[str, str, str]:
    """Return (folder of the rows, name of the note, its text)."""
    text = f"{socket.gethostname()}:{run.resolve()}"
    location = manifest.path if manifest.stored is None else manifest.stored.url
    return location, f"{_NOTE}{blake3(text.encode()).hexdigest()[:16]}", text

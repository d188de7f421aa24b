"""Which runs may still need which rows: a note in the folder of the rows, for each run that has not ended.

A note names the host and the directory of its run. It counts for as long as that directory is there; of a directory on
another host nobody here can tell, so it counts.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from blake3 import blake3

from hopyard.data.folder import Folder
from hopyard.data.manifest import Manifest

log = logging.getLogger(__name__)

_NOTE = ".needed-"


def need(manifest: Manifest, run: Path) -> None:
    """The rows stay until `spare`, or until the run directory is removed. Never raises: of a place that cannot be
    written nothing is removed from here either."""
    try:
        where, name, text = _note(manifest, run)
        if "://" in where:
            Folder(where).put(name, text.encode())
        else:
            (Path(where) / name).write_text(text)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: no note that %s needs it: %s", manifest.key, run, error)


def spare(manifest: Manifest, run: Path) -> None:
    """The run has ended, and needs the rows no longer. Never raises."""
    try:
        where, name, _ = _note(manifest, run)
        if "://" in where:
            Folder(where).remove(name)
        else:
            (Path(where) / name).unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - any file system
        log.debug("%s: the note that %s needs it stays: %s", manifest.key, run, error)


def needed(where: str | Path) -> list[str]:
    """The run directories that may still need the rows in this folder; with the host, when it is another one."""
    if isinstance(where, str) and "://" in where:
        folder = Folder(where)
        texts = [folder.get(name).decode() for name in folder.sizes() if name.startswith(_NOTE)]
    else:
        texts = [note.read_text() for note in Path(where).glob(f"{_NOTE}*")]
    found = []
    for text in texts:
        host, _, path = text.partition(":")
        if host != socket.gethostname():
            found.append(text)
        elif Path(path).is_dir():
            found.append(path)
    return sorted(found)


def _note(manifest: Manifest, run: Path) -> tuple[str, str, str]:
    """(folder of the rows, name of the note, what it says)."""
    text = f"{socket.gethostname()}:{run.resolve()}"
    where = manifest.path if manifest.stored is None else manifest.stored.url
    return where, f"{_NOTE}{blake3(text.encode()).hexdigest()[:16]}", text

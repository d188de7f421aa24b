"""Checkpoints of one task, in a folder of its own at a path or URL: trees of tensors, or folders of a framework.

Each is one file, there whole or not at all, and named by the number of its writing and its step: a program may count
its steps from 1 again, and clocks of hosts differ. The two that were written last are kept.
"""

from __future__ import annotations

import re
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Any

from hopyard.data.sources.paths import opened
from hopyard.errors import ResourceError, RunDirectoryError, SpecError
from hopyard.filesystems import PART, Directory, reaching
from hopyard.store.states import owner_of
from hopyard.store.tree import decode, encode
from hopyard.system.scratch import room_in, scratch_folder
from hopyard.text import shown

_NAME = re.compile(r"(\d+)-(-?\d+)\.(safetensors|zip)")
"""A tree, or a folder."""


class Checkpoints:
    """The folder of one task. Nobody else writes there: an attempt ends before the next one begins.

    Args:
        store: path or URL of the folder for all tasks.
        task: name of the task's folder in it.
        copies: folder on this host for copies.
        owner: the mark of the launch in the store; a later launch that continues from its checkpoints puts another
            one. "": nobody else can have the store.

    Raises:
        ResourceError: no room there, or it cannot be reached.
    """

    def __init__(self, store: str, task: str, copies: Path, owner: str = "") -> None:
        self._store, self._url, self._copies, self._owner = store, f"{store}/{task}", copies, owner
        with self._reaching("open", "ctx.checkpoint, ctx.restored"):
            self._directory = Directory(self._url)

    def put(self, content: Any, step: int) -> None:
        """Store a tree, or a folder given as a Path, and remove all but it and the one before. Raises RunDirectoryError
        where a later launch owns the store."""
        if isinstance(content, str):
            raise SpecError(f"ctx.checkpoint({shown(content)}): text is no tree; give a folder as a pathlib.Path")
        tree = None if isinstance(content, Path) else bytes(encode(content))
        with self._reaching("write to", "ctx.checkpoint"):
            self._require_owner()
            self._directory.make()
            names = self._directory.sizes()
            for part in [name for name in names if name.startswith(PART)]:  # of a killed writer
                self._directory.remove(part)
            written = _numbered(names)
            name = f"{1 + max(written, default=0):09d}-{step}"
            if tree is None:
                self._put_folder(f"{name}.zip", content)
            else:
                self._directory.put(f"{name}.safetensors", tree)
            for number in sorted(written)[:-1]:
                self._directory.remove(written[number])

    def last(self) -> tuple[Any, int] | None:
        """Return (tree, or the path of a copy of the folder, step) of the one that was written last; None: there is
        none. The copy stays until the next call."""
        name = ""
        with self._reaching("read", "ctx.restored"):
            while written := _numbered(self._directory.sizes()):
                before, name = name, written[max(written)]
                try:
                    return self._read(name)
                except FileNotFoundError:  # another task wrote two more, and removed it
                    if name == before:
                        raise
        return None

    def _read(self, name: str) -> tuple[Any, int]:
        match = _NAME.fullmatch(name)
        assert match is not None
        if match[3] == "safetensors":
            return decode(self._directory.get(name)), int(match[2])
        copy = self._copies / "restored"
        shutil.rmtree(copy, ignore_errors=True)
        with opened(f"{self._url}/{name}") as file, zipfile.ZipFile(file) as archive, room_in(copy, name):
            archive.extractall(copy)
        return copy, int(match[2])

    def _put_folder(self, name: str, folder: Path) -> None:
        if not folder.is_dir():
            raise SpecError(f"ctx.checkpoint({shown(folder)}): must be a tree, or the path of a folder that is there")
        with scratch_folder("checkpoint", self._copies) as copy:
            with room_in(copy, folder):
                _pack(folder, copy / name)
            self._directory.put(name, copy / name)

    def _require_owner(self) -> None:
        if self._owner and owner_of(self._store) != self._owner:
            raise RunDirectoryError(
                f"ctx.checkpoint: {self._store} belongs to a later launch, which continues from its checkpoints, or "
                f"this program is over (host {socket.gethostname()}); nothing was written. Give each program a store= "
                "of its own"
            )

    def _reaching(self, verb: str, argument: str) -> Any:
        return reaching(self._url, verb, ResourceError, argument)


def _numbered(names: Any) -> dict[int, str]:
    """Return names of checkpoints by the number of their writing."""
    return {int(match[1]): name for name in names if (match := _NAME.fullmatch(name))}


def _pack(folder: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", strict_timestamps=False) as archive:  # not compressed: weights would gain little
        archive.write(folder, ".")  # drivers of URLs cannot seek in an archive without an entry, which has 22 bytes
        for file in sorted(folder.rglob("*")):
            if not (file.is_file() or file.is_dir()):
                raise SpecError(
                    f"ctx.checkpoint({shown(folder)}): {file.relative_to(folder)} is a pipe, a socket or a link to "
                    "nothing; leave it out"
                )
            archive.write(file, file.relative_to(folder))

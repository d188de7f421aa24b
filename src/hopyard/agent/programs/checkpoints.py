"""Checkpoints of one task, in a folder of its own at a path or URL: trees of tensors, or folders of a framework.

Each is one file, there whole or not at all, and named by the number of its writing and its step: a program may count
its steps from 1 again, and clocks of hosts differ. The two that were written last are kept.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from hopyard.agent.programs.local_files import room_in
from hopyard.data.sources.paths import is_local, opened
from hopyard.errors import ResourceError, SpecError
from hopyard.filesystems import PART, Directory, reaching
from hopyard.store.journal import write_whole
from hopyard.store.tree import decode, encode
from hopyard.system.files import replacing, sync, sync_directory
from hopyard.system.scratch import scratch_folder
from hopyard.text import shown

_NAME = re.compile(r"(\d+)-(-?\d+)\.(safetensors|zip)")
"""A tree, or a folder."""


class Checkpoints:
    """The folder of one task. Nobody else writes there: an attempt ends before the next one begins.

    Args:
        url: its path or URL.
        copies: folder on this host for copies.

    Raises:
        ResourceError: no room there, or it cannot be reached.
    """

    def __init__(self, url: str, copies: Path) -> None:
        self._url, self._copies = url, copies
        with self._reaching("open"):
            self._directory = Directory(url)

    def put(self, content: Any, step: int) -> None:
        """Store a tree, or a folder given as a Path, and remove all but it and the one before."""
        if isinstance(content, str):
            raise SpecError(f"ctx.checkpoint({shown(content)}): text is no tree; give a folder as a pathlib.Path")
        tree = None if isinstance(content, Path) else bytes(encode(content))
        with self._reaching("write to"):
            self._directory.make()
            names = self._directory.sizes()
            for part in [name for name in names if name.startswith(PART)]:  # of a killed writer
                self._directory.remove(part)
            written = _numbered(names)
            name = f"{1 + max(written, default=0):09d}-{step}"
            if tree is None:
                self._put_folder(f"{name}.zip", content)
            elif is_local(self._url):
                write_whole(Path(self._url, f"{name}.safetensors"), tree)
            else:
                self._directory.put(f"{name}.safetensors", tree)
            for number in sorted(written)[:-1]:
                self._directory.remove(written[number])

    def last(self) -> tuple[Any, int] | None:
        """Return (tree, or the path of a copy of the folder, step) of the one that was written last; None: there is
        none. The copy stays until the next call."""
        with self._reaching("read"):
            written = _numbered(self._directory.sizes())
            if not written:
                return None
            name = written[max(written)]
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
        if is_local(self._url):
            with replacing(Path(self._url, name)) as part:
                _pack(folder, part)
                sync(part)
            sync_directory(Path(self._url))
            return
        with scratch_folder("checkpoint", self._copies) as copy:
            with room_in(copy, folder):
                _pack(folder, copy / name)
            self._directory.put(name, copy / name)

    def _reaching(self, verb: str) -> Any:
        return reaching(self._url, verb, ResourceError, "ctx.checkpoint")


def _numbered(names: Any) -> dict[int, str]:
    """Return names of checkpoints by the number of their writing."""
    return {int(match[1]): name for name in names if (match := _NAME.fullmatch(name))}


def _pack(folder: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", strict_timestamps=False) as archive:  # not compressed: weights would gain little
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))

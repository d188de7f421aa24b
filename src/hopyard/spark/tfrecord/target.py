"""The directory that a DataFrame is written to: tasks write in a hidden folder in it, and at the end files get names.

It knows nothing of what is in the files. Its errors reach the user of `save_tfrecords`, so messages speak of `path`.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Sequence

from hopyard import filesystems
from hopyard.data.shared.storage import reaching
from hopyard.errors import SpecError

PROBE = "probe"
"""A file that the driver makes first: a task that does not see it writes nothing."""
_HIDDEN = "_temporary-"


class Target:
    """A directory at a path or URL that driver and executors share. One job writes to it, by one object of this class.

    Args:
        url: URL of the directory, which need not exist.
        overwrite: whether what is in it is removed when the new files get their names.

    Raises:
        SpecError: it is a file, or it holds something that may not be removed.
    """

    def __init__(self, url: str, overwrite: bool) -> None:
        self.url, self._overwrite = url, overwrite
        with reaching(url, "open"):
            self._system, root = filesystems.open_url(url)
            self._root = root.rstrip("/")
            self._new = not filesystems.is_there(self._system, self._root)
        self._hidden = f"{self._root}/{_HIDDEN}{secrets.token_hex(8)}"
        self._require_vacant()

    @property
    def hidden(self) -> str:
        """URL of the folder for tasks; `make` makes it."""
        return f"{self.url}/{posixpath.basename(self._hidden)}"

    def make(self) -> None:
        """Makes the hidden folder."""
        with reaching(self.url, "write to"):
            self._system.makedirs(self._hidden, exist_ok=True)
            self._system.pipe_file(f"{self._hidden}/{PROBE}", b"")

    def finish(self, names: Sequence[tuple[str, str]]) -> None:
        """Gives files of the hidden folder their names: pairs of (hidden name, final name). At last makes _SUCCESS."""
        with reaching(self.url, "write to"):
            self._require_vacant()
            for entry in self._entries():
                self._system.rm(entry, recursive=True)
            for hidden, final in names:
                self._system.mv(f"{self._hidden}/{hidden}", f"{self._root}/{final}")
            self._system.pipe_file(f"{self._root}/_SUCCESS", b"")

    def close(self) -> None:
        """Removes the hidden folder, and the directory if it is empty and was not there before."""
        with reaching(self.url, "write to"):
            self._system.invalidate_cache()
            if self._system.exists(self._hidden):
                self._system.rm(self._hidden, recursive=True)
            if self._new and self._system.exists(self._root) and not self._system.ls(self._root, detail=False):
                self._system.rmdir(self._root)

    def _require_vacant(self) -> None:
        with reaching(self.url, "read"):
            if self._system.isfile(self._root):
                raise SpecError(f"path = {self.url!r} is a file; name a directory that is empty or not there")
            names = [posixpath.basename(entry.rstrip("/")) for entry in self._entries()]
        if not self._overwrite and (names := [name for name in names if not name.startswith(_HIDDEN)]):
            raise SpecError(
                f"path = {self.url!r} holds {len(names)} files or folders, {sorted(names)[0]!r} and so on; name a "
                f'directory that is empty or not there, or remove what is in it with mode="overwrite"'
            )

    def _entries(self) -> list[str]:
        """Return all that is in the directory but the own hidden folder, never from a cache."""
        self._system.invalidate_cache()
        if not self._system.isdir(self._root):
            return []
        entries = [str(entry).rstrip("/") for entry in self._system.ls(self._root, detail=False)]
        own = posixpath.basename(self._hidden)
        return [entry for entry in entries if posixpath.basename(entry) != own and entry != self._root]

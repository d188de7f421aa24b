"""Local copies of files at URLs, for frameworks that open paths only: made ahead of the reader, removed behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from hopyard.data.sources.paths import is_local
from hopyard.errors import DataError
from hopyard.filesystems import open_url, reaching
from hopyard.system.scratch import room_in, scratch_folder

_NAME = 60
"""Characters of a file's own name that its copy keeps: those at the end, as readers go by the suffix."""


def local_paths(files: Sequence[str], folder: Path, ahead: int, keep: int) -> Iterator[str]:
    """Yield a local path of each file, in order. A file of this host is not copied.

    At most `ahead + keep` copies exist at once. What a killed process left is removed by the next call.

    Args:
        files: absolute paths, or URLs.
        folder: of the task on this host, in which the copies get a folder of their own.
        ahead: number of copies that are made, or wait, ahead of the reader.
        keep: number of paths that stay valid: the one that was yielded last, and those before it.

    Raises:
        DataError: a file cannot be read.
        ResourceError: no room for a copy.
    """
    if all(map(is_local, files)):
        yield from files
        return
    with scratch_folder("files", folder) as copies, ThreadPoolExecutor(ahead, "hopyard-files") as pool:
        waiting = iter(enumerate(files))

        def begin(count: int) -> list[Future[str]]:
            return [
                pool.submit(_local, file, copies / f"{number}-{Path(file).name[-_NAME:]}")
                for number, file in islice(waiting, count)
            ]

        coming, kept = deque(begin(ahead)), deque[str]()
        try:
            while coming:
                if len(kept) == keep:
                    _remove(kept.popleft(), copies)
                kept.append(coming.popleft().result())
                coming.extend(begin(1))
                yield kept[-1]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # else a copy would be made in a folder that is gone


def _local(file: str, copy: Path) -> str:
    if is_local(file):
        return file
    with reaching(file, "read", DataError, "ctx.files"), room_in(copy.parent, file):
        system, path = open_url(file)
        system.get_file(path, str(copy))
    return str(copy)


def _remove(path: str, folder: Path) -> None:
    if Path(path).parent == folder:
        Path(path).unlink(missing_ok=True)

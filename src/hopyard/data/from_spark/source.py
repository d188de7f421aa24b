"""Finds a materialisation by its URL, from any process, without what it was made from; and names the folder of a new
one: at random, or from the user's `name=` and all that decides what is written.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from blake3 import blake3

from hopyard import checks
from hopyard.data.encoding.transform import Transform
from hopyard.data.manifest import FILE, Manifest, manifest_in
from hopyard.data.partitions.cache import pin
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import absolute
from hopyard.sparkapi.dataframe import on_this_host
from hopyard.text import shown

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


@dataclass(frozen=True, slots=True)
class MaterializedSource:
    """Rows that have been written as partitions.

    Attributes:
        url: that of the folder, absolute.
        cached: whether the folder is an entry of this user's cache: then it is pinned while it is used, as any entry.
        what: names what it was made from, for messages; empty: not known.
        transform: the user's transform, through which they went, if it is known.
    """

    url: str
    cached: bool = False
    what: str = ""
    transform: Transform | None = None

    def __repr__(self) -> str:
        return self.url

    @property
    def source(self) -> NoReturn:
        """Raises SpecError: the rows are encoded already, so they cannot be read as rows."""
        refuse(self.url)

    def find(self) -> Manifest | None:
        """Return the manifest; None when there is none. An entry of the cache is pinned while the Manifest lives.

        Raises:
            DataError: the file is not a manifest, or of another version.
            SpecError: the URL cannot be opened.
        """
        with reaching(self.url, "read"):
            pinned = pin(Path(self.url).parent, Path(self.url).name) if self.cached else None
            try:
                data = shared_directory(self.url).get(FILE)
            except (FileNotFoundError, NotADirectoryError):
                return None
        manifest = manifest_in(data, f"{self.url}/{FILE}")
        if manifest.stored is None:
            raise DataError(
                f"{self.url} is an entry of a cache, not what Dataset.spark(…) wrote; name its source again instead"
            )
        if pinned is not None:
            weakref.finalize(manifest, pinned.close)
        return manifest

    def prepare(self, limit: int, cache: Path | None = None) -> Manifest:
        """Return the manifest, for this process.

        Args:
            limit: bytes that a host's cache may take.
            cache: directory for the partitions that a host fetches; None: the cache of the user there.

        Raises:
            DataError: there is none.
        """
        manifest = self.find()
        if manifest is None or manifest.stored is None:
            hint = f" {self.what} is materialised there by prepare() in the process that has its session;"
            raise DataError(
                f"no data set at {self.url}: there is no {FILE}, which is written last;"
                f"{hint if self.what else ''} give the URL that Dataset.spark(…, path=…).url names, or make it again"
            )
        manifest.path = "" if cache is None else str(cache)
        manifest.stored = msgspec.structs.replace(manifest.stored, url=self.url, limit=limit)  # it may have moved
        return manifest


def refuse(url: str) -> NoReturn:
    """Raises SpecError: the rows are encoded already, so they cannot be read as rows."""
    raise SpecError(
        f"the rows of {url} are encoded already, so they cannot be read as rows; to predict or evaluate, give rows: a "
        f"pandas DataFrame (df.limit(n).toPandas()), an Arrow table (df.toArrow()), or Dataset.parquet"
    )


def folder_for(
    df: Any,
    settings: Sequence[Any],
    transform: Transform | None,
    path: str | os.PathLike[str] | None,
    name: str | None,
    cache: str,
) -> MaterializedSource:
    """Return the source of the folder for the rows of these frames.

    Args:
        df: a DataFrame of the session that writes them.
        settings: all that decides what is written, except the rows, as plain values.
        transform: the user's.
        path: directory for such folders; None: the cache, which is the executors' too when they run on this host.
        name: the user's name; equal names and equal `settings` give the same folder. None: a new one each time.
        cache: directory of the user's cache.

    Raises:
        SpecError: a value is not allowed; executors are on other hosts, and there is no path=.
    """
    name = checks.scalar(name)
    if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name)):
        raise SpecError(
            f'name = {shown(name)}: 1 to 64 letters of ASCII, digits, ".", "_" and "-" are allowed, a letter or a '
            'digit first, such as "flights-v1"'
        )
    if path is not None:
        checks.path("path", path, "a path or URL that driver and executors share")
    if path is None and not on_this_host(df):
        master = df.sparkSession.conf.get("spark.master", "unknown")
        raise SpecError(
            f"path = None: the executors of this session ({master}) may run on other hosts; path= must name a place "
            f"that driver and executors share: a path on NFS, or a URL of HDFS, S3 and the like"
        )
    folder = secrets.token_hex(12)
    if name is not None:
        folder = f"{name}-{blake3(msgspec.json.encode([name, *settings])).hexdigest()[:32]}"
    root = cache if path is None else absolute(path)
    return MaterializedSource(f"{root}/spark-{folder}", path is None, "the DataFrame", transform)

"""Where a DataFrame is materialised: in `path=`, in a folder whose name is random, or follows from the user's `name=`
and from what is asked of the rows.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.data.from_spark.source import MaterializedSource
from hopyard.errors import SpecError
from hopyard.filesystems import absolute
from hopyard.sparkapi.dataframe import on_this_host

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


def folder_for(
    df: Any, asked: Sequence[Any], path: str | os.PathLike[str] | None, name: str | None, cache: str
) -> MaterializedSource:
    """The folder for the rows of these frames.

    Args:
        df: a DataFrame of the session that writes them.
        asked: all but the rows that decides what is written, as plain values.
        path: where folders are made; None: the cache, which is the executors' too when they run on this host.
        name: the user's; an equal one and equal `asked` lead to the same folder. None: to a new folder each time.
        cache: directory of the user's cache.

    Raises:
        SpecError: a value is not allowed; executors are elsewhere, and there is no path=.
    """
    if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name)):
        raise SpecError(
            f'name = {name!r}: 1 to 64 letters of ASCII, digits, ".", "_" and "-" are allowed, a letter or a digit '
            'first, such as "flights-v1"'
        )
    if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
        raise SpecError(f"path = {path!r}: a path or URL that driver and executors share is needed")
    if path is None and not on_this_host(df):
        master = df.sparkSession.conf.get("spark.master", "unknown")
        raise SpecError(
            f"path = None: the executors of this session ({master}) may run on other hosts; path= must name a place "
            f"that driver and executors share: a path on NFS, or a URL of HDFS, S3 and the like"
        )
    folder = secrets.token_hex(12)
    if name is not None:
        folder = f"{name}-{blake3(msgspec.json.encode([name, *asked])).hexdigest()[:32]}"
    root = cache if path is None else absolute(path)
    return MaterializedSource(f"{root}/spark-{folder}", path is None, "the DataFrame")

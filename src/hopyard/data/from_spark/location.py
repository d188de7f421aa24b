"""Where a DataFrame is materialised: in `path=`, under a random name, or one that follows from what it is made of."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.data.from_spark.plans import identity
from hopyard.data.from_spark.source import Kept
from hopyard.errors import SpecError
from hopyard.filesystems import absolute
from hopyard.sparkapi.dataframe import on_this_host

log = logging.getLogger(__name__)


def place(
    frames: Sequence[Any], what: Sequence[Any], path: str | os.PathLike[str] | None, reuse: bool, cache: str
) -> Kept:
    """The folder for these frames.

    Args:
        frames: all DataFrames of the data set.
        what: all else that decides what is written, as plain values.
        path: where folders are made; None: the cache, which is the executors' too when they run on this host.
        reuse: whether equal frames and equal `what` lead to the same folder.
        cache: directory of the user's cache.

    Raises:
        SpecError: a value is not allowed; executors are elsewhere, and there is no path=.
    """
    if not isinstance(reuse, bool):
        raise SpecError(f"reuse = {reuse!r}: True or False is needed")
    if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
        raise SpecError(f"path = {path!r}: a path or URL that driver and executors share is needed")
    if path is None and not on_this_host(frames[0]):
        master = frames[0].sparkSession.conf.get("spark.master", "unknown")
        raise SpecError(
            f"path = None: the executors of this session ({master}) may run on other hosts; path= must name a place "
            f"that driver and executors share: a path on NFS, or a URL of HDFS, S3 and the like"
        )
    name = secrets.token_hex(12)
    told = [identity(frame) for frame in frames] if reuse else []
    if None in told:
        log.warning(
            "reuse = True, but nobody tells whether the rows of the DataFrame are what they were (it runs Python code, "
            "asks for the time, or reads what is no file): they are materialised anew; write them to Parquet to reuse "
            "them, or keep the .url and give it to Dataset.open"
        )
    elif reuse:
        known = [told, list(what)]
        name = blake3(msgspec.json.encode(known)).hexdigest()[:32]
    root = cache if path is None else absolute(path)
    return Kept(f"{root}/spark-{name}", path is None, "the DataFrame")

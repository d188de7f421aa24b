"""Writes and reads an Estimator or a Model as Params and bytes, in a folder that Spark can reach.

    metadata/   pyspark.ml's own: class, uid, Params as JSON; values that JSON lacks are left out
    files/      Parquet: group, name, part, bytes

Spark writes both, so that any file system of the session will do, and a Connect session too. What is written over an
older version goes to a folder of its own, `files-1/`, `files-2/`, …; then a file in `metadata/` names it, and what is
older is removed. So the old or the new version is there at any moment; readers take the newest one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from hopyard.errors import RunDirectoryError
from hopyard.sparkapi import is_connect
from hopyard.system.owners import other_writers

TRUST = "spark.hopyard.trust"
"""Setting of Spark: "true" lets folders be read that other users may write."""
PART = 32 << 20
"""Bytes of one row: Spark holds rows in memory, and none may have more than 2 GB."""

ROW = "group string, name string, part int, bytes binary"
"""The schema of `files/`."""

Groups = Mapping[str, Mapping[str, bytes]]


class FileWriter(MLWriter):
    """Writes an instance of Params.

    Args:
        instance: what is written.
        groups: group → name → content.
        extra: more for the metadata.
        excluded: names of Params that are not written as JSON.
    """

    def __init__(
        self, instance: Any, groups: Groups, extra: dict[str, Any], excluded: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self._instance, self._groups, self._extra, self._excluded = instance, groups, extra, excluded

    def save(self, path: str) -> None:
        """Write to a folder, which must not exist unless `overwrite()` was called."""
        older = _versions(self.sparkSession, path) if self.shouldOverwrite else []
        if older or is_connect(self.sparkSession):  # what pyspark does first, to overwrite, needs the JVM
            self._write(path, older)
        else:
            super().save(path)

    def saveImpl(self, path: str) -> None:
        """Write, once the folder is free."""
        self._write(path, [])

    def _write(self, path: str, older: list[_Version]) -> None:
        mode = "overwrite" if self.shouldOverwrite else "error"
        number = older[-1].number + 1 if older else 0
        params = {p.name: v for p, v in self._instance._paramMap.items() if p.name not in self._excluded}
        session: Any = self.sparkSession
        text = DefaultParamsWriter._get_metadata_to_save(
            self._instance, session, {"hopyard": self._extra, "hopyardVersion": number}, paramMap=params
        )
        rows = [
            (group, name, offset // PART, bytearray(content[offset : offset + PART]))
            for group, files in self._groups.items()
            for name, content in files.items()
            for offset in range(0, max(1, len(content)), PART)
        ]
        session.createDataFrame(rows, ROW).write.mode(mode).parquet(f"{path}/{_files(number)}")
        metadata = session.createDataFrame([(text,)], "value string").coalesce(1)
        metadata.write.mode("append" if older else mode).text(f"{path}/metadata")
        _remove(session, path, older)


class _Version(NamedTuple):
    """One line of `metadata/`."""

    number: int
    """From 0."""
    file: str
    """The name of its file."""
    metadata: dict[str, Any]


def _files(number: int) -> str:
    return f"files-{number}" if number else "files"


def _versions(session: Any, path: str) -> list[_Version]:
    """Return the versions that are there, the newest one last; [] where FileWriter wrote none."""
    from pyspark.errors import AnalysisException

    try:
        lines = session.read.text(f"{path}/metadata").selectExpr("value", "_metadata.file_name AS file")
        rows = [(json.loads(row["value"]), row["file"]) for row in lines.collect()]
    except (AnalysisException, ValueError):
        return []
    if not all("hopyard" in metadata for metadata, _ in rows):
        return []
    return sorted(_Version(metadata.get("hopyardVersion", 0), file, metadata) for metadata, file in rows)


def _remove(session: Any, path: str, versions: list[_Version]) -> None:
    """Remove versions. In a Connect session, which can delete no files, only their contents."""
    if is_connect(session):
        for version in versions[-1:]:
            session.createDataFrame([], ROW).write.mode("overwrite").parquet(f"{path}/{_files(version.number)}")
        return
    for version in versions:
        for name in (_files(version.number), f"metadata/{version.file}"):
            _delete(session, f"{path}/{name}")


def _delete(session: Any, path: str) -> None:
    context = session.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    place.getFileSystem(context._jsc.hadoopConfiguration()).delete(place, True)


class FileReader(MLReader[Any]):
    """Reads what FileWriter wrote.

    Args:
        kind: the class that must have been written.
        make: (group → name → content, extra) → the instance, without its Params.
    """

    def __init__(self, kind: type, make: Callable[[dict[str, dict[str, bytes]], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._kind, self._make = kind, make

    def load(self, path: str) -> Any:
        """Return the instance.

        Raises:
            RunDirectoryError: something else was written there, or others than this user and root may write there.
        """
        session: Any = self.sparkSession
        _refuse_others(session, path)
        version, rows = _newest(session, path)
        metadata = version.metadata
        if metadata["class"].rpartition(".")[2] != self._kind.__name__:
            raise RunDirectoryError(f"{path}: it holds a {metadata['class']}, not a {self._kind.__name__}")
        groups: dict[str, dict[str, bytes]] = {}
        for row in rows:
            files = groups.setdefault(row["group"], {})
            files[row["name"]] = files.get(row["name"], b"") + bytes(row["bytes"])
        instance = self._make(groups, metadata["hopyard"])
        instance._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(instance, metadata)
        return instance


def _newest(session: Any, path: str) -> tuple[_Version, list[Any]]:
    """Return the newest version, and the rows of its files. Another may be written, and this one removed, meanwhile."""
    before = _listed(session, path)
    try:
        versions = _versions(session, path)
        if not versions:
            metadata = DefaultParamsReader.loadMetadata(path, session)  # raises where there is nothing
            raise RunDirectoryError(f"{path}: it holds a {metadata['class']}, which Hopyard did not write")
        table = session.read.parquet(f"{path}/{_files(versions[-1].number)}")
        return versions[-1], table.orderBy("group", "name", "part").collect()
    except Exception:
        if _listed(session, path) == before:
            raise
    return _newest(session, path)


def _listed(session: Any, path: str) -> list[str]:
    """Return the files of `metadata/`; [] where there is none."""
    from pyspark.errors import AnalysisException

    try:
        return sorted(session.read.text(f"{path}/metadata").inputFiles())
    except AnalysisException:
        return []


def _refuse_others(session: Any, path: str) -> None:
    """Raise RunDirectoryError where others than this user and root may write in a folder of this host, or in one of its
    files, unless `spark.hopyard.trust` is true. Other file systems do not say here whose a file is."""
    if session.conf.get(TRUST, "false").lower() == "true":
        return
    local = re.sub("^file:(//[^/]*)?(?=/)", "", path)  # Hadoop decodes nothing in it
    folders = [Path(folder) for folder in [local, *glob(local)]]  # noqa: PTH207 - patterns, where Spark takes them so
    for file in [
        file for folder in folders for file in (folder / "metadata", *folder.glob("files*"), *folder.glob("*/*"))
    ]:
        writers = ""
        with suppress(FileNotFoundError, NotADirectoryError):  # another version is written meanwhile, say
            writers = other_writers(file)
        if writers:
            raise RunDirectoryError(
                f"{path}: {file.name}: {writers}, and pickles are among what is read, which runs their code. Copy the "
                f"folder to one of your own that nobody else may write; or, if you trust them, set {TRUST}=true in the "
                "Spark session"
            )

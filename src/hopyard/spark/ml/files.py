"""Writes and reads an Estimator or a Model as Params and bytes, in a folder that Spark can reach.

    metadata/   pyspark.ml's own: class, uid, Params as JSON; values that JSON lacks are left out
    files/      Parquet: group, name, part, bytes

Spark writes both, so that any file system of the session will do, and a Connect session too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from glob import glob
from pathlib import Path
from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from hopyard.errors import RunDirectoryError
from hopyard.sparkapi.session import is_connect
from hopyard.system.owners import other_writers

TRUST = "spark.hopyard.trust"
"""Setting of Spark: "true" lets folders be read that other users may write."""
PART = 32 << 20
"""Bytes of one row: Spark holds rows in memory, and none may have more than 2 GB."""

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
        if is_connect(self.sparkSession):
            self.saveImpl(path)  # what pyspark does first, to overwrite, needs the JVM
        else:
            super().save(path)

    def saveImpl(self, path: str) -> None:
        """Write, once the folder is free."""
        mode = "overwrite" if self.shouldOverwrite else "error"
        params = {p.name: v for p, v in self._instance._paramMap.items() if p.name not in self._excluded}
        session: Any = self.sparkSession
        text = DefaultParamsWriter._get_metadata_to_save(
            self._instance, session, {"hopyard": self._extra}, paramMap=params
        )
        rows = [
            (group, name, offset // PART, bytearray(content[offset : offset + PART]))
            for group, files in self._groups.items()
            for name, content in files.items()
            for offset in range(0, max(1, len(content)), PART)
        ]
        session.createDataFrame([(text,)], "value string").coalesce(1).write.mode(mode).text(f"{path}/metadata")
        table = session.createDataFrame(rows, "group string, name string, part int, bytes binary")
        table.write.mode(mode).parquet(f"{path}/files")


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
        metadata = json.loads(session.read.text(f"{path}/metadata").first()[0])
        if "hopyard" not in metadata or metadata["class"].rpartition(".")[2] != self._kind.__name__:
            raise RunDirectoryError(f"{path}: it holds a {metadata['class']}, not a {self._kind.__name__}")
        groups: dict[str, dict[str, bytes]] = {}
        rows = session.read.parquet(f"{path}/files").orderBy("group", "name", "part").collect()
        for row in rows:
            files = groups.setdefault(row["group"], {})
            files[row["name"]] = files.get(row["name"], b"") + bytes(row["bytes"])
        instance = self._make(groups, metadata["hopyard"])
        instance._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(instance, metadata)
        return instance


def _refuse_others(session: Any, path: str) -> None:
    """Raise RunDirectoryError where others than this user and root may write in a folder of this host, or in one of its
    files, unless `spark.hopyard.trust` is true. Other file systems do not say here whose a file is."""
    if session.conf.get(TRUST, "false").lower() == "true":
        return
    local = re.sub("^file:(//[^/]*)?(?=/)", "", path)  # Hadoop decodes nothing in it
    folders = [Path(folder) for folder in [local, *glob(local)]]  # noqa: PTH207 - patterns, where Spark takes them so
    for file in [file for folder in folders for file in (folder / "metadata", folder / "files", *folder.glob("*/*"))]:
        if file.exists() and (writers := other_writers(file)):
            raise RunDirectoryError(
                f"{path}: {file.name}: {writers}, and pickles are among what is read, which runs their code. Copy the "
                f"folder to one of your own that nobody else may write; or, if you trust them, set {TRUST}=true in the "
                "Spark session"
            )

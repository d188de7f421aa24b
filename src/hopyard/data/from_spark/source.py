"""The rows of a DataFrame as a source: before they are materialised, and found by their URL from then on.

It checks what can be checked without a job, and names the folder: at random, or from the user's `name=` and all that
decides what is written.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec
import pyarrow as pa
from blake3 import blake3

from hopyard import checks
from hopyard.data.encoding.finalize import FeatureFinalizer
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.encoding.transform import Transform, identity, pickled
from hopyard.data.from_spark.job import check_same_columns, materialise
from hopyard.data.manifest import FILE, FORMAT, Manifest, manifest_in
from hopyard.data.options import BuildOptions, ColumnSpec
from hopyard.data.partitions.builder import vocabularies
from hopyard.data.partitions.cache import evict, pin
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import absolute
from hopyard.sparkapi.dataframe import alive, is_deterministic, narrowed, on_this_host, schema, types
from hopyard.text import shell_command, shown

log = logging.getLogger(__name__)

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

    is_streamed: ClassVar[bool] = False

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

    def find(self, half: bool = True) -> Manifest | None:
        """Return the manifest; None when there is none. An entry of the cache is pinned while the Manifest lives.

        Args:
            half: whether half a manifest is an error. Where files cannot be renamed, one is seen while it is written.

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
        if not half and not data.endswith(b"\n}\n"):
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


@dataclass(frozen=True, slots=True)
class DataFrameSource:
    """Rows that are a DataFrame until they are materialised, and `materialized` from then on, also in a pickle.

    Attributes:
        frames: that of the training rows; and that of the validation rows, if they have their own.
        options: how they are cut.
        code: the transform's pickle, or None.
        materialized: its partitions, which exist or will be written.
        columns: for each frame, the types of the columns that are read, as Spark names them.
        name: the user's name, by which the rows are found again, or None.
    """

    is_streamed: ClassVar[bool] = False

    frames: tuple[Any, ...]
    options: BuildOptions
    code: bytes | None
    materialized: MaterializedSource
    columns: tuple[dict[str, str], ...]
    name: str | None

    def __repr__(self) -> str:
        return f"Spark DataFrame for {self.materialized.url}"

    @property
    def url(self) -> str:
        """The path or URL of the folder, which may not exist yet."""
        return self.materialized.url

    @property
    def transform(self) -> Transform | None:
        """The user's transform, if any."""
        return self.materialized.transform

    @property
    def source(self) -> NoReturn:
        """Raises SpecError: the driver does not read the rows."""
        refuse(self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle is that of the materialised rows, which need neither frames nor session."""
        return replace, (self.materialized,)

    def prepare(self, limit: int, cache: Path | None = None) -> Manifest:
        """Return the manifest; materialises the rows first when there is none. Arguments and errors as those of
        `MaterializedSource.prepare`.

        Raises:
            SpecError: the rows found under its name were made of other columns.
        """
        if (existing := self.materialized.find(half=False)) is not None:
            self._compare(existing)
            return self.materialized.prepare(limit, cache)
        alive(self.frames[0])
        materialise(self.url, self.frames, self.columns, self.options, self.code)
        manifest = self.materialized.prepare(limit, cache)
        if self.materialized.cached:
            evict(Path(self.materialized.url).parent, limit)  # not the new entry, which `manifest` pins
        return manifest

    def _compare(self, existing: Manifest) -> None:
        for number, (source, current) in enumerate(zip(existing.sources, self.columns, strict=True)):
            changes = [
                _change(column, source.columns.get(column), current.get(column))
                for column in dict.fromkeys([*source.columns, *current])
                if source.columns.get(column) != current.get(column)
            ]
            if changes:
                raise SpecError(
                    f"name = {self.name!r}: the rows in {self.url} were made of other columns than "
                    f"{'validation=' if number else 'df'} has now: "
                    f"{'; '.join(changes)}. Give these rows a name= of their own, or remove the others with "
                    f"`{shell_command('clean', self.url, ' --yes --older-than 0')}`"
                )


def from_spark(
    frames: Sequence[Any],
    options: BuildOptions,
    transform: Transform | None,
    *,
    path: str | os.PathLike[str] | None,
    name: str | None,
    cache: str,
) -> DataFrameSource:
    """Return the source of Dataset.spark, after all checks that need no job.

    Raises:
        SpecError, DataError: as Dataset.spark.
    """
    spec, second_spec = options.spec, msgspec.structs.replace(options.spec, validation=None)
    if transform is None:
        planned = []
        for number, df in enumerate(frames):
            frame_label, frame_spec = ("the validation= DataFrame", second_spec) if number else ("the DataFrame", spec)
            narrow = narrowed(df, frame_spec.names, frame_label)
            batch = pa.RecordBatch.from_pylist([], schema=schema(narrow))
            _check_features(batch, frame_spec, frame_label)
            fields = infer_fields(batch, frame_spec, frame_label)
            planned.append((narrow, fields))
            FeatureFinalizer(fields, vocabularies(frame_spec), {})
        frames = [narrow for narrow, _ in planned]
        if len(planned) > 1:
            first, second = (fields for _, fields in planned)
            check_same_columns((first, "the first"), (second, "the validation= DataFrame"), "cast it")
    for number, df in enumerate(frames):
        if is_deterministic(df) is False:
            _say_not_deterministic("the validation= DataFrame" if number else "the DataFrame")
    code = None if transform is None else pickled(transform)
    seed = options.seed if options.fraction else 0
    settings = [FORMAT, "drawn by features", len(frames), spec, options.fraction, options.partitions, seed]
    settings.append("" if name is None else identity(transform))
    materialized = _folder_for(frames[0], settings, transform, path, name, cache)
    return DataFrameSource(tuple(frames), options, code, materialized, tuple(map(types, frames)), name)


@functools.cache
def _say_not_deterministic(frame_label: str) -> None:
    """Say it once in the life of this process: each fit of a cross-validation would say it again."""
    log.warning(
        "%s is not deterministic, as Spark says: a task that is done again may give other rows, and another run trains "
        "on others; write it to Parquet first, or checkpoint() it; or give a CrossValidator, which draws its folds "
        "so, a foldCol",
        frame_label,
    )


def _check_features(batch: Any, spec: ColumnSpec, frame_label: str) -> None:
    """Raise DataError for feature columns whose types cannot be used, for all of them together."""
    faults = []
    for name in spec.features:
        encode = {name: spec.encode[name]} if name in spec.encode else {}
        try:
            infer_fields(batch, ColumnSpec({"inputs": [name]}, {}, encode=encode), frame_label)
        except DataError as error:
            faults.append(str(error))
    if faults:
        text = "\n  ".join(faults)
        raise DataError(text if len(faults) == 1 else f"{len(faults)} features cannot be used:\n  {text}")


def _change(column: str, old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return f"column {column!r} is {f'new, of type {new}' if old is None else f'gone, it had type {old}'}"
    return f"column {column!r} has type {new}, it had {old}"


def _folder_for(
    df: Any,
    settings: Sequence[Any],
    transform: Transform | None,
    path: str | os.PathLike[str] | None,
    name: str | None,
    cache: str,
) -> MaterializedSource:
    """Return the source of the folder for rows that the session of `df` writes. Equal names and equal `settings`, which
    are all that decides what is written except the rows, give the same folder.

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

"""The driver's part of materialising a DataFrame: what tasks report becomes an index and a manifest, written last.

The rows lie in the folder of a `MaterializedSource`:

    <token>-00003-<random>.seg    a segment: of one attempt of one task; counts only if the index names it
    index-<BLAKE3>.json           which segments, in which order, with the digests of their runs
    manifest.json                 names the index by its digest; written last: without it there is no data set

The token is of one attempt to materialise, so two processes that do the same at the same time leave two whole sets of
files, and the manifest of one of them.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
from blake3 import blake3

from hopyard.data.assignment import Kind
from hopyard.data.encoding.encoder import ONE_HOT_LIMIT, Fault, check
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.finalize import FeatureFinalizer, scales
from hopyard.data.encoding.label_range import LabelRange
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.encoding.transform import Transform, identity, pickled
from hopyard.data.encoding.weights import WeightCheck
from hopyard.data.from_spark.source import MaterializedSource, folder_for, refuse
from hopyard.data.from_spark.task import PROBE, Task, TaskReport
from hopyard.data.manifest import FILE, FORMAT, Field, Manifest, PartitionInfo, RowNames, SourceInfo, Stored, Value
from hopyard.data.options import BuildOptions, ColumnSpec
from hopyard.data.partitions.builder import KINDS, check_split, make_manifest, named_partition, vocabularies
from hopyard.data.partitions.cache import evict
from hopyard.data.rows.names import Distinct, added, width
from hopyard.data.shared.segments import Index
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.data.sources.source import Piece
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import Directory
from hopyard.sparkapi.dataframe import alive, collected, is_deterministic, narrowed, quoted, schema, types
from hopyard.sparkapi.tasks import report_each

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataFrameSource:
    """A source that is a DataFrame until it is materialised, and `written` from then on. Its pickle is `written`.

    Attributes:
        frames: of the training rows; and of the validation rows, if they have their own.
        options: how they are cut.
        code: the transform's pickle, or None.
        written: its partitions, which are there or will be.
        columns: the types of the columns of each frame that are read, as Spark names them.
        name: the user's, by which it is found again, or None.
    """

    volatile: ClassVar[bool] = False

    frames: tuple[Any, ...]
    options: BuildOptions
    code: bytes | None
    written: MaterializedSource
    columns: tuple[dict[str, str], ...]
    name: str | None

    def __repr__(self) -> str:
        return f"Spark DataFrame for {self.written.url}"

    @property
    def url(self) -> str:
        """Where it will be."""
        return self.written.url

    def identity(self) -> str:
        """Its URL."""
        return self.written.url

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Raises SpecError: the driver does not read the rows."""
        refuse(self.written.url)

    def provenance(self) -> list[SourceInfo]:
        """Nothing; the manifest has them."""
        return []

    def detached(self, identity: str | None) -> MaterializedSource:
        """Its URL, without frames and session."""
        return self.written

    def prepare(self, limit: int, cache: str = "") -> Manifest:
        """Its manifest; materialises it first when there is none. Arguments and errors as `MaterializedSource.prepare`.

        Raises:
            SpecError: what is there under its name was made of other columns.
        """
        if (there := self.written.find()) is not None:
            self._compare(there)
            return self.written.prepare(limit, cache)
        self._materialise()
        found = self.written.prepare(limit, cache)
        if self.written.cached:
            evict(Path(self.written.url).parent, limit)  # not what was just made: `found` pins it
        return found

    def _compare(self, there: Manifest) -> None:
        for number, (source, now) in enumerate(zip(there.sources, self.columns, strict=True)):
            changes = [
                _change(column, source.columns.get(column), now.get(column))
                for column in dict.fromkeys([*source.columns, *now])
                if source.columns.get(column) != now.get(column)
            ]
            if changes:
                raise SpecError(
                    f"name = {self.name!r}: the rows in {self.url} were made of other columns than "
                    f"{'validation=' if number else 'df'} has now: "
                    f"{'; '.join(changes)}. Give these rows a name= of their own, or remove the others with "
                    f"`hopyard clean {self.url} --yes --older-than 0`"
                )

    def _materialise(self) -> None:
        alive(self.frames[0])
        folder, token = shared_directory(self.written.url), secrets.token_hex(6)
        named: set[str] = set()
        try:
            with reaching(folder.url, "write to"):
                folder.make()
                folder.put(f"{token}-{PROBE}", b"")
            index, manifest = self._write(folder, token)
            data = msgspec.json.encode(index)
            manifest.stored = Stored(folder.url, blake3(data).hexdigest())
            with reaching(folder.url, "write to"):
                folder.put(manifest.stored.file, data)
                named = {segment.name for segment in index.segments}  # `put` may raise, and the manifest be there
                folder.put(FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        finally:
            _sweep(folder, token, named)

    def _write(self, folder: Directory, token: str) -> tuple[Index, Manifest]:
        """Runs the jobs; nothing of what they write counts before the manifest is there."""
        asked = self.options
        task = Task(folder.url, token, asked.spec, asked.partitions, 0.0, asked.seed, self.code, "Spark partition {}")
        spec, before = with_vocabularies(asked.spec, list(self.frames), task if self.code is not None else None)
        train = replace(task, spec=spec, fraction=asked.fraction)
        reports = report_each(self.frames[0], train.run, TaskReport)
        alone = msgspec.structs.replace(spec, validation=None)
        names = [train.what.format(one.number) for one in reports]
        sources = [_source(reports, self.columns[0])]
        for second, columns in zip(self.frames[1:], self.columns[1:], strict=True):
            validate = replace(task, spec=alone, fraction=1.0, what=f"{task.what} of validation=")
            more = report_each(second, validate.run, TaskReport)
            sources.append(_source(more, columns))
            names += [validate.what.format(one.number) for one in more]
            reports += more
        fields = _fields(reports, names)
        _again(before, reports)
        index = Index(asked.partitions, width(spec), [one.segment for one in reports if one.segment is not None])
        _seen(folder, reports)
        manifest = _manifest(replace(asked, spec=spec), fields, reports, index)
        manifest.sources = sources
        return index, manifest


def from_spark(
    frames: Sequence[Any],
    options: BuildOptions,
    transform: Transform | None,
    *,
    path: str | os.PathLike[str] | None,
    name: str | None,
    cache: str,
) -> DataFrameSource:
    """The source that Dataset.spark names; what can be checked without a job is.

    Raises:
        SpecError, DataError: as Dataset.spark.
    """
    spec, alone = options.spec, msgspec.structs.replace(options.spec, validation=None)
    if transform is None:
        planned = []
        for number, df in enumerate(frames):
            what, mine = ("the validation= DataFrame", alone) if number else ("the DataFrame", spec)
            narrow = narrowed(df, mine.names, what)
            fields = infer_fields(pa.RecordBatch.from_pylist([], schema=schema(narrow)), mine, what)
            planned.append((narrow, fields))
            FeatureFinalizer(fields, vocabularies(mine), {})
        frames = [narrow for narrow, _ in planned]
        if len(planned) > 1:
            _same(planned[0][1], planned[1][1])
    for number, df in enumerate(frames):
        if is_deterministic(df) is False:
            log.warning(
                "%s is not deterministic, as Spark says: a task that is done again may give other rows, and another "
                "run trains on others; write it to Parquet first, or checkpoint() it",
                "the validation= DataFrame" if number else "the DataFrame",
            )
    code = None if transform is None else pickled(transform)
    seed = options.seed if options.fraction else 0
    asked = [FORMAT, len(frames), spec, options.fraction, options.partitions, seed]
    asked.append("" if name is None else identity(transform))
    written = folder_for(frames[0], asked, path, name, cache)
    return DataFrameSource(tuple(frames), options, code, written, tuple(map(types, frames)), name)


def with_vocabularies(spec: ColumnSpec, frames: list[Any], task: Task | None) -> tuple[ColumnSpec, list[TaskReport]]:
    """`spec` with the values of all columns to be encoded (where the user lists none, the sorted ones of all rows), and
    the reports of the tasks that found them.

    Args:
        spec: as the user wrote it.
        frames: of all rows.
        task: with the transform, where there is one: columns are then what it makes of them.
    """
    open_ = {name: how for name, how in spec.encode.items() if how.values is None}
    found: dict[str, set[Value]] = {name: set() for name in open_}
    reports: list[TaskReport] = []
    for df in frames if open_ else []:
        if task is None:
            for name, how in open_.items():
                values = df.select(quoted(name)).distinct()
                rows = collected(values.limit(ONE_HOT_LIMIT + 1) if how.kind == "one-hot" else values)
                found[name].update(row[0] for row in rows)
            continue
        for report in report_each(df, task.values, TaskReport):
            reports.append(report)
            for name in open_:
                found[name].update(report.values[name])
    closed = {
        name: msgspec.structs.replace(how, values=sorted(value for value in found[name] if _is(value)))
        for name, how in open_.items()
    }
    return msgspec.structs.replace(spec, encode={**spec.encode, **closed}), reports


def _is(value: Any) -> bool:
    """Neither null nor NaN: these are faults, which the rows' own job counts."""
    return value is not None and value == value  # noqa: PLR0124


def _same(mine: list[Field], theirs: list[Field]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        for one, other in zip(a.columns, b.columns, strict=True):
            if one.type != other.type:
                raise DataError(
                    f"column {one.name!r} has type {other.type.rpartition(':')[0]} in the validation= DataFrame but "
                    f"{one.type.rpartition(':')[0]} in the first; cast it"
                )


def _again(before: list[TaskReport], now: list[TaskReport]) -> None:
    """Raises DataError when two passes over the rows saw others; none `before`, and there was one pass."""
    (rows, total), (more, other) = (_names(reports) for reports in (before, now))
    if before and (rows, total) != (more, other):
        raise DataError(
            f"the DataFrame gave {rows} rows when its categories were found and {more} when they were written"
            f"{', other ones' if rows == more else ''}: it is not deterministic; write it to Parquet first, or "
            f"checkpoint() it, or list the values in encode="
        )


def _names(reports: list[TaskReport]) -> tuple[int, int]:
    return sum(one.rows for one in reports), added(*(int(one.sum, 16) for one in reports))


def _change(column: str, then: str | None, now: str | None) -> str:
    if then is None or now is None:
        return f"column {column!r} is {f'new, of type {now}' if then is None else f'gone, it had type {then}'}"
    return f"column {column!r} has type {now}, it had {then}"


def _source(reports: list[TaskReport], columns: dict[str, str]) -> SourceInfo:
    return SourceInfo(f"Spark DataFrame of {len(reports)} partitions", -1, sum(one.rows for one in reports), columns)


def _fields(reports: list[TaskReport], names: list[str]) -> list[Field]:
    """The fields that all tasks agree on. Raises what tasks report: bad values, and that there are no rows."""
    with_rows = [(one, name) for one, name in zip(reports, names, strict=True) if one.fields is not None]
    if not with_rows:
        raise DataError("the DataFrame has no rows; give one that has some, or a transform that keeps some")
    faults: dict[str, Fault] = {}
    for one in reports:
        for column, (count, at) in one.faults.items():
            faults.setdefault(column, Fault(0, at)).count += count
    first, origin = with_rows[0]
    assert first.fields is not None
    check(faults, first.fields)
    for other, there in with_rows[1:]:
        assert other.fields is not None
        for mine, theirs in zip(first.fields, other.fields, strict=True):
            for a, b in zip(mine.columns, theirs.columns, strict=True):
                if a.type != b.type:
                    raise DataError(
                        f"column {a.name!r} has type {b.type.rpartition(':')[0]} in {there} but "
                        f"{a.type.rpartition(':')[0]} in {origin}; cast it with transform="
                    )
                if a.shape != b.shape:
                    raise DataError(
                        f"column {a.name!r}: rows of shape {b.shape} in {there} but {a.shape} in {origin}; pad or cut "
                        f"them with transform="
                    )
    return first.fields


def _seen(folder: Directory, reports: list[TaskReport]) -> None:
    """Raises SpecError unless this process sees what the tasks wrote."""
    with reaching(folder.url, "read"):
        sizes = folder.sizes()
    for one in reports:
        if one.segment is not None and sizes.get(one.segment.name) != one.segment.bytes:
            seen = sizes.get(one.segment.name)
            raise SpecError(
                f"path: host {one.host} wrote {one.segment.bytes} bytes to {folder.url}/{one.segment.name}, and this "
                f"process sees {'no such file' if seen is None else f'{seen} bytes'} there; path= must be a place "
                f"that driver and executors share: a path on NFS, or a URL of HDFS, S3 and the like"
            )


def _manifest(options: BuildOptions, fields: list[Field], reports: list[TaskReport], index: Index) -> Manifest:
    moments: dict[str, ExactSums] = {}
    limits, weights, distinct = LabelRange(fields), WeightCheck(fields), Distinct()
    for one in reports:
        limits.merge(one.limits)
        weights.merge(one.heaviest)
        distinct.merge(one.distinct)
        for name, packed in one.moments.items():
            moments.setdefault(name, ExactSums(len(packed[1]))).merge(ExactSums.unpacked(packed))
    weights.check()
    rows = {kind: [_rows(index, kind, p) for p in range(index.partitions)] for kind in KINDS}
    check_split(rows, options, distinct)
    scaling = scales(moments)
    finisher = FeatureFinalizer(fields, vocabularies(options.spec), scaling)
    parts: dict[Kind, list[PartitionInfo]] = {}
    for kind, each in rows.items():
        parts[kind] = [_part(index, kind, p, count, finisher) for p, count in enumerate(each) if count]
    manifest = make_manifest(finisher, scaling, limits, parts, options.spec.names)
    count, total = _names(reports)
    manifest.row_names = RowNames(options.spec.key, count, f"{total:x}")
    manifest.key = manifest.digest[:32]
    return manifest


def _rows(index: Index, kind: Kind, partition: int) -> int:
    return sum(segment.rows(index.run(kind, partition)) for segment in index.segments)


def _part(index: Index, kind: Kind, partition: int, rows: int, finisher: FeatureFinalizer) -> PartitionInfo:
    run = index.run(kind, partition)
    total = added(*(int(segment.sums[run], 16) for segment in index.segments))
    return named_partition(rows, total, finisher.infos)


def _sweep(folder: Directory, token: str, named: set[str]) -> None:
    """Removes what this attempt wrote, but for what is named: probe, failed and doubled tasks; else the folder too."""
    try:
        named = named if folder.has(FILE) else set()
        for name in folder.sizes():
            if name.startswith(token) and name not in named:
                folder.remove(name)
        folder.drop()
    except Exception as error:  # noqa: BLE001 - it must not hide why there is something to sweep
        log.warning("%s cannot be swept of what begins with %s: %s", folder.url, token, error)

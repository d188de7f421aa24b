"""The driver's part of materialising a DataFrame: what tasks report becomes an index and a manifest, written last.

The rows lie in the folder of a `MaterializedSource`:

    <token>-00003-<random>.seg    a segment, by one attempt of one task; counts only if the index names it
    <token>-<BLAKE3>.copies       how copies of equal rows are spread; only while they are written
    index-<BLAKE3>.json           which segments, in which order, with the digests of their runs
    manifest.json                 names the index by its digest; written last: without it there is no data set

Each attempt to materialise has its own token, so two processes that do the same at the same time leave two whole sets
of files, and the manifest of one of them.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from blake3 import blake3

from hopyard.data.encoding.column_types import ONE_SCHEMA
from hopyard.data.encoding.encoder import ONE_HOT_LIMIT, Fault, check, listed
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.finalize import FeatureFinalizer, means, scales
from hopyard.data.encoding.label_range import LabelRange
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.encoding.transform import Transform, identity, pickled
from hopyard.data.encoding.weights import WeightCheck
from hopyard.data.from_spark.source import MaterializedSource, folder_for, refuse
from hopyard.data.from_spark.task import PROBE, CopiesFile, Drawing, TaskReport, WriteTask, is_category
from hopyard.data.manifest import FILE, FORMAT, Field, Manifest, PartitionInfo, RowNames, SourceInfo, Stored, Value
from hopyard.data.options import BuildOptions, ColumnSpec, Fill
from hopyard.data.partitions.builder import (
    KINDS,
    check_split,
    constants,
    make_manifest,
    most_frequent,
    named_partition,
    vocabularies,
)
from hopyard.data.partitions.cache import evict
from hopyard.data.rows.copies import first_copies
from hopyard.data.rows.names import Distinct, added, width
from hopyard.data.shared.segments import Index
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import Directory
from hopyard.sparkapi.dataframe import alive, collected, is_deterministic, narrowed, quoted, schema, types
from hopyard.sparkapi.tasks import report_each
from hopyard.spec import RowKind
from hopyard.text import shell_command

log = logging.getLogger(__name__)

_PASSES = 4
"""Passes over a DataFrame whose rows move from partition to partition, before it is refused."""
_GROUPS = 32
"""Groups of rows for each partition, below which partitions differ much."""
_LABELS = 8
"""Different rows for each group of equal features, from which on a row's label may draw it: with few labels, those that
validate would be ones that none of the group's training rows has."""


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
        if (existing := self.materialized.find()) is not None:
            self._compare(existing)
            return self.materialized.prepare(limit, cache)
        self._materialise()
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

    def _materialise(self) -> None:
        alive(self.frames[0])
        folder, token = shared_directory(self.materialized.url), secrets.token_hex(6)
        segment_names: set[str] = set()
        try:
            with reaching(folder.url, "write to"):
                folder.make()
                folder.put(f"{token}-{PROBE}", b"")
            index, manifest = self._write(folder, token)
            data = msgspec.json.encode(index)
            manifest.stored = Stored(folder.url, blake3(data).hexdigest())
            with reaching(folder.url, "write to"):
                folder.put(manifest.stored.file, data)
                segment_names = {segment.name for segment in index.segments}  # also if `put` raises after writing
                folder.put(FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        finally:
            _sweep(folder, token, segment_names)

    def _write(self, folder: Directory, token: str) -> tuple[Index, Manifest]:
        """Runs the jobs. Nothing that they write counts before the manifest is there."""
        options = self.options
        task = WriteTask(
            folder.url, token, options.spec, options.partitions, 0.0, options.seed, self.code, "Spark partition {}"
        )
        needs_task = self.code is not None or bool(options.spec.counted)
        train = replace(task, fraction=options.fraction)
        spec, drawing, value_reports = with_vocabularies(
            options.spec, list(self.frames), train if needs_task else None, folder
        )
        train = replace(train, spec=spec, drawing=drawing)
        _, reports = spread(folder, self.frames[0], train, WriteTask.run)
        second_spec = msgspec.structs.replace(spec, validation=None)
        names = [train.what.format(report.number) for report in reports]
        sources = [_source(reports, self.columns[0])]
        for frame, columns in zip(self.frames[1:], self.columns[1:], strict=True):
            validate = replace(task, spec=second_spec, fraction=1.0, what=f"{task.what} of validation=")
            _, second_reports = spread(folder, frame, validate, WriteTask.run)
            sources.append(_source(second_reports, columns))
            names += [validate.what.format(report.number) for report in second_reports]
            reports += second_reports
        fields = _fields(reports, names, transformed=self.code is not None)
        _check_deterministic(value_reports, reports)
        index = Index(
            options.partitions, width(spec), [report.segment for report in reports if report.segment is not None]
        )
        manifest = _manifest(replace(options, spec=spec), fields, reports, index)
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
            _check_same_types(planned[0][1], planned[1][1])
    for number, df in enumerate(frames):
        if is_deterministic(df) is False:
            _say_not_deterministic("the validation= DataFrame" if number else "the DataFrame")
    code = None if transform is None else pickled(transform)
    seed = options.seed if options.fraction else 0
    settings = [FORMAT, "drawn by features", len(frames), spec, options.fraction, options.partitions, seed]
    settings.append("" if name is None else identity(transform))
    materialized = folder_for(frames[0], settings, transform, path, name, cache)
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


def spread(
    folder: Directory,
    df: Any,
    task: WriteTask,
    work: Callable[[WriteTask, int, Iterable[Any]], TaskReport],
    once: bool = False,
) -> tuple[WriteTask, list[TaskReport]]:
    """Runs `work` over a DataFrame until its rows are drawn as their counts say: once, unless few of them, or of their
    features, are different.

    Args:
        folder: the one for segments.
        df: a DataFrame.
        task: what is to be done.
        work: one of the passes of a Task.
        once: whether the reports of the first pass will do.

    Returns:
        tuple: `task`, which draws as the counts say, and the reports.

    Raises:
        DataError: the DataFrame gives other rows each time.
    """
    for _ in range(_PASSES):
        reports = report_each(df, partial(work, task), TaskReport)
        table = first_copies([report.copies for report in reports])
        copies = None
        if table is not None:
            name = f"{task.token}-{blake3(table).hexdigest()[:16]}.copies"
            copies = CopiesFile(name, len(table) // 8 // (len(reports) + 1), len(reports))
        drawing = Drawing(copies, by_content=copies is None and _many_rows_of_few_features(task, reports))
        if drawing == task.drawing:
            return task, reports
        with reaching(folder.url, "write to"):
            if copies is not None and table is not None:
                folder.put(copies.name, table)
            for report in reports:
                if report.segment is not None:
                    folder.remove(report.segment.name)
        task = replace(task, drawing=drawing)
        if once:
            return task, reports
    raise DataError(
        f"the DataFrame gave other rows, or gave them in other partitions, each of {_PASSES} times that it was read (a "
        f"DataFrame of few different rows is read twice): it is not deterministic; write it to Parquet first, or "
        f"checkpoint() it, or give key="
    )


def _many_rows_of_few_features(task: WriteTask, reports: list[TaskReport]) -> bool:
    """Whether groups of rows of equal features are too few to be drawn, while each has rows of many labels."""
    distinct, others = Distinct(), Distinct()
    for report in reports:
        distinct.merge(report.distinct)
        others.merge(report.others)
    features, contents = (others, distinct) if task.drawing.by_content else (distinct, others)
    few = not task.spec.key and features.number < _GROUPS * task.partitions
    return few and contents.number >= _LABELS * features.number > 0


def with_vocabularies(
    spec: ColumnSpec, frames: list[Any], task: WriteTask | None, folder: Directory
) -> tuple[ColumnSpec, Drawing, list[TaskReport]]:
    """Return `spec` with the values of all columns to be encoded (where the user lists none, the sorted ones of all
    rows, or of the training rows if they are counted) and the most frequent ones in the place of missing ones; how rows
    of the first frame are drawn, as far as that is known; and the reports of the tasks that found the values.

    Args:
        spec: as the user wrote it.
        frames: those of all rows.
        task: a task for the training rows, where there is a transform (the columns are then those of its result) or
            values are counted.
        folder: the one for segments.
    """
    unlisted = {name: encoding for name, encoding in spec.encode.items() if encoding.values is None}
    column_values: dict[str, set[Value]] = {name: set() for name in unlisted}
    counts: dict[str, Counter[Value | None]] = {name: Counter() for name in spec.counted}
    reports: list[TaskReport] = []
    drawing = Drawing()
    for number, df in enumerate(frames if unlisted or counts else []):
        if task is None:
            for name, encoding in unlisted.items():
                values = df.select(quoted(name)).distinct()
                rows = collected(values.limit(ONE_HOT_LIMIT + 1) if encoding.kind == "one-hot" else values)
                column_values[name].update(row[0] for row in rows)
            continue
        if number:  # all of them validate
            task = replace(task, spec=msgspec.structs.replace(spec, validation=None), fraction=1.0, drawing=Drawing())
            frame_reports = report_each(df, task.values, TaskReport)
        else:  # of counted values, which rows train must be known, and that follows from how rows are drawn
            task, frame_reports = spread(folder, df, task, WriteTask.values, once=not (counts and task.fraction))
            drawing = task.drawing
        for report in frame_reports:
            reports.append(report)
            for name in unlisted:
                column_values[name].update(report.values[name])
            for name, counter in counts.items():
                for value, count in zip((*report.values[name], None), report.counts[name], strict=True):
                    counter[value] += count
    for values in column_values.values():
        values.difference_update([value for value in values if not is_category(value)])
    return _fitted(spec, column_values, counts), drawing, reports


def _fitted(
    spec: ColumnSpec, column_values: Mapping[str, set[Value]], counts: Mapping[str, Counter[Value | None]]
) -> ColumnSpec:
    """Return `spec` with the values and the fills that these training rows have, by the rules of `Vocabulary`."""
    encode, fills = dict(spec.encode), dict(spec.impute)
    for name, vocabulary in vocabularies(spec).items():
        for value in sorted(column_values.get(name, ())):
            vocabulary.values.setdefault(value, len(vocabulary.values))
        if name in counts:
            vocabulary.counts = np.array([*(counts[name][value] for value in (None, *vocabulary.values)), 0])
        if name in fills and fills[name].strategy == "most_frequent":
            vocabulary.fill = most_frequent(vocabulary)
            fills[name] = Fill("most_frequent", vocabulary.fill)
        if encode[name].values is None:
            encode[name] = msgspec.structs.replace(encode[name], values=vocabulary.ordered_values())
    return msgspec.structs.replace(spec, encode=encode, impute=fills)


def _check_same_types(mine: list[Field], theirs: list[Field]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        for first, second in zip(a.columns, b.columns, strict=True):
            if first.type != second.type:
                raise DataError(
                    f"column {first.name!r} has type {second.type.rpartition(':')[0]} in the validation= DataFrame but "
                    f"{first.type.rpartition(':')[0]} in the first; cast it"
                )


def _check_deterministic(first_reports: list[TaskReport], second_reports: list[TaskReport]) -> None:
    """Raise DataError when two passes over the rows saw different ones. No `first_reports`: there was one pass."""
    (first_rows, first_sum), (second_rows, second_sum) = (
        _rows_and_sum(reports) for reports in (first_reports, second_reports)
    )
    if first_reports and (first_rows, first_sum) != (second_rows, second_sum):
        raise DataError(
            f"the DataFrame gave {first_rows} rows when its categories were found and {second_rows} when they were "
            f"written{', other ones' if first_rows == second_rows else ''}: it is not deterministic; write it to "
            f"Parquet first, or checkpoint() it, or list the values in encode="
        )


def _rows_and_sum(reports: list[TaskReport]) -> tuple[int, int]:
    return sum(report.rows for report in reports), added(*(int(report.sum, 16) for report in reports))


def _change(column: str, old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return f"column {column!r} is {f'new, of type {new}' if old is None else f'gone, it had type {old}'}"
    return f"column {column!r} has type {new}, it had {old}"


def _source(reports: list[TaskReport], columns: dict[str, str]) -> SourceInfo:
    return SourceInfo(
        f"Spark DataFrame of {len(reports)} partitions", -1, sum(report.rows for report in reports), columns
    )


def _fields(reports: list[TaskReport], names: list[str], transformed: bool) -> list[Field]:
    """Return the fields that all tasks agree on. Raises DataError for bad values, for differences, and for no rows."""
    with_rows = [(report, name) for report, name in zip(reports, names, strict=True) if report.fields is not None]
    if not with_rows:
        raise DataError("the DataFrame has no rows; give one that has some, or a transform that keeps some")
    faults: dict[str, Fault] = {}
    for report in reports:
        for column, (count, first_fault) in report.faults.items():
            faults.setdefault(column, Fault(0, first_fault)).count += count
    first, first_name = with_rows[0]
    assert first.fields is not None
    if faults and not transformed:
        raise DataError(
            f"the DataFrame holds values that cannot be trained on:\n{listed(faults)}\ndrop or fill them first, for "
            f"example with df.na.drop(subset={list(faults)!r}) or df.na.fill(…); impute= fills features"
        )
    check(faults, first.fields)
    for other_report, other_name in with_rows[1:]:
        assert other_report.fields is not None
        for mine, theirs in zip(first.fields, other_report.fields, strict=True):
            for a, b in zip(mine.columns, theirs.columns, strict=True):
                if a.type != b.type:
                    raise DataError(
                        f"column {a.name!r} has type {b.type.rpartition(':')[0]} in {other_name} but "
                        f"{a.type.rpartition(':')[0]} in {first_name}; {ONE_SCHEMA if transformed else 'cast it first'}"
                    )
                if a.shape != b.shape:
                    raise DataError(
                        f"column {a.name!r}: rows of shape {b.shape} in {other_name} but {a.shape} in {first_name}; "
                        f"pad or cut them first"
                    )
    return first.fields


def _manifest(options: BuildOptions, fields: list[Field], reports: list[TaskReport], index: Index) -> Manifest:
    moments: dict[str, ExactSums] = {}
    limits, weights, distinct = LabelRange(fields), WeightCheck(fields), Distinct()
    for report in reports:
        limits.merge(report.limits)
        weights.merge(report.heaviest)
        distinct.merge(report.distinct)
        for name, packed in report.moments.items():
            moments.setdefault(name, ExactSums(len(packed[1]))).merge(ExactSums.unpacked(packed))
    weights.check()
    rows = {kind: [_rows(index, kind, p) for p in range(index.partitions)] for kind in KINDS}
    check_split(rows, options, distinct)
    total_rows = sum(map(sum, rows.values()))  # of many, their different ones are an estimate
    if not options.spec.key and distinct.number < min(0.8 * total_rows, _GROUPS * options.partitions):
        log.warning(
            "rows of equal features go together, and there are %s different ones for %d partitions, so partitions and "
            "validation rows are whole groups; give key= a column that is different in each row, such as an id, and "
            "each row is drawn by itself",
            distinct,
            options.partitions,
        )
    scaling, fills = scales(moments, fields), {**constants(options.spec), **means(moments, fields)}
    finisher = FeatureFinalizer(fields, vocabularies(options.spec), scaling, fills)
    parts: dict[RowKind, list[PartitionInfo]] = {}
    for kind, counts in rows.items():
        parts[kind] = [_part(index, kind, p, count, finisher) for p, count in enumerate(counts) if count]
    manifest = make_manifest(finisher, scaling, limits, parts, options.spec.names)
    count, total = _rows_and_sum(reports)
    manifest.row_names = RowNames(options.spec.key, count, f"{total:x}")
    manifest.key = manifest.digest[:32]
    return manifest


def _rows(index: Index, kind: RowKind, partition: int) -> int:
    return sum(segment.rows(index.run(kind, partition)) for segment in index.segments)


def _part(index: Index, kind: RowKind, partition: int, rows: int, finisher: FeatureFinalizer) -> PartitionInfo:
    run = index.run(kind, partition)
    total = added(*(int(segment.sums[run], 16) for segment in index.segments))
    return named_partition(rows, total, finisher.infos)


def _sweep(folder: Directory, token: str, segment_names: set[str]) -> None:
    """Removes the probe and the segments of this attempt, except `segment_names` if there is a manifest; then the
    folder, if it is empty."""
    try:
        segment_names = segment_names if folder.has(FILE) else set()
        for name in folder.sizes():
            if name.startswith(token) and name not in segment_names:
                folder.remove(name)
        folder.drop()
    except Exception as error:  # noqa: BLE001 - it must not hide why there is something to sweep
        log.warning("%s cannot be swept of what begins with %s: %s", folder.url, token, error)

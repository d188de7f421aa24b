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

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.data.encoding.column_types import ONE_SCHEMA
from hopyard.data.encoding.encoder import ONE_HOT_LIMIT
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.extremes import Extremes
from hopyard.data.encoding.faults import Fault, check, listed
from hopyard.data.encoding.finalize import FeatureFinalizer, means, scales
from hopyard.data.from_spark.task import PROBE, CopiesFile, Drawing, TaskReport, WriteTask, is_category
from hopyard.data.manifest import FILE, Field, Manifest, PartitionInfo, RowNames, SourceInfo, Stored, Value
from hopyard.data.options import BuildOptions, ColumnSpec, Fill
from hopyard.data.partitions.builder import (
    KINDS,
    check_split,
    constants,
    make_manifest,
    named_partition,
    vocabularies,
)
from hopyard.data.rows.copies import first_copies
from hopyard.data.rows.names import Distinct, added, width
from hopyard.data.shared.segments import LENGTH, Index
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError
from hopyard.filesystems import Directory
from hopyard.sparkapi.dataframe import collected, quoted
from hopyard.sparkapi.tasks import report_each
from hopyard.spec import RowKind

log = logging.getLogger(__name__)

_PASSES = 4
"""Passes over a DataFrame whose rows move from partition to partition, before it is refused."""
_GROUPS = 32
"""Groups of rows for each partition, below which partitions differ much."""
_LABELS = 8
"""Different rows for each group of equal features, from which on a row's label may draw it: with few labels, those that
validate would be ones that none of the group's training rows has."""


def materialise(
    url: str, frames: Sequence[Any], columns: Sequence[dict[str, str]], options: BuildOptions, code: bytes | None
) -> None:
    """Runs the jobs that write the rows to a folder, then its index and manifest. `DataFrameSource` has the rest."""
    folder, token = shared_directory(url), secrets.token_hex(6)
    segment_names: set[str] = set()
    try:
        with reaching(url, "write to"):
            folder.make()
            folder.put(f"{token}-{PROBE}", b"")
        task = WriteTask(url, token, options.spec, options.partitions, 0.0, options.seed, code, "Spark partition {}")
        index, manifest = _write(folder, task, frames, columns, options)
        data = msgspec.json.encode(index)
        manifest.stored = Stored(url, blake3(data).hexdigest())
        with reaching(url, "write to"):
            folder.put(manifest.stored.file, data)
            segment_names = {segment.name for segment in index.segments}  # also if `put` raises after writing
            folder.put(FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    finally:
        _sweep(folder, token, segment_names)


def _write(
    folder: Directory,
    task: WriteTask,
    frames: Sequence[Any],
    columns: Sequence[dict[str, str]],
    options: BuildOptions,
) -> tuple[Index, Manifest]:
    """Runs the jobs. Nothing that they write counts before the manifest is there."""
    train = replace(task, fraction=options.fraction)
    needs_task = task.code is not None or bool(task.spec.counted)
    spec, drawing, value_reports = with_vocabularies(task.spec, frames, train if needs_task else None, folder)
    train = replace(train, spec=spec, drawing=drawing)
    validate = replace(
        task,
        spec=msgspec.structs.replace(spec, validation=None),
        fraction=1.0,
        what=f"{task.what} of validation=",
    )
    reports, names, sources = [], [], []
    for each, frame, kinds in zip((train, validate), frames, columns, strict=False):
        _, frame_reports = _spread(folder, frame, each, WriteTask.run)
        rows = sum(report.rows for report in frame_reports)
        sources.append(SourceInfo(f"Spark DataFrame of {len(frame_reports)} partitions", -1, rows, kinds))
        names += [each.what.format(report.number) for report in frame_reports]
        reports += frame_reports
    fields = _fields(reports, names, transformed=task.code is not None)
    _check_deterministic(value_reports, reports)
    segments = [report.segment for report in reports if report.segment is not None]
    index = Index(options.partitions, width(spec), segments)
    manifest = _manifest(replace(options, spec=spec), fields, reports, index)
    manifest.sources = sources
    return index, manifest


def _spread(
    folder: Directory,
    df: Any,
    task: WriteTask,
    work: Callable[[WriteTask, int, Iterable[Any]], TaskReport],
    once: bool = False,
) -> tuple[WriteTask, list[TaskReport]]:
    """Runs `work`, a pass of `task`, over a DataFrame until its rows are drawn as their counts say: once, unless few of
    them, or of their features, are different. Returns the task, which then draws so, and the reports. `once`: whether
    the reports of the first pass will do.

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
    spec: ColumnSpec, frames: Sequence[Any], task: WriteTask | None, folder: Directory
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
            task, frame_reports = _spread(folder, df, task, WriteTask.values, once=not (counts and task.fraction))
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
            vocabulary.fill = vocabulary.most_frequent()
            fills[name] = Fill("most_frequent", vocabulary.fill)
        if encode[name].values is None:
            encode[name] = msgspec.structs.replace(encode[name], values=vocabulary.ordered_values())
    return msgspec.structs.replace(spec, encode=encode, impute=fills)


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


def _fields(reports: list[TaskReport], names: list[str], transformed: bool) -> list[Field]:
    """Return the fields that all tasks agree on. Raises DataError for bad values, for differences, and for no rows."""
    with_rows = [(report, name) for report, name in zip(reports, names, strict=True) if report.fields is not None]
    if not with_rows:
        raise DataError("the DataFrame has no rows; give one that has some, or a transform that keeps some")
    faults: dict[str, Fault] = {}
    for report in reports:
        for column, fault in report.faults.items():
            faults.setdefault(column, Fault(0, fault.first, fault.ragged)).count += fault.count
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
        advice = ONE_SCHEMA if transformed else "cast it first"
        check_same_columns((first.fields, first_name), (other_report.fields, other_name), advice)
    return first.fields


def check_same_columns(first: tuple[list[Field], str], other: tuple[list[Field], str], advice: str) -> None:
    """Raise DataError where columns of (fields, the name of their rows) differ in type or shape; with this advice."""
    for mine, theirs in zip(first[0], other[0], strict=True):
        for a, b in zip(mine.columns, theirs.columns, strict=True):
            if a.type != b.type:
                raise DataError(
                    f"column {a.name!r} has type {b.type.rpartition(':')[0]} in {other[1]} but "
                    f"{a.type.rpartition(':')[0]} in {first[1]}; {advice}"
                )
            if a.shape != b.shape:
                raise DataError(
                    f"column {a.name!r}: rows of shape {b.shape} in {other[1]} but {a.shape} in {first[1]}; "
                    f"pad or cut them first"
                )


def _manifest(options: BuildOptions, fields: list[Field], reports: list[TaskReport], index: Index) -> Manifest:
    moments: dict[str, ExactSums] = {}
    extremes, distinct = Extremes(), Distinct()
    for report in reports:
        extremes.merge(report.extremes)
        distinct.merge(report.distinct)
        for name, packed in report.moments.items():
            moments.setdefault(name, ExactSums(len(packed[1]))).merge(ExactSums.unpacked(packed))
    extremes.check(fields)
    rows = {
        kind: [sum(segment.rows(index.run(kind, p)) for segment in index.segments) for p in range(index.partitions)]
        for kind in KINDS
    }
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
    manifest = make_manifest(finisher, scaling, extremes, parts, options.spec.names)
    count, total = _rows_and_sum(reports)
    manifest.row_names = RowNames(options.spec.key, count, f"{total:x}")
    manifest.key = manifest.digest[:32]
    return manifest


def _part(index: Index, kind: RowKind, partition: int, rows: int, finisher: FeatureFinalizer) -> PartitionInfo:
    run = index.run(kind, partition)
    total = added(*(int(segment.sums[run], 16) for segment in index.segments))
    values = [counts[run] for segment in index.segments for counts in segment.values]
    size = sum(rows * info.row_bytes for info in finisher.infos if not info.is_ragged)
    for number, info in enumerate(info for info in finisher.infos if info.is_ragged):
        size += sum(counts[number] for counts in values) * info.row_bytes + (rows + 1) * LENGTH.row_bytes
    return named_partition(rows, total, size, [])


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

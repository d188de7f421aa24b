"""Makes one cache entry: reads a source once, deals its rows to partitions, writes and hashes their columns.

Three stages run at once, each in its own thread: reading (in `sources`), encoding (the caller's thread, as transforms
are the user's code), writing. When a vocabulary, a mean or the number of rows is not known before the end, raw arrays
are staged and rewritten after: the source is still read only once.
"""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.data.assignment import Dealer, shares
from hopyard.data.encoding.encoder import Encoder, RowOrigin, Vocabulary
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.extremes import Extremes
from hopyard.data.encoding.faults import check
from hopyard.data.encoding.finalize import (
    FeatureFinalizer,
    block_bytes,
    count_categories,
    is_measured,
    means,
    measure,
    scales,
)
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.manifest import (
    ArrayInfo,
    Field,
    Manifest,
    PartitionInfo,
    RowNames,
    Scale,
    Value,
    all_files,
    content_digest,
    file_names,
    folder_name,
)
from hopyard.data.npy import OPEN_FILES, appender, map_npy, parts_of
from hopyard.data.options import BuildOptions, ColumnSpec
from hopyard.data.ragged import Ragged
from hopyard.data.rows.names import Distinct, Names, added, unsigned, width
from hopyard.data.rows.order import ordered
from hopyard.data.shared import segments
from hopyard.errors import DataError
from hopyard.formats.arrow import Array
from hopyard.spec import RowKind

KINDS: tuple[RowKind, ...] = ("train", "validate")
NOUNS: dict[RowKind, str] = {"train": "training", "validate": "validation"}

LabelledBatch = tuple[Any, RowOrigin, Array | None, Names | None]
"""(record batch after the transform, its origin, which of its rows are validation rows: None for none, the names of its
rows where these decide where rows go).
"""


def build(directory: Path, options: BuildOptions, blocks: Generator[LabelledBatch, None, None]) -> Manifest:
    """Writes the partitions of `blocks` into the empty `directory`; key, path and sources are the caller's to fill.

    Raises:
        DataError: the rows cannot be used, or are too few.
        OSError: a file cannot be written.
    """
    encoder: Encoder | None = None
    writer: _Writer | None = None
    extremes = Extremes()
    with closing(blocks), ThreadPoolExecutor(1, "hopyard-write") as pool:
        pending: deque[Future[None]] = deque()
        try:
            for batch, origin, is_validation, names in blocks:
                if encoder is None:
                    fields = infer_fields(batch, options.spec, str(origin))
                    encoder = Encoder(fields, vocabularies(options.spec))
                    writer = _Writer(directory, fields, encoder, options)
                raw = encoder.raw(batch, origin)
                if encoder.faults:
                    continue  # only to count them all
                assert writer is not None
                if names is not None:
                    raw = unsigned(raw)
                extremes.take(encoder.fields, raw, is_validation)
                pending.append(pool.submit(writer.take, raw, is_validation, batch.num_rows, names))
                while len(pending) > 1:
                    pending.popleft().result()
            while pending:
                pending.popleft().result()
            if encoder is None or writer is None:
                raise DataError("the data set has no rows; give a source that has some, or a transform that keeps some")
            check(encoder.faults, encoder.fields)
            extremes.check(encoder.fields)
            return writer.finish(extremes)
        finally:
            if writer is not None:
                for future in pending:
                    future.cancel()
                pool.shutdown(wait=True)
                writer.close()


def vocabularies(spec: ColumnSpec) -> dict[str, Vocabulary]:
    """Return a vocabulary for each encoded column: empty and growing, or fixed to the values that the user lists."""
    result = {}
    for name, encoding in spec.encode.items():
        fill = spec.impute[name].value if name in spec.impute else None
        first = [fill] if encoding.values is None and fill is not None else encoding.values or []
        values = {value: code for code, value in enumerate(first)}
        fixed, frequency = encoding.values is not None, encoding.min_frequency or 1
        result[name] = Vocabulary(name, values, fixed, encoding.other, frequency, fill)
    return result


def constants(spec: ColumnSpec) -> dict[str, Value]:
    """Return the numbers that the user gives for missing ones."""
    return {
        name: fill.value for name, fill in spec.impute.items() if fill.value is not None and name not in spec.encode
    }


def enough(counts: Mapping[RowKind, int], partitions: int, validating: bool) -> None:
    """Raise DataError where there are fewer rows than partitions, which need one each."""
    if counts["train"] < partitions:
        raise DataError(
            f"{counts['train']} training rows cannot fill partitions={partitions}: each needs a row; give fewer "
            f"partitions, or more rows"
        )
    if validating and counts["validate"] < partitions:
        raise DataError(
            f"{counts['validate']} validation rows cannot fill partitions={partitions}: each needs a row; give fewer "
            f"partitions, or a larger validation="
        )


def check_split(rows: Mapping[RowKind, Sequence[int]], options: BuildOptions, distinct: Distinct) -> None:
    """Raise DataError where the names of rows left a partition empty, or chose fewer or more rows for validation than
    chance explains.

    Rows that all differ validate independently: their number has a standard deviation of √(n f (1 − f)). It may be
    four of these away from n f, or a fifth of n f. Only where many rows go together is it further away.

    Args:
        rows: how many each partition of each kind has.
        distinct: counts the names.
    """
    fraction, partitions, key = options.fraction, options.partitions, options.spec.key
    validate, total = sum(rows["validate"]), sum(map(sum, rows.values()))
    tolerance = max(fraction * total / 5, 4 * math.sqrt(total * fraction * (1 - fraction)))
    another_key = f"key= {'columns' if key else 'a column'} of more different values, such as an id"
    if fraction and abs(validate - fraction * total) > tolerance:
        raise DataError(
            f"validation = {fraction:g} chose {validate} of {total} rows: {_together(key, distinct)}; give "
            f"{another_key}, or name a column of true and false with validation="
        )
    for kind in KINDS if options.validates else KINDS[:1]:
        if 0 in rows[kind]:
            advice = [f"fewer partitions= than {partitions}"] if partitions > 1 else []
            because = ""
            if distinct.number < total:
                advice.append(another_key)
                because = f", {_together(key, distinct)}"
            if fraction and kind == "validate":
                advice.append("a larger validation=")
            raise DataError(
                f"partition {rows[kind].index(0)} of {partitions} for {NOUNS[kind]} got none of {total} rows: a hash "
                f"of their {'key' if key else 'features'} draws it{because}; give "
                f"{', '.join([*advice, 'or more rows'])}"
            )


def _together(key: list[str], distinct: Distinct) -> str:
    together = f"key={key!r}" if key else "features"
    return f"rows of equal {together} go together, and there are {distinct} different ones"


def named_partition(rows: int, total: int, size: int, files: list[str]) -> PartitionInfo:
    """Return a partition whose rows go by name: its digest is the sum of the names, which are hashes of the rows."""
    return PartitionInfo(rows, size, f"{total:032x}", files)


def make_manifest(
    finisher: FeatureFinalizer,
    scaling: dict[str, Scale],
    extremes: Extremes,
    parts: Mapping[RowKind, list[PartitionInfo]],
    names: list[str],
) -> Manifest:
    """Return the Manifest of rows that `finisher` finishes; key, path and sources are the caller's to fill."""
    classes, label_range = extremes.result(finisher.fields, finisher.vocabularies)
    arrays = list(zip(finisher.fields, finisher.infos, strict=True))
    manifest = Manifest(
        key="",
        path="",
        digest="",
        train=parts["train"],
        validate=parts["validate"],
        inputs={name: info for each in arrays if each[0].role == "inputs" for name, info in _inputs(*each).items()},
        targets={field.name: info for field, info in arrays if field.role == "targets"},
        weighted=any(field.role == "weights" for field in finisher.fields),
        classes=classes,
        label_range=label_range,
        fills=finisher.fills,
        vocabularies=finisher.vocabularies,
        standardize=scaling,
        fields=finisher.fields,
        names=names,
        sources=[],
    )
    return msgspec.structs.replace(manifest, digest=content_digest(manifest))


def _inputs(field: Field, info: ArrayInfo) -> dict[str, ArrayInfo]:
    """Return the array of a field, and its mask where it has one."""
    return {field.name: info} | ({} if field.mask is None else {field.mask: ArrayInfo((None,), "bool")})


class _Writer:
    """Owns the files of an entry while it is made. Used by one thread at a time."""

    def __init__(self, directory: Path, fields: list[Field], encoder: Encoder, options: BuildOptions) -> None:
        self._directory, self._fields, self._encoder, self._options = directory, fields, encoder, options
        growing = any(not vocabulary.fixed for vocabulary in encoder.vocabularies.values())
        self._contiguous = options.assign == "contiguous"
        self._words = width(options.spec) if options.spec.key else 0
        self._raw = segments.infos(fields, self._words)[: None if self._words else -1]
        """Row shape and dtype of each raw array, and of the names of rows, where these deal them."""
        self._distinct, self._sums = Distinct(), [0] * (2 * options.partitions)
        spec = options.spec
        fitted = bool(spec.counted) or any(is_measured(column) for field in fields for column in field.columns)
        self._staged = growing or fitted or self._contiguous or bool(self._words)
        self._finisher = None if self._staged else FeatureFinalizer(fields, encoder.vocabularies, {}, constants(spec))
        self._dealers = {kind: Dealer(1 if self._contiguous else options.partitions) for kind in KINDS}
        self._rows: dict[RowKind, list[int]] = {kind: [0] * options.partitions for kind in KINDS}
        """Rows of each partition, where names deal them."""
        self._files: dict[str, list[Any]] = {}
        """The `appender` of each field, by folder."""
        self._buffers: dict[int, Array] = {}

    def take(self, raw: list[Any], is_validation: Array | None, rows: int, names: Names | None) -> None:
        """Deals one block of encoded rows."""
        if names is not None:
            self._deal_by_name(raw, is_validation, names)
            return
        arrays = raw if self._finisher is None else [self._finisher(n, array) for n, array in enumerate(raw)]
        if is_validation is None:
            self._deal("train", slice(None), rows, arrays)
            return
        train, validate = np.flatnonzero(~is_validation), np.flatnonzero(is_validation)
        self._deal("train", train, len(train), arrays)
        self._deal("validate", validate, len(validate), arrays)

    def finish(self, extremes: Extremes) -> Manifest:
        """Rewrites staged arrays, closes all files and returns the manifest."""
        counts = {kind: sum(self._rows[kind]) if self._words else self._dealers[kind].rows for kind in KINDS}
        if self._words:
            check_split(self._rows, self._options, self._distinct)
        else:
            enough(counts, self._options.partitions, self._options.validates)
        scaling: dict[str, Scale] = {}
        if self._staged:
            for files in self._files.values():
                for part in parts_of(files):
                    part.finish()
            scaling, fills = self._fit()
            finisher = FeatureFinalizer(self._fields, self._encoder.vocabularies, scaling, fills)
            rewrite = self._rewrite_by_name if self._words else self._rewrite
            infos = {kind: rewrite(kind, counts[kind], finisher) for kind in KINDS}
        else:
            assert self._finisher is not None
            finisher = self._finisher
            infos = {kind: self._close(kind, counts[kind], finisher) for kind in KINDS}
        manifest = make_manifest(finisher, scaling, extremes, infos, self._options.spec.names)
        if self._words:
            manifest.row_names = RowNames(self._options.spec.key, sum(counts.values()), f"{added(*self._sums):x}")
        return manifest

    def _fit(self) -> tuple[dict[str, Scale], dict[str, Value]]:
        """Measures the training rows: (column → scale, column → number for its missing values). Counts categories."""
        spec, vocabularies = self._options.spec, self._encoder.vocabularies
        moments: dict[str, ExactSums] = {}
        counted: set[str] = set()
        for number, field in enumerate(self._fields):
            names = {column.name for column in field.columns if column.name in spec.counted - counted}
            if not names and not any(is_measured(column) for column in field.columns):
                continue
            for block in self._train_blocks(number):
                measure(moments, self._fields, number, block)
                count_categories(vocabularies, names, field, block)
            counted |= names
        for name, fill in spec.impute.items():
            if fill.strategy == "most_frequent":
                vocabularies[name].fill = vocabularies[name].most_frequent()
        return scales(moments, self._fields), {**constants(spec), **means(moments, self._fields)}

    def close(self) -> None:
        """Closes all files, also after an error."""
        for files in self._files.values():
            for file in files:
                file.close()

    def _deal(self, kind: RowKind, index: Array | slice, rows: int, arrays: list[Any]) -> None:
        if not rows:
            return
        for partition, selection in self._dealers[kind].deal(index, rows):
            for number, (array, file) in enumerate(zip(arrays, self._open(kind, partition), strict=True)):
                file.append(self._gather(number, array, selection))

    def _deal_by_name(self, raw: list[Any], is_validation: Array | None, names: Names) -> None:
        self._distinct.take(names.words[:, 0])
        for run, selection, total in names.runs(self._options.partitions, is_validation):
            kind: RowKind = "train" if run < self._options.partitions else "validate"
            partition = run % self._options.partitions
            for number, (array, file) in enumerate(zip([*raw, names.words], self._open(kind, partition), strict=True)):
                file.append(self._gather(number, array, selection))
            self._rows[kind][partition] += len(selection)
            self._sums[run] = added(self._sums[run], total)

    def _gather(self, number: int, array: Any, index: Array | slice) -> Any:
        if isinstance(index, slice) or isinstance(array, Ragged):
            return array[index]
        rows = len(index)
        buffer = self._buffers.get(number)
        if buffer is None or len(buffer) < rows:
            buffer = self._buffers[number] = np.empty((rows, *array.shape[1:]), array.dtype)
        return array.take(index, axis=0, out=buffer[:rows], mode="clip")

    def _open(self, kind: str, partition: int, finisher: FeatureFinalizer | None = None) -> list[Any]:
        """Return the files of one partition, one per field; without a finisher those of a stage."""
        finisher = finisher or self._finisher
        name = ("stage-" if finisher is None else "") + folder_name(kind, partition)
        if name not in self._files:
            keep = len(all_files(self._fields)) * self._options.partitions * 2 <= OPEN_FILES
            (self._directory / name).mkdir()
            files = self._files[name] = []
            infos = self._raw if finisher is None else finisher.infos
            names = [*file_names(self._fields), "names.npy"][: len(infos)]
            for file, info in zip(names, infos, strict=True):
                files.append(appender(self._directory / name / file, info.shape, info.dtype, keep))
        return self._files[name]

    def _close(self, kind: RowKind, rows: int, finisher: FeatureFinalizer) -> list[PartitionInfo]:
        if not rows:
            return []
        return [self._seal(kind, partition, finisher) for partition in range(self._options.partitions)]

    def _seal(self, kind: RowKind, partition: int, finisher: FeatureFinalizer) -> PartitionInfo:
        files = self._files.pop(folder_name(kind, partition))
        digest, size, data = blake3(), 0, list[str]()
        for field, info, file in zip(self._fields, finisher.infos, files, strict=True):
            parts = [part.finish() for part in file.parts]
            digest.update(f"{field.role}\0{field.name}\0{info.dtype}\0{info.shape}\0{' '.join(parts)}\0".encode())
            size += sum(part.bytes for part in file.parts)
            data += parts
        return PartitionInfo(files[0].rows, size, digest.hexdigest(), data)

    def _rewrite(self, kind: RowKind, rows: int, finisher: FeatureFinalizer) -> list[PartitionInfo]:
        """Rewrites staged rows to final partitions, block by block; each stage file is removed when it is used up."""
        infos, start = [], 0
        for partition, share in enumerate(shares(rows, self._options.partitions) if rows else []):
            files = self._open(kind, partition, finisher)
            stage = 0 if self._contiguous else partition
            begin = start if self._contiguous else 0
            for number, file in enumerate(files):
                for block in self._stage(kind, stage, number, begin, begin + share):
                    file.append(finisher(number, block))
            start += share
            infos.append(self._seal(kind, partition, finisher))
            if not self._contiguous or partition == self._options.partitions - 1:
                del self._files[f"stage-{folder_name(kind, stage)}"]
                shutil.rmtree(self._directory / f"stage-{folder_name(kind, stage)}")
        return infos

    def _rewrite_by_name(self, kind: RowKind, rows: int, finisher: FeatureFinalizer) -> list[PartitionInfo]:
        """Does the same as `_rewrite`, in the order of the rows' names."""
        if not rows:
            return []
        infos = []
        for partition, count in enumerate(self._rows[kind]):
            name = folder_name(kind, partition)
            *arrays, names = (
                map_npy(file.path, count, info.shape, np.dtype(info.dtype))
                for file, info in zip(self._files.pop(f"stage-{name}"), self._raw, strict=True)
            )
            order = ordered([names[:, word] for word in range(self._words)])
            step = max(1, block_bytes(self._fields) * count // max(1, sum(array.nbytes for array in arrays)))
            files = self._open(kind, partition, finisher)
            for at in range(0, count, step):
                for number, (file, array) in enumerate(zip(files, arrays, strict=True)):
                    file.append(finisher(number, array.take(order[at : at + step], axis=0)))
            sealed = self._seal(kind, partition, finisher)
            total = self._sums[partition + (self._options.partitions if kind == "validate" else 0)]
            infos.append(named_partition(count, total, sealed.bytes, sealed.files))
            shutil.rmtree(self._directory / f"stage-{name}")
        return infos

    def _stage(self, kind: str, stage: int, number: int, start: int, stop: int) -> Iterator[Any]:
        file = self._files[f"stage-{folder_name(kind, stage)}"][number]
        info = self._raw[number]
        rows = map_npy(file.path, file.rows, info.shape, np.dtype(info.dtype))
        step = max(1, block_bytes([self._fields[number]]) * max(1, len(rows)) // max(1, rows.nbytes))
        for at in range(start, stop, step):
            yield rows[at : min(at + step, stop)]

    def _train_blocks(self, number: int) -> Iterator[Array]:
        """Yield the staged training rows of one field."""
        for stage in range(self._options.partitions if self._words else self._dealers["train"].partitions):
            rows = self._files[f"stage-{folder_name('train', stage)}"][number].rows
            yield from self._stage("train", stage, number, 0, rows)

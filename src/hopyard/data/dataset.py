"""What the user names: rows, which columns of them, and how they are cut. Nothing is read before `prepare`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
import pyarrow as pa
from blake3 import blake3

from hopyard.data.assignment import validates
from hopyard.data.encoding.encoder import Place
from hopyard.data.encoding.schema import plan
from hopyard.data.encoding.transform import Transform, chosen_by, identity, transformed
from hopyard.data.from_spark.job import Frame, from_spark
from hopyard.data.from_spark.source import Kept, refuse
from hopyard.data.manifest import FORMAT, Manifest
from hopyard.data.options import ColumnSpec, columns, fraction, whole
from hopyard.data.partitions.builder import Block, Job, build
from hopyard.data.partitions.cache import CACHE_BYTES, default_root, find_or_make, making, scratch, usable
from hopyard.data.rows.content import Content
from hopyard.data.rows.names import named
from hopyard.data.sources.memory import Arrays, Reader, Source, Table
from hopyard.data.sources.of import from_arrow, from_items, from_numpy, from_pandas
from hopyard.data.sources.parquet import Files, find
from hopyard.data.sources.tfrecord import Records
from hopyard.data.sources.tfrecord import find as find_records
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import absolute
from hopyard.formats.arrow import Array, require
from hopyard.sparkapi.dataframe import checked, is_frame

Assign = Literal["spread", "blocks"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows for training and validation, cut once into partitions. Make it with one of the class methods.

    Which row goes where depends on (seed, row number) alone: a keyed hash of (seed, n) picks the validation rows, n
    counting rows after the transform; of what remains, the j-th row goes to partition j mod P. Partitions differ by at
    most one row. With key=, and always of a Spark DataFrame, whose rows have no number, a row's name takes the number's
    place: a keyed hash of its key, or of all that is read of it (features, label, weight, validation), after the
    transform. It picks the validation rows and the partition, and orders the rows, so neither files nor the order of
    rows matter, and partitions differ as independent draws do. Without key=, another choice of columns is another
    split.

    A pickle of it is small: files go as paths; rows in memory stay behind, and the copy finds them in the cache.

    Options that all class methods share:
        validation: fraction of the rows in [0, 1), the name of a column of true and false, or a second Dataset.
        key: columns by whose values rows are told apart, such as a user's number: rows of one key go to validation
            together, and to one partition. The transform keeps these columns.
        partitions: how many, of the training rows and of the validation rows.
        standardize: True, or a list of feature columns: subtract the training rows' mean, divide by their deviation.
            True means all numbers in lists of features, and single columns of floating point; never categories.
        transform: a function of a record batch, run once, when the cache is made. Its code, and all that it reaches,
            is part of what names the entry, as it is when the data set is first prepared; what it reads when it runs
            (files, the environment, the clock) is not, nor what you set on a library's module or register with an
            abstract class, nor `__name__` and `__doc__` that it reads, nor fields that `__getstate__` leaves out: pass
            another constant, or delete the cache, when that changed.
        seed: of the choice of validation rows.
        assign: "spread" (above), or "blocks": each partition is a contiguous range of the rows.
        cache_bytes: the cache evicts what was used longest ago beyond this.
    """

    source: Source
    spec: ColumnSpec
    fraction: float = 0.0
    second: Dataset | None = None
    partitions: int = 8
    transform: Transform | None = None
    seed: int = 0
    assign: Assign = "spread"
    cache_bytes: int = CACHE_BYTES
    _memo: dict[str, str] = field(default_factory=dict, repr=False)
    """Digests that are costly, or that only the first owner can tell: of the source's rows, of the transform."""

    def __post_init__(self) -> None:
        whole("partitions", self.partitions, 1)
        whole("seed", self.seed, None)
        whole("cache_bytes", self.cache_bytes, 0)
        if self.assign not in ("spread", "blocks"):
            raise SpecError(f'assign = {self.assign!r}: "spread" or "blocks" is needed')
        if self.spec.key and self.assign != "spread":
            raise SpecError(f"key = {self.spec.key!r} says which rows lie together: leave out assign={self.assign!r}")
        if self.transform is not None and not callable(self.transform):
            raise SpecError(f"transform = {self.transform!r}: a function of a record batch, or None, is needed")
        if self.second is not None:
            other = self.second
            if isinstance(other.source, (Frame, Kept)):
                refuse(other.source.url)
            for name in ("inputs", "targets", "weight", "encode", "key"):
                mine, theirs = getattr(self.spec, name), getattr(other.spec, name)
                if mine != theirs:
                    raise SpecError(f"validation= is a Dataset with other columns: {name} {theirs!r}, here {mine!r}")
            if other.second is not None or other.fraction or other.spec.validation:
                raise SpecError("validation= is a Dataset that has a validation= itself; leave that out")

    @classmethod
    def numpy(
        cls,
        x: Any,
        y: Any = None,
        *,
        weight: Any = None,
        validation: float | Dataset = 0.0,
        key: Any = None,
        partitions: int = 8,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """Arrays in memory.

        Args:
            x: array of shape (rows, …), or a dict of named arrays. float64 becomes float32, other types stay.
            y: array, dict or None. Whole numbers become int64, others float32.
            weight: array of shape (rows,), or None.
            key: array of shape (rows,), or None.
            validation, …: see the class. A transform sees columns "inputs", "targets", "weight", "key" or the dicts'
                names; "targets.name" or "weight.weight" where an input has that name.

        Raises:
            SpecError, DataError: a value, a shape or a length is not allowed.
        """
        arrays, inputs, targets, weights, keys = from_numpy(x, y, weight, key)
        source = Arrays(arrays, "arrays in memory")
        return cls._make(
            source, source.schema, features=inputs, label=targets, weight=weights,
            validation=validation, key=keys, partitions=partitions, encode=None, standardize=standardize,
            transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def parquet(
        cls,
        source: str | os.PathLike[str] | list[Any],
        *,
        features: Any,
        label: Any = None,
        weight: str | None = None,
        validation: float | str | Dataset = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """Parquet files. All together are one table: folders below a directory or behind a wildcard that name a column,
        such as `year=2013/` (what `df.write.partitionBy` makes), give it, as whole numbers or as text. Where there is a
        transform, columns that some of the files lack are null there; without one, each file needs what is read.

        Args:
            source: a path, glob, directory or fsspec URL, or a list of these. Of directories and globs, what begins
                with "_" or "." is left out.
            features: a list of columns (numbers, booleans, lists of one length, categories): one float32 matrix; the
                name of one column: it keeps its type; or a dict of these: named inputs.
            label: one column (whole numbers and booleans become int64, others float32), a list (one matrix), a dict, or
                None.
            weight: a column of numbers, or None.
            encode: column → "one-hot", "index", a list of values (one-hot in this order), or ("index", list). Without a
                list the values are the sorted unique ones over all rows.
            validation, …: see the class.

        Raises:
            SpecError, DataError: a value is not allowed, no file matches, or a column is not there.
        """
        files = Files(find(source))
        return cls._make(
            files, files.schema(), features=features, label=label,
            weight=weight, validation=validation, key=key, partitions=partitions, encode=encode,
            standardize=standardize, transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def tfrecord(
        cls,
        source: str | os.PathLike[str] | list[Any],
        *,
        features: Any,
        label: Any = None,
        weight: str | None = None,
        validation: float | str | Dataset = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
        binary_features: Sequence[str] = (),
    ) -> Dataset:
        """TFRecord files of tf.train.Example; they are read twice when the cache is made, first to find the columns.

        A feature is a column of int64, float32 or text, or of lists of these if any record has other than one value;
        one that a record lacks is null there. Names that end with ".gz" are decompressed.

        Args:
            source: a path, glob, directory or fsspec URL, or a list of these. Of directories and globs, what begins
                with "_" or "." is left out.
            binary_features: features of bytes that are no text.
            features, …: as for `parquet`.

        Raises:
            SpecError, DataError: a value is not allowed, or no file matches. A file that is damaged or no TFRecord
                file, and a column that is not there, are found by `prepare`.
        """
        files = Records(find_records(source), binary_features)
        return cls._make(
            files, None, features=features, label=label,
            weight=weight, validation=validation, key=key, partitions=partitions, encode=encode,
            standardize=standardize, transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def arrow(
        cls,
        source: Any,
        *,
        features: Any,
        label: Any = None,
        weight: str | None = None,
        validation: float | str | Dataset = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """A pyarrow Table, RecordBatch or RecordBatchReader, or an iterable of record batches (read once, never all in
        memory). Arguments as for `parquet`.
        """
        made, schema = from_arrow(source)
        return cls._make(
            made, schema, features=features, label=label,
            weight=weight, validation=validation, key=key, partitions=partitions, encode=encode,
            standardize=standardize, transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def pandas(
        cls,
        frame: Any,
        *,
        features: Any,
        label: Any = None,
        weight: str | None = None,
        validation: float | str | Dataset = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """A pandas DataFrame; its index is not used. Arguments as for `parquet`."""
        table = from_pandas(frame)
        return cls._make(
            Table(table, "data frame in memory"), table.schema, features=features, label=label,
            weight=weight, validation=validation, key=key, partitions=partitions, encode=encode,
            standardize=standardize, transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def spark(
        cls,
        df: Any,
        *,
        features: Any,
        label: Any = None,
        weight: str | None = None,
        validation: Any = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """A Spark DataFrame, of a classic session or Spark Connect; its rows never pass through the driver.

        `prepare` runs one job that writes all partitions once, to a folder in `path` (`.url`); each host then fetches
        the partitions that it works on. Rows go by their names (see the class): the number of executors, Spark's
        partitions, files and the order of rows do not matter.

        Args:
            df: columns of numbers, booleans, text (with encode=), arrays of one length, and `ml.linalg` vectors, which
                are lists of numbers here. Anything else, such as binary files and images, by transform=, which is
                given all columns and runs in the executors.
            validation: a fraction, the name of a column of true and false, or a second DataFrame.
            encode: as for `parquet`. Where values are not listed, another job finds them first.
            path: a path or fsspec URL that driver and executors share. Default: the user's cache directory, for
                sessions whose executors run on this host.
            name: "flights-v1" for example: what was written under this name in `path` is found again, by any session,
                and no job runs. You vouch that the rows behind a name are the same: give changed rows another name.
                With other arguments, an edited transform too, the same name stands for one more folder; a DataFrame
                whose columns that are read have other types is refused. None: written anew for each Dataset.
            partitions, …: see the class.

        Raises:
            SpecError, DataError: a value is not allowed, a column is not there; the session was stopped.
        """
        frames = [checked(df, "df"), *([checked(validation, "validation")] if is_frame(validation) else [])]
        column = validation if isinstance(validation, str) else None
        share = fraction(validation, "a DataFrame") if column is None and len(frames) == 1 else 0.0
        spec = columns(
            features=features, label=label, weight=weight, validation=column,
            encode={} if encode is None else encode, standardize=standardize, key=key,
        )  # fmt: skip
        source = from_spark(
            frames, spec, share=share, partitions=partitions, seed=seed, transform=transform, path=path, name=name,
            cache=str(default_root()),
        )  # fmt: skip
        return cls(source, spec, share, None, partitions, transform, seed, "spread", cache_bytes)

    @classmethod
    def open(cls, url: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES) -> Dataset:
        """What Dataset.spark wrote, from any process that can read it.

        Args:
            url: its `.url`: a path or fsspec URL, the same for all hosts.
            cache_bytes: see the class.

        Raises:
            DataError: there is none.
        """
        kept = Kept(absolute(url))
        manifest = kept.open(cache_bytes)
        return cls(kept, ColumnSpec({}, {}), partitions=len(manifest.train), cache_bytes=cache_bytes)

    @classmethod
    def torch(
        cls,
        items: Any,
        *,
        features: Any = None,
        label: Any = None,
        weight: str | None = None,
        validation: float | str | Dataset = 0.0,
        key: str | list[str] | None = None,
        partitions: int = 8,
        encode: Mapping[str, Any] | None = None,
        standardize: bool | list[str] = False,
        transform: Transform | None = None,
        seed: int = 0,
        assign: Assign = "spread",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """Any map-style data set (`len(it)`, `it[i]`), read once: what it does at random is then done once as well.

        Args:
            items: each item is x, (x, y) or (x, y, weight), where x and y are tensors, arrays, numbers or dicts;
                or a dict of columns, then `features`, `label` and `weight` name them as for `parquet`.
        """
        source, features, label, weight = from_items(items, features, label, weight)
        return cls._make(
            source, None, features=features, label=label,
            weight=weight, validation=validation, key=key, partitions=partitions, encode=encode,
            standardize=standardize, transform=transform, seed=seed, assign=assign, cache_bytes=cache_bytes,
        )  # fmt: skip

    @classmethod
    def _make(
        cls,
        source: Source,
        schema: pa.Schema | None,
        *,
        features: Any,
        label: Any,
        weight: str | None,
        validation: float | str | Dataset,
        key: str | list[str] | None,
        partitions: int,
        encode: Mapping[str, Any] | None,
        standardize: bool | list[str],
        transform: Transform | None,
        seed: int,
        assign: Assign,
        cache_bytes: int,
    ) -> Dataset:
        column = validation if isinstance(validation, str) else None
        second = validation if isinstance(validation, Dataset) else None
        share = 0.0 if column is not None or second is not None else fraction(validation, "a Dataset")
        spec = columns(
            features=features,
            label=label,
            weight=weight,
            validation=column,
            encode={} if encode is None else encode,
            standardize=standardize,
            key=key,
        )
        made = cls(source, spec, share, second, partitions, transform, seed, assign, cache_bytes)
        if schema is not None and transform is None:
            plan(pa.RecordBatch.from_pylist([], schema=schema), spec, repr(source))
        return made

    @property
    def url(self) -> str | None:
        """Where a data set of Dataset.spark or Dataset.open is, or will be."""
        return self.source.url if isinstance(self.source, (Frame, Kept)) else None

    def prepare(self, cache: Path | str | None = None) -> Manifest:
        """Makes the partitions, or finds them in the cache; the entry stays for as long as the Manifest object lives.

        Args:
            cache: directory on a local disk; default: the user's cache directory.

        Raises:
            DataError: the rows cannot be used; names the column, how many, the first row and its source.
            ResourceError: the disk is full, or the directory cannot be written; nothing is left behind.
        """
        if isinstance(self.source, (Frame, Kept)):
            return self.source.open(self.cache_bytes, "" if cache is None else str(Path(cache).expanduser().absolute()))
        root = default_root() if cache is None else Path(cache).expanduser().absolute()
        with usable(root):
            root.mkdir(parents=True, exist_ok=True)
        key = self._key()
        if key is not None:
            return find_or_make(root, key, partial(self._build, key=key), self.cache_bytes)
        name = f"stream{uuid.uuid4().hex}"
        with usable(root), making(root, name), scratch(root, name) as directory:
            manifest = self._build(directory)
            key = cast(str, self._key())

            def move(empty: Path) -> Manifest:
                empty.rmdir()
                directory.rename(empty)
                return manifest

            found = find_or_make(root, key, move, self.cache_bytes)
        (root / "locks" / f"{name}.make").unlink(missing_ok=True)
        return found

    def batches(self, needed: list[str] | None = None) -> Iterator[tuple[Any, Place]]:
        """All its own rows after the transform: (record batch, where it is from). Empty batches are left out.

        Args:
            needed: columns; None: those of `spec` (unless there is a transform: it sees all).
        """
        names = None if self.transform is not None else self.spec.names if needed is None else needed
        coded = [] if self.transform is not None else list(self.spec.encode)
        content = Content() if isinstance(self.source, Reader) and "source" not in self._memo else None
        row = 0
        for batch, name, first in self.source.pieces(names, coded):
            if content is not None:
                content.update(batch)
            if self.transform is None:
                place = Place(name, first)
            else:
                place = Place(name, row, True)
                batch = transformed(self.transform, batch, f"{name}, rows from {first}")  # noqa: PLW2901
            if batch.num_rows:
                yield batch, place
            row += batch.num_rows
        if content is not None:
            self._memo["source"] = content.hexdigest()

    def _blocks(self) -> Generator[Block, None, None]:
        """Batches with the choice of validation rows."""
        row = 0
        column = self.spec.validation
        for batch, place in self.batches():
            names = named(batch, self.spec, str(place)) if self._by_name(batch, place) else None
            chosen: Array | None = None
            if self.fraction:
                chosen = (
                    validates(self.seed, self.fraction, row, row + batch.num_rows)
                    if names is None
                    else names.chosen(self.seed, self.fraction)
                )
            elif column is not None and batch.schema.get_field_index(column) >= 0:
                chosen = chosen_by(batch, column, place)
            row += batch.num_rows
            yield batch, place, chosen, names
        if self.second is not None:
            for batch, place in self.second.batches():
                names = named(batch, self.spec, str(place)) if self._by_name(batch, place) else None
                yield batch, place, np.ones(batch.num_rows, np.bool_), names

    def _by_name(self, batch: Any, place: Place) -> bool:
        """Whether rows go by their names; raises DataError when the batch lacks what they are made of."""
        if self.spec.key:
            require(batch.schema, self.spec.names, str(place))
        return bool(self.spec.key)

    def _build(self, directory: Path, key: str | None = None) -> Manifest:
        validating = bool(self.fraction or self.spec.validation or self.second)
        manifest = build(
            directory,
            Job(self.spec, self.partitions, self.assign, validating, self.fraction, self.seed),
            self._blocks(),
        )
        manifest.sources = [*self.source.listed(), *(self.second.source.listed() if self.second else [])]
        if key is not None and self._key(again=True) != key:
            what = " or ".join(repr(one.source) for one in (self, self.second) if one is not None)
            raise DataError(f"{what} changed while they were read; call prepare() again when they are whole")
        return manifest

    def _identity(self, again: bool = False) -> str | None:
        """Of the source's rows; `again`: not as it was when this was asked for first, but as it is now."""
        if again or "source" not in self._memo:
            identity = self.source.identity()
            if identity is None:
                return self._memo.get("source")
            if again or isinstance(self.source, (Files, Records)):  # may change while we live: ask again each time
                return identity
            self._memo["source"] = identity
        return self._memo["source"]

    def _code(self) -> str:
        """Of the transform, as it was when this was asked for first."""
        if "code" not in self._memo:
            self._memo["code"] = identity(self.transform)
        return self._memo["code"]

    def _key(self, again: bool = False) -> str | None:
        """Of the cache entry; None while a source must be read first. `again`: see `_identity`."""
        parts: list[Any] = [
            FORMAT,
            self.partitions,
            self.assign,
            self.fraction,
            self.seed if self.fraction else 0,
            self.spec,
        ]
        for one in (self, self.second):
            if one is not None:
                identity = one._identity(again)
                if identity is None:
                    return None
                parts += [identity, one._code()]
        return blake3(msgspec.json.encode(parts)).hexdigest()[:32]

    def __copy__(self) -> Dataset:
        return self

    def __deepcopy__(self, memo: Any) -> Dataset:
        """Nothing in it changes, and a copy by pickle would leave rows in memory behind."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = {one.name: getattr(self, one.name) for one in fields(self)}
        self._code()
        identity = None if isinstance(self.source, (Files, Records)) else self._identity()
        return _restore, ({**state, "source": self.source.detached(identity), "_memo": dict(self._memo)},)


def _restore(state: dict[str, Any]) -> Dataset:
    made = object.__new__(Dataset)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made

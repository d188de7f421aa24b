"""Describes a prepared data set: its partitions, the shape of its columns, and how to encode more rows the same way.

The manifest is one JSON file. Its copies (in run directories, beside saved models) are as good as the first: they
point at the cache entry, and `data.new_rows` needs nothing but the manifest.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.errors import DataError
from hopyard.spec import RowKind
from hopyard.system.files import replacing

FORMAT = 1
"""Version of the manifest, of the files of a cache entry, and of what names an entry."""

FILE = "manifest.json"

Value = bool | int | float | str
"""A value of a vocabulary."""
Shape = tuple[int | None, ...]
"""Shape of one row; None is the axis of rows of any length."""
Labels = list[Value] | dict[str, list[Value]] | None
"""The values of an encoded label, by their numbers; of several labels, by name."""

Role = Literal["inputs", "targets", "weights"]


Key = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-z][0-9a-z-]{0,99}\Z")]
"""Names a cache entry, and so becomes a path on the host of whoever reads it, whoever wrote it."""

FileName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z_-][0-9A-Za-z_.-]{0,199}\Z")]
"""Names a file of a folder, in a manifest or an index: never one of another folder."""


class ArrayInfo(msgspec.Struct, frozen=True):
    """Shape of one row, and NumPy dtype name, of a column array."""

    shape: Shape
    dtype: str

    @property
    def is_ragged(self) -> bool:
        """True if rows may have any length."""
        return None in self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; of one value, where rows have any length."""
        return size_of(self.shape) * np.dtype(self.dtype).itemsize

    def made_up(self, rows: int) -> np.ndarray[Any, Any]:
        """Return rows of zeros as a batch has them. Rows of any length have three, and a mask that is true."""
        shape = rows, *(3 if axis is None else axis for axis in self.shape)
        return np.full(shape, self.is_ragged and self.dtype == "bool", self.dtype)


def size_of(shape: Shape) -> int:
    """Return how many values a row of this shape has; 1 where it has any length."""
    return math.prod(axis for axis in shape if axis is not None)


class PartitionInfo(msgspec.Struct, frozen=True):
    """One partition: rows, bytes of all its columns, BLAKE3 of these bytes (or the sum of the rows' names)."""

    rows: int
    bytes: int
    digest: str
    files: list[str] = []
    """BLAKE3 of the data of each of its files, in the order of `all_files`; none where no file is written yet."""


class SourceInfo(msgspec.Struct, frozen=True):
    """Where rows came from: a file and its row group (−1: not from a file), and how many rows it has."""

    name: str
    row_group: int
    rows: int
    columns: dict[str, str] = {}
    """The columns that were read of a Spark DataFrame, and Spark's names of their types."""


class Scale(msgspec.Struct, frozen=True):
    """Mean and deviation over the training rows, one of each for every value of the column's row."""

    means: list[float]
    deviations: list[float]


class Column(msgspec.Struct, frozen=True):
    """One column of the source and what is done with it."""

    name: str
    type: str
    """Arrow's name of its type, a colon, NumPy's name of its values' dtype (int64 for categories)."""
    shape: Shape
    """Shape of one row before encoding."""
    encode: Literal["", "one-hot", "index"] = ""
    scaled: bool = False
    other: bool = False
    """Whether its last category stands for all values that are none of the others."""
    impute: Literal["", "mean", "most_frequent", "constant"] = ""
    """What stands for its missing values; empty: none may be missing."""
    max_length: int | None = None
    """Values after which each row is cut, where rows have any length; None: nowhere."""

    @property
    def size(self) -> int:
        """Values of one row before encoding."""
        return size_of(self.shape)

    @property
    def is_filled(self) -> bool:
        """Whether a number stands for its missing values, which are NaN in a raw array."""
        return bool(self.impute) and not self.encode


class Field(msgspec.Struct, frozen=True):
    """One array that a model sees, and the columns it is made of."""

    role: Role
    name: str
    matrix: bool
    """Whether its columns are stacked side by side into (rows, width)."""
    columns: list[Column]
    raw: str
    """NumPy dtype before vocabularies and standardization are applied."""
    dtype: str
    """NumPy dtype that a model sees."""
    mask: str | None = None
    """Name of the input that says where rows of any length have values; None: there is none."""

    @property
    def is_ragged(self) -> bool:
        """True if rows may have any length."""
        return None in self.columns[0].shape

    @property
    def is_final(self) -> bool:
        """Whether the raw array is what a model sees."""
        return not any(column.encode or column.scaled or column.impute for column in self.columns)


class RowNames(msgspec.Struct, frozen=True):
    """How rows went to their partitions: by names, which are hashes of what the rows hold."""

    key: list[str]
    """Columns that decided; none: all that are read."""
    rows: int
    sum: str
    """The sum of all names modulo 2¹²⁸, in hexadecimal: equal for equal rows in any order."""


class Stored(msgspec.Struct, frozen=True):
    """A materialisation: rows on shared storage, which a host fetches when it needs them."""

    url: str
    """The folder: an absolute path that all hosts share, or a URL."""
    index: FileName
    """BLAKE3 of its index, which is the file `index-<BLAKE3>.json`."""
    limit: int = 64 << 30
    """Bytes that a host's cache may take."""

    @property
    def file(self) -> str:
        """Name of the index."""
        return f"index-{self.index}.json"


class Manifest(msgspec.Struct, weakref=True, kw_only=True):
    """The result of `Dataset.prepare`. Row shapes and dtypes are those that a model sees."""

    format: int = FORMAT
    key: Key
    """Names the cache entry: a hash of what it was made from."""
    path: str
    """Absolute directory of the cache entry. With `stored`: the cache directory for fetched partitions; empty: each
    host's own."""
    digest: str
    """BLAKE3 over everything that decides the content: equal digests, equal batches."""
    train: list[PartitionInfo]
    validate: list[PartitionInfo]
    inputs: dict[str, ArrayInfo]
    targets: dict[str, ArrayInfo]
    weighted: bool
    classes: int | None
    """Largest label + 1 (or the size of its vocabulary) when the label is one column of whole numbers ≥ 0."""
    label_range: tuple[float, float] | None
    """Least and largest label over all rows, when the label is one number."""
    vocabularies: dict[str, list[Value]]
    standardize: dict[str, Scale]
    fields: list[Field]
    names: list[str]
    """Columns of the source that are used."""
    sources: list[SourceInfo]
    stored: Stored | None = None
    """Where the rows are, if not in the cache entry."""
    row_names: RowNames | None = None
    """How rows went to partitions by their names; None: they went by their number."""
    fills: dict[str, Value] = {}
    """Column → what stands for its missing values."""

    @property
    def train_rows(self) -> int:
        """Training rows in all."""
        return sum(part.rows for part in self.train)

    @property
    def validate_rows(self) -> int:
        """Validation rows in all."""
        return sum(part.rows for part in self.validate)

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.train_rows + self.validate_rows

    @property
    def bytes(self) -> int:
        """Bytes of all columns of all partitions."""
        return sum(part.bytes for part in (*self.train, *self.validate))

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Kind → bytes of all columns of each partition."""
        return {"train": [part.bytes for part in self.train], "validate": [part.bytes for part in self.validate]}

    def only(self, kind: RowKind, part: PartitionInfo) -> Manifest:
        """Return the manifest of an entry that has this partition alone; key and path are the caller's to fill."""
        train, validate = ([part], []) if kind == "train" else ([], [part])
        return msgspec.structs.replace(self, train=train, validate=validate, stored=None)

    @property
    def masks(self) -> dict[str, str]:
        """Input whose rows have any length → the input that is its mask."""
        return {field.name: field.mask for field in self.fields if field.mask is not None}

    def column_names(self, role: Role) -> list[str]:
        """Return the names of the columns that inputs, targets or weights are made of."""
        return [column.name for field in self.fields if field.role == role for column in field.columns]

    @property
    def categories(self) -> dict[str, int]:
        """Feature that encode= made categories of → the number of its codes, that of other values included."""
        columns = [column for field in self.fields if field.role == "inputs" for column in field.columns]
        return {each.name: len(self.vocabularies[each.name]) + each.other for each in columns if each.encode}

    @property
    def label_values(self) -> Labels:
        """The values of the label, where encode= made numbers of them, by these numbers (or by their places in the
        one-hot row); of several labels a dict, with those that are encoded; None: none is."""
        encoded = {
            field.name: list(self.vocabularies[field.columns[0].name])
            for field in self.fields
            if field.role == "targets" and len(field.columns) == 1 and field.columns[0].encode
        }
        return encoded.get("targets") if list(self.targets) == ["targets"] else encoded or None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON, under a temporary name first."""
        with replacing(Path(path)) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, check: bool = True) -> Manifest:
        """Reads what `save` wrote.

        Args:
            path: the file.
            check: whether the cache entry must be there. A saved model needs only the encoding: False.

        Raises:
            DataError: no such file, not a manifest, of a newer version, or its cache entry is gone.
        """
        try:
            manifest = manifest_in(Path(path).read_bytes(), path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read as a manifest: {error}") from error
        if check and manifest.stored is None and not (Path(manifest.path) / FILE).is_file():
            raise DataError(gone(manifest))
        return manifest


read_manifest = msgspec.json.Decoder(Manifest).decode
"""Returns the Manifest in these bytes. It is made here, as msgspec may crash where several threads, such as two runs in
the background, are the first to decode a type."""


class ManifestHead(msgspec.Struct):
    """The fields that a manifest of any version has."""

    format: int
    key: str
    stored: Any = None


def manifest_in(data: bytes, where: object) -> Manifest:
    """Return the Manifest in the bytes of the file `where`.

    Raises:
        DataError: it is none, or of a newer version.
    """
    try:
        if (version := msgspec.json.decode(data, type=ManifestHead).format) > FORMAT:
            raise DataError(f"{where}: manifest of version {version}, this Hopyard reads up to {FORMAT}: upgrade it")
        return read_manifest(data)
    except msgspec.MsgspecError as error:
        raise DataError(f"{where}: cannot be read as a manifest: {error}") from error


def sizes_in(path: Path) -> dict[str, list[int]]:
    """Return `Manifest.sizes` of the manifest in this file; empty where it cannot be read."""
    try:
        return Manifest.load(path, check=False).sizes
    except DataError:
        return {}


def split(manifest: Manifest) -> str:
    """Describes what decided which rows validate, and which partition a row is in."""
    if manifest.row_names is None:
        return "by the number of the row"
    if manifest.row_names.key:
        return f"by {', '.join(manifest.row_names.key)}"
    features = manifest.column_names("inputs")
    return f"by the features of a row ({', '.join(features)}); with others it is another split"


def difference(then: Manifest, now: Manifest) -> str:
    """Describes how two data sets differ; empty: they do not."""
    if then.digest == now.digest:
        return ""
    if more := now.rows - then.rows:
        return f"on {then.rows} rows, now there are {now.rows}: {abs(more)} {'came' if more > 0 else 'went'}"
    if then.row_names is None or now.row_names is None or then.row_names.key != now.row_names.key:
        return "on other data"
    if then.row_names.sum != now.row_names.sum:
        return f"on other rows, though there were {then.rows} then too"
    return "on the same rows, but in other partitions, or encoded otherwise"


def gone(manifest: Manifest) -> str:
    """Return the message for a cache entry that no longer exists."""
    return (
        f"the prepared partitions are gone: {manifest.path} (evicted, deleted, or made on another host); "
        f"call prepare() on the Dataset again, on this host"
    )


def folder_name(kind: str, partition: int) -> str:
    """Return the name of the folder of one partition within its cache entry."""
    return f"{kind}-{partition:05d}"


def file_name(role: str, number: int) -> str:
    """Return the name of the file of one array within its partition: numbered, as names of inputs may be anything."""
    return f"{role}-{number}.npy"


def file_names(fields: Sequence[Field]) -> list[str]:
    """Return the names of the files of the arrays of these fields, in their order."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [file_name(field.role, next(numbers[field.role])) for field in fields]


def all_files(fields: Sequence[Field]) -> list[str]:
    """Return the names of all files of a partition: rows of any length have one more, see `npy.RaggedAppender`."""
    names = zip(fields, file_names(fields), strict=True)
    return [each for field, name in names for each in ([name, offsets_name(name)] if field.is_ragged else [name])]


def offsets_name(name: str) -> str:
    """Return the name of the file that says where the rows of an array end."""
    return f"{name.removesuffix('.npy')}-offsets.npy"


def content_digest(manifest: Manifest) -> str:
    """Return the digest of what decides the batches: row shapes, dtypes, digests of partitions, and the encoding."""
    parts = (
        1,  # version of this tuple; another number changes the digest of every data set
        [(part.rows, part.digest) for part in manifest.train],
        [(part.rows, part.digest) for part in manifest.validate],
        manifest.inputs,
        manifest.targets,
        manifest.weighted,
        manifest.classes,
        manifest.vocabularies,
        manifest.standardize,
        [
            (
                f.role,
                f.name,
                f.matrix,
                [(c.name, c.shape, c.encode, c.scaled, c.other, *_length(c)) for c in f.columns],
            )
            for f in manifest.fields
        ],
        manifest.fills,
    )
    return blake3(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _length(column: Column) -> tuple[int, ...]:
    """Return what cuts its rows, where something does: names of rows, which are the digest of a partition, do not."""
    return () if column.max_length is None else (column.max_length,)

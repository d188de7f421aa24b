"""tf.train.Example, both ways: the bytes of records to Arrow columns and back, and which columns there are at all.

A feature is a list of whole numbers, of 32-bit floats, or of bytes. Each record says for itself which of them it has,
and whether one value or a list; so the columns are known when all records were seen (`Seen`), and not from the first.

The message is made from its description, without TensorFlow, and kept in a pool of its own, so that TensorFlow's and
this may live in one process.

Source: TensorFlow, `tensorflow/core/example/feature.proto` and `example.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hopyard.checks import closest, names
from hopyard.errors import DataError, SpecError
from hopyard.formats.tfrecord import missing
from hopyard.text import shown

_KINDS = {"int64_list": pa.int64(), "float_list": pa.float32(), "bytes_list": pa.binary()}
"""Name of the list in a feature → Arrow type of its values."""
_NAMES = {"int64_list": "whole numbers", "float_list": "floats", "bytes_list": "bytes"}


class Seen(msgspec.Struct):
    """What the records have shown of one feature so far.

    Attributes:
        kind: the name of its list; None: it never had a value.
        many: whether any record has other than one value.
        where: a record of this kind, for messages.
    """

    kind: str | None = None
    many: bool = False
    where: str = ""

    def take(self, name: str, kind: str, many: bool, where: str) -> None:
        """Add one more record, or what others showed.

        Raises:
            DataError: the kinds differ.
        """
        if self.kind not in (None, kind):
            raise DataError(
                f"feature {name!r} holds {_NAMES[self.kind or '']} in {self.where} but {_NAMES[kind]} in {where}; "
                f"write all records with one kind"
            )
        if self.kind is None:
            self.kind, self.where = kind, where
        self.many = self.many or many


def look(features: dict[str, Seen], records: Iterable[bytes], path: str) -> int:
    """Add to `features` what the records of a file show. Returns how many records there are.

    Raises:
        DataError: a record is no Example, or a feature has two kinds.
    """
    _message()  # its error says what to install
    from google.protobuf.unknown_fields import UnknownFieldSet

    number = -1
    for number, data in enumerate(records):
        example = _parse(data, path, number)
        if len(UnknownFieldSet(example)):
            raise DataError(
                f"{path}, record {number} is no tf.train.Example: it has fields that an Example lacks, as a "
                f"SequenceExample has; read such files with TensorFlow"
            )
        for name, feature in example.features.feature.items():
            seen = features.get(name)
            if seen is None:
                seen = features[name] = Seen()
            kind = feature.WhichOneof("kind")
            if kind is None:  # a null is written so
                continue
            many = len(getattr(feature, kind).value) != 1
            if seen.kind != kind or (many and not seen.many):
                seen.take(name, kind, many, f"record {number} of {path}")
    return number + 1


def merge(features: dict[str, Seen], others: dict[str, Seen]) -> None:
    """Add what other records showed. Raises DataError when a feature has two kinds."""
    for name, other in others.items():
        mine = features.setdefault(name, Seen())
        if other.kind is not None:
            mine.take(name, other.kind, other.many, other.where)


def schema(features: dict[str, Seen], binary: Sequence[str], source_label: str) -> pa.Schema:
    """Return the columns, sorted by name: int64, float32, string or binary, or a list of these; all may have nulls.

    Args:
        features: what all records showed.
        binary: features whose bytes are no text.
        source_label: the records, for messages.

    Raises:
        SpecError: `binary` names what is no feature of bytes.
    """
    for name in binary:
        if name not in features:
            raise SpecError(
                f"binary_features names {name!r}, which is no feature of {source_label}{closest(name, [*features])}"
            )
        if features[name].kind not in (None, "bytes_list"):
            raise SpecError(
                f"binary_features names {name!r}, which holds {_NAMES[features[name].kind or '']} in "
                f"{features[name].where}, no bytes; leave it out"
            )
    fields = []
    for name, seen in sorted(features.items()):
        kind = _KINDS[seen.kind or "bytes_list"]
        if pa.types.is_binary(kind) and name not in binary:
            kind = pa.string()
        fields.append((name, pa.list_(kind) if seen.many else kind))
    return pa.schema(fields)


def listed(binary_features: Any) -> tuple[str, ...]:
    """Return the names that the user gave. Raises SpecError when these are no names."""
    if isinstance(binary_features, str):
        raise SpecError(
            f"binary_features must be a list of names such as [{binary_features!r}], got {shown(binary_features)}"
        )
    try:
        items = binary_features if hasattr(binary_features, "tolist") else list(binary_features)
    except Exception:  # noqa: BLE001 - the user's own __iter__
        items = None
    if (texts := names(items)) is None:
        raise SpecError(f"binary_features must be a list of names, got {shown(binary_features)}")
    return tuple(texts)


def decode(records: Sequence[bytes], columns: pa.Schema, path: str, first: int) -> Any:
    """Return a record batch of these columns. A feature that a record lacks is null there.

    Args:
        records: some that follow each other in a file.
        columns: some of `schema`.
        path: of the file, for messages.
        first: number of the first of these records in it.

    Raises:
        DataError: a record does not fit the columns, or a text is not UTF-8.
    """
    maps = [_parse(data, path, first + number).features.feature for number, data in enumerate(records)]
    arrays = [_column(maps, field, path, first) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _column(maps: list[Any], field: Any, path: str, first: int) -> Any:
    many = pa.types.is_list(field.type)
    leaf = field.type.value_type if many else field.type
    text = pa.types.is_string(leaf)
    kind = pa.binary() if text else leaf
    attribute = next(name for name, arrow_type in _KINDS.items() if arrow_type == kind)
    get = attrgetter(f"{attribute}.value")
    lists: list[Any] = []
    for number, features in enumerate(maps):
        feature = features[field.name]  # a feature that is not there has no kind, as a null
        values = get(feature)
        if len(values) != 1 and not (many and len(values)):
            feature_kind = feature.WhichOneof("kind")
            if feature_kind not in (None, attribute) or (feature_kind and not many):
                raise DataError(
                    f"{path}, record {first + number}: feature {field.name!r} is no {field.type}, which it was when "
                    f"the columns were looked for; the file was written anew since: begin again"
                )
            values = None if feature_kind is None else values
        lists.append(values)
    if not many:
        array = pa.array([None if values is None else values[0] for values in lists], kind)
        return _text(array, field.name, lambda at: f"{path}, record {first + at}") if text else array
    lengths = np.array([0 if values is None else len(values) for values in lists], np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    full = [values for values in lists if values is not None and len(values)]
    if pa.types.is_binary(kind):
        inner = pa.array([value for values in full for value in values], kind)
    else:
        dtype = kind.to_pandas_dtype()
        inner = pa.array(np.concatenate([np.zeros(0, dtype), *(np.asarray(values, dtype) for values in full)]))
    if text:
        rows = np.repeat(np.arange(len(lists)), lengths)
        inner = _text(inner, field.name, lambda at: f"{path}, record {first + rows[at]}")
    nulls = pa.array([values is None for values in lists])
    return pa.ListArray.from_arrays(pa.array(offsets), inner, type=field.type, mask=nulls)


def _text(array: Any, name: str, label_of: Any) -> Any:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        for at, value in enumerate(array.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as fault:
                raise DataError(
                    f"{label_of(at)}: feature {name!r} is no text ({fault}); if it holds binary data, name it in "
                    f"binary_features"
                ) from error
        raise


def encode(batch: Any) -> Iterator[bytes]:
    """Yield the rows of a record batch as Examples; nulls as features without a value. Equal rows give equal bytes.

    Raises:
        DataError: a column has a type that is not allowed, or an array has a null in it.
    """
    columns = [(field.name, *_lists(batch.column(at), field.name)) for at, field in enumerate(batch.schema)]
    make = _message()
    for row in range(batch.num_rows):
        example = make()
        features = example.features.feature
        for name, attribute, rows in columns:
            feature, values = features[name], rows[row]
            if values is None:
                continue
            value_list = getattr(feature, attribute)
            if attribute == "float_list":
                value_list.MergeFromString(values)
            elif values:
                value_list.value.extend(values)
            else:
                value_list.SetInParent()
        yield example.SerializeToString(deterministic=True)


def kind_of(kind: Any) -> str | None:
    """Return which list an Arrow type becomes; None: none, it is not allowed."""
    test = pa.types
    if test.is_list(kind) or test.is_large_list(kind):
        kind = kind.value_type
    if test.is_boolean(kind) or (test.is_integer(kind) and kind != pa.uint64()):
        return "int64_list"
    if test.is_floating(kind):
        return "float_list"
    is_bytes = test.is_string(kind) or test.is_large_string(kind) or test.is_binary(kind) or test.is_large_binary(kind)
    return "bytes_list" if is_bytes or test.is_null(kind) else None


def _lists(array: Any, name: str) -> tuple[str, list[Any]]:
    """Return (name of the list, for each row its content or None): of floats the bytes of the message, else values."""
    attribute = kind_of(array.type)
    if attribute is None:
        raise DataError(
            f"column {name!r} has type {array.type}, which TFRecord lacks; numbers, booleans, text, binary, and arrays "
            f"of these can be written: cast it"
        )
    test = pa.types
    many = test.is_list(array.type) or test.is_large_list(array.type)
    nulls = array.is_null().to_pylist()
    if many:
        inner, lengths = array.flatten(), array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    else:
        inner, lengths = array.drop_null(), 1 - np.array(nulls, np.int64)
    if inner.null_count:
        raise DataError(
            f"column {name!r}: an array has a null in it, which TFRecord lacks; fill it, or filter it out of the array"
        )
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64).tolist()
    values: Any
    if attribute == "float_list":
        flat = inner.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False).astype("<f4", copy=False)
        rows = [_packed(flat[start:stop].tobytes()) for start, stop in pairwise(ends)]
    else:
        values = inner.cast(_KINDS[attribute], safe=False).to_pylist()
        rows = [values[start:stop] for start, stop in pairwise(ends)]
    return attribute, [None if null else row for null, row in zip(nulls, rows, strict=True)]


def _packed(data: bytes) -> bytes:
    """Return a FloatList: its field 1, where the values lie in sequence. Python numbers would take 30 times as long."""
    size, head = len(data), bytearray(b"\x0a")
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


def _parse(data: bytes, path: str, number: int) -> Any:
    """Return the message in a record. Raises DataError when it is no Example."""
    try:
        return _message().FromString(data)
    except Exception as error:
        from google.protobuf.message import DecodeError  # not above: that would cost each record a microsecond

        if not isinstance(error, DecodeError):
            raise
        raise DataError(
            f"{path}, record {number} is no tf.train.Example ({error}); other records are not read"
        ) from None


@lru_cache(1)
def _message() -> Any:
    """Return the class of the message. Raises SpecError when protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise missing(error) from error
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="hopyard/example.proto", package="hopyard", syntax="proto3")

    def add(parent: Any, name: str, *fields: tuple[str, int, Any]) -> Any:
        added = parent.add(name=name)
        for number, (field, label, field_type) in enumerate(fields, 1):
            type_fields = (
                {"type": field_type}
                if isinstance(field_type, int)
                else {"type": kind.TYPE_MESSAGE, "type_name": f".hopyard.{field_type}"}
            )
            added.field.add(name=field, number=number, label=label, **type_fields)
        return added

    optional, repeated = kind.LABEL_OPTIONAL, kind.LABEL_REPEATED
    add(file.message_type, "BytesList", ("value", repeated, kind.TYPE_BYTES))
    add(file.message_type, "FloatList", ("value", repeated, kind.TYPE_FLOAT))
    add(file.message_type, "Int64List", ("value", repeated, kind.TYPE_INT64))
    feature = add(
        file.message_type,
        "Feature",
        ("bytes_list", optional, "BytesList"),
        ("float_list", optional, "FloatList"),
        ("int64_list", optional, "Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = add(file.message_type, "Features", ("feature", repeated, "Features.FeatureEntry"))
    entry = add(
        features.nested_type, "FeatureEntry", ("key", optional, kind.TYPE_STRING), ("value", optional, "Feature")
    )
    entry.options.map_entry = True
    add(file.message_type, "Example", ("features", optional, "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("hopyard.Example"))

"""The message tf.train.Example, without TensorFlow: it is made from its description.

It is kept in a pool of its own, so that TensorFlow's and this may live in one process.

Source: TensorFlow, `tensorflow/core/example/feature.proto` and `example.proto`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

from hopyard.errors import DataError
from hopyard.formats.tfrecord import missing

KINDS = {"int64_list": pa.int64(), "float_list": pa.float32(), "bytes_list": pa.binary()}
"""Name of the list in a feature → Arrow type of its values."""


def parse(data: bytes, path: str, number: int) -> Any:
    """Return the message in a record. Raises DataError when it is no Example."""
    try:
        return message().FromString(data)
    except Exception as error:
        from google.protobuf.message import DecodeError  # not above: that would cost each record a microsecond

        if not isinstance(error, DecodeError):
            raise
        raise DataError(
            f"{path}, record {number} is no tf.train.Example ({error}); other records are not read"
        ) from None


@lru_cache(1)
def message() -> Any:
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

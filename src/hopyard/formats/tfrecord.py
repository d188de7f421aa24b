"""TFRecord files: records of bytes, each with its length and two checksums. What is in a record is not known here.

    record    length (8 bytes, little endian), its checksum (4), data (length bytes), their checksum (4)

A checksum is the CRC-32C, turned by 15 bits and shifted by a constant, so that it can itself be checked like data.

Source: TensorFlow, `tensorflow/core/lib/io/record_writer.h` and `tensorflow/core/lib/hash/crc32c.h`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.filesystems import open_to_read, open_url, reaching, why
from hopyard.system.limits import remedy

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_LARGEST = (1 << 31) - 1
"""Bytes of a record: a protocol buffer has no more, and a damaged length must not fill the memory."""
_BUFFER = 1 << 20
"""Bytes that are read ahead."""


def framed(data: bytes) -> bytes:
    """Return a record of `data`, as it lies in a file."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CHECKSUM.pack(checksum(length)), data, _CHECKSUM.pack(checksum(data))))


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of `data`."""
    crc: int = _crc()(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: str) -> Iterator[bytes]:
    """Yield the data of each record of a file, in order; no more than one of them is in memory.

    Args:
        path: a path or fsspec URL. A file whose name ends with ".gz" is decompressed.

    Raises:
        ResourceError: the host lacks what it takes to read the file.
        DataError: the file cannot be read, is no TFRecord file, is cut off or damaged; names the path, the number of
            the record (from 0) and the byte where it begins (of what was decompressed).
    """
    number = offset = 0
    try:
        with _open(path) as stream:
            while header := stream.read(_HEADER.size):
                length = _length(header, path, number, offset)
                data = stream.read(length)
                tail = stream.read(_CHECKSUM.size)
                if len(data) + len(tail) < length + _CHECKSUM.size:
                    raise _cut(path, number, offset, f"{length:,} bytes are announced, {len(data):,} are there")
                if _CHECKSUM.unpack(tail)[0] != checksum(data):
                    raise DataError(
                        f"{path}, record {number}, byte {offset}: the {length:,} bytes of the record do not have its "
                        f"checksum, so they were damaged; fetch or write the file again"
                    )
                yield data
                number += 1
                offset += length + _HEADER.size + _CHECKSUM.size
    except EOFError as error:
        raise _cut(path, number, offset, "its compressed data are incomplete") from error
    except (OSError, zlib.error) as error:
        if "://" in path and why(path, error):
            with reaching(path, "read", DataError, "source"):
                raise
        if isinstance(error, OSError) and (advice := remedy(error)):
            raise ResourceError(f"{path} cannot be read: {error}; {advice}") from error
        raise DataError(f"{path}, record {number}, byte {offset}: cannot be read: {error}") from error


def _length(header: bytes, path: str, number: int, offset: int) -> int:
    if len(header) == _HEADER.size:
        length, crc = _HEADER.unpack(header)
        if crc == checksum(header[:8]) and length <= _LARGEST:
            return int(length)
    if number == 0:
        format_name = next((name for magic, name in _OTHER_FORMATS.items() if header.startswith(magic)), "")
        raise DataError(
            f"{path}, record 0, byte 0: this is no TFRecord file: its first bytes are {header.hex(' ')}"
            + (f", which looks like {format_name}" if format_name else "")
        )
    if len(header) < _HEADER.size:
        raise _cut(path, number, offset, f"{len(header)} of the {_HEADER.size} bytes before its data are there")
    raise DataError(
        f"{path}, record {number}, byte {offset}: the length of the record does not have its checksum, so the file "
        f"was damaged here or before; fetch or write it again"
    )


_OTHER_FORMATS = {
    b"\x1f\x8b": 'gzip; such a file is decompressed if its name ends with ".gz"',
    b"x\x01": "zlib, which is not read here; write it with compression GZIP or none",
    b"x\x9c": "zlib, which is not read here; write it with compression GZIP or none",
    b"x\xda": "zlib, which is not read here; write it with compression GZIP or none",
    b"PAR1": "Parquet; Dataset.parquet reads it",
}
"""How files begin that are often mistaken for TFRecord files."""


def _cut(path: str, number: int, offset: int, detail: str) -> DataError:
    return DataError(
        f"{path}, record {number}, byte {offset}: the file was cut off within the record ({detail}); fetch or write it "
        f"again"
    )


@contextmanager
def _open(path: str) -> Iterator[Any]:
    if "://" not in path:
        raw: Any = open(path, "rb", buffering=_BUFFER)  # noqa: PTH123, SIM115
    else:
        with reaching(path, "open", DataError, "source"):
            system, inner = open_url(path)
            raw = open_to_read(system, inner)
    with raw as stream:
        if not path.endswith(".gz"):
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as plain:  # reads no further ahead than it has to, so errors are exact
            yield plain


@lru_cache(1)
def _crc() -> Any:
    try:
        import google_crc32c
    except ImportError as error:
        raise missing(error) from error
    return google_crc32c.value


def missing(error: ImportError) -> SpecError:
    """Return an error that says what to install."""
    return SpecError(f"TFRecord files need packages that are not here ({error}): pip install 'hopyard[tfrecord]'")

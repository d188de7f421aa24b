"""Deletion vectors of Delta tables, as Spark and Databricks write them; the package deltalake only reads them.

Source: the Delta protocol, "Deletion Vector Format", and the specification of 32-bit Roaring bitmaps, of which this is
one array container.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHON = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def delete(table: Path, rows: list[int], added: int, version: int) -> None:
    """Write a version of a table in which the first file that version `added` added lacks these rows."""
    lines = map(json.loads, (table / f"_delta_log/{added:020}.json").read_text().splitlines())
    add = next(line["add"] for line in lines if "add" in line)
    removed = {name: add[name] for name in ("path", "partitionValues", "size")}
    actions: list[Any] = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"remove": {**removed, "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**add, "deletionVector": _inline(rows)}},
    ]
    (table / f"_delta_log/{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def _inline(rows: list[int]) -> dict[str, Any]:
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IqI", 1681511377, 1, 0) + bitmap
    text = base64.b85encode(data + bytes(-len(data) % 4)).decode().translate(str.maketrans(_PYTHON, _Z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}

"""The codec of States: a tree of plain values and arrays ↔ bytes that any safetensors reader can open.

Layout of the bytes: the length of the header (8 bytes, little-endian), the header (JSON, padded with spaces to a
multiple of 64 bytes), the arrays without gaps. Arrays are named by their position in the tree; the tree itself, with
every scalar, is canonical JSON under the one metadata key `hopyard`, because several metadata keys would be written
in random order. Equal trees give equal bytes in any process, so the digest of a State is a statement about training.

The writer is our own and not the library's because a hop must be one copy, straight into shared memory: `plan` looks
at the tree and copies nothing, `StateLayout.write` copies every array once to its place.

In the JSON an object is a dict, an array is a list, and an object whose one key starts with `$` is anything else:

    {"$t": [...]}            tuple
    {"$d": [[key, value]]}   dict with keys that are not strings, or that start with `$`
    {"$f": "nan"}            nan, inf, -inf
    {"$i": "0x..."}          integer of 64 bits or more
    {"$s": [55357, ...]}     string that is not valid Unicode (lone surrogates), as code points
    {"$a": 3}                array number 3
    {"$a": [3, kind, dtype]} array number 3, a `Leaf` of that kind and dtype

This module knows nothing of frameworks: what is not NumPy's comes and goes as a `Leaf`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import blake3
import msgspec
import numpy as np
from numpy.typing import NDArray

from hopyard.errors import HopyardError, SpecError
from hopyard.ports.states import Leaf, Tree
from hopyard.text import sendable

FORMAT = 1
"""Version of the layout. A reader refuses what is newer than itself."""

ALIGN = 64
"""The arrays start at a multiple of this many bytes; those whose size is one too come first and so are all aligned."""

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
        "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
        "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    }.items()
}  # fmt: skip
"""safetensors' names → how the bytes look to NumPy. NumPy lacks those from BF16 on."""

_NAMES = {_DTYPES[name]: name for name in list(_DTYPES)[:12]}
_PAIRS = {"C64": ("F32", np.dtype("<c8")), "C128": ("F64", np.dtype("<c16"))}
"""safetensors 0.5 has no complex numbers: they are stored as pairs, with one more axis of length 2."""
_COMPLEX = {dtype: name for name, (_, dtype) in _PAIRS.items()}

_compact_json = json.JSONEncoder(separators=(",", ":")).encode
"""An encoder that is made once: `json.dumps` makes one for each call that sets separators."""


class StateError(HopyardError):
    """The bytes are not a State, or are damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """The positions of everything in a State. It holds the arrays themselves, not copies: write before they change.

    Attributes:
        header: the first bytes, padding included.
        total: bytes in all.
        leaves: (array, offset in bytes from the start) in the order of the tree.
    """

    header: bytes
    total: int
    leaves: list[tuple[NDArray[Any], int]]

    def write(self, buffer: memoryview | bytearray) -> None:
        """Copy the State to the start of `buffer`, which is writable and has at least `total` bytes."""
        view = memoryview(buffer)
        if view.nbytes < self.total:
            raise ValueError(f"the State needs {self.total} bytes, the buffer has {view.nbytes}")
        view[: len(self.header)] = self.header
        for array, offset in self.leaves:
            # copyto reads any strides, so that what is not contiguous needs no copy in between
            np.copyto(np.ndarray(array.shape, array.dtype, view, offset), array)


def plan(tree: Tree) -> StateLayout:
    """Lay out `tree` without copying an array; about 2 µs for each array.

    Dicts come back in the order of their keys, subclasses of dict, list, tuple, str, int and float as the plain type,
    NumPy scalars as Python's.

    Raises:
        SpecError: a value in the tree cannot be stored; the message names the place.
    """
    arrays: list[tuple[NDArray[Any], str]] = []
    try:
        node = _fold(tree, arrays)
    except _Unfit as unfit:
        raise SpecError(
            f"State{''.join(f'[{key!r}]' for key in reversed(unfit.path))}: {unfit}; allowed are dicts, lists, tuples, "
            "str, int, float, bool, None and NumPy arrays (`tensor.numpy(force=True)` is one of a torch tensor)"
        ) from None
    except RecursionError:
        raise SpecError("State: it contains itself, or is nested more than about 300 deep") from None
    # whole multiples of 64 bytes first, then wide elements before narrow ones: every array is aligned at least to
    # its own elements, though the format allows no padding between arrays
    order = sorted(range(len(arrays)), key=lambda n: (arrays[n][0].nbytes % ALIGN != 0, -arrays[n][0].itemsize))
    starts, at = [0] * len(arrays), 0
    for n in order:
        starts[n] = at
        at += arrays[n][0].nbytes
    width = len(str(max(len(arrays) - 1, 0)))
    text = _compact_json({"format": FORMAT, "tree": node})
    head = [f'{{"__metadata__":{{"hopyard":{json.dumps(text)}}}']
    for n, (array, dtype) in enumerate(arrays):
        shape = ",".join(map(str, array.shape))
        ends = f"{starts[n]},{starts[n] + array.nbytes}"
        head.append(f'"{n:0{width}}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{ends}]}}')
    body = (",".join(head) + "}").encode()
    body += b" " * (-(len(body) + 8) % ALIGN)
    base = len(body) + 8
    leaves = [(array, base + start) for (array, _), start in zip(arrays, starts, strict=True)]
    return StateLayout(len(body).to_bytes(8, "little") + body, base + at, leaves)


def encode(tree: Tree) -> bytearray:
    """Return the bytes of `tree`. Raises SpecError as `plan` does."""
    layout = plan(tree)
    data = bytearray(layout.total)
    layout.write(data)
    return data


def decode(buffer: memoryview | bytearray | bytes) -> Tree:
    """Return the tree in `buffer`. Arrays are views into it, read-only if it is, not all aligned: copy what you keep.

    Raises:
        StateError: the bytes are damaged, cut off, no State, or of a newer version.
    """
    view = memoryview(buffer)
    try:
        return _decode(view)
    except StateError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise StateError(
            f"the State of {view.nbytes} bytes is damaged ({error or type(error).__name__}); take another copy, "
            "or go on from an earlier one"
        ) from error


def digest(buffer: memoryview | bytearray | bytes) -> str:
    """Return the BLAKE3 of the bytes, 64 hex digits. It takes 11–21 ms for 100 MB, without the interpreter lock."""
    return blake3.blake3(memoryview(buffer).cast("B")).hexdigest()


class _Unfit(Exception):
    """A value that cannot be stored; `path` grows from the inside out."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[Any] = []


def _fold(value: Any, arrays: list[tuple[NDArray[Any], str]]) -> Any:
    """Return `value` as JSON nodes; arrays are appended to `arrays` with safetensors' name of their dtype."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else {"$i": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$f": repr(value)}
    if kind is str:
        return value if value.isascii() or sendable(value) else {"$s": [ord(c) for c in value]}
    if kind is np.ndarray:
        return _array(value, "", "", arrays)
    if isinstance(value, dict):
        return _dict(value, arrays)
    if isinstance(value, (list, tuple)):
        nodes = []
        for n, item in enumerate(value):
            try:
                nodes.append(_fold(item, arrays))
            except _Unfit as unfit:
                unfit.path.append(n)
                raise
        return nodes if isinstance(value, list) else {"$t": nodes}
    if isinstance(value, np.ndarray):
        return _array(np.asarray(value), "", "", arrays)
    if hasattr(value, "array") and hasattr(value, "dtype") and hasattr(value, "kind"):
        return _array(value.array, value.dtype, value.kind, arrays)
    for plain in (bool, int, float, str):
        if isinstance(value, plain):  # an enum, numpy.float64, numpy.str_
            return _fold(plain(value), arrays)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return _fold(value.item(), arrays)
    raise _Unfit(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be stored")


def _dict(value: dict[Any, Any], arrays: list[tuple[NDArray[Any], str]]) -> Any:
    """Return the nodes sorted by key: equal dicts are equal whatever the order of insertion, so their bytes must be."""
    plain = all(type(key) is str and key[:1] != "$" and key.isascii() for key in value)
    keys: list[tuple[Any, Any]]
    if plain:
        keys = [(key, key) for key in sorted(value)]
    else:
        keys = []
        for key in value:
            if isinstance(key, tuple) or key is None or isinstance(key, (str, int, float, np.generic)):
                keys.append((_fold(key, arrays), key))
            else:
                raise _Unfit(f"a key of type {type(key).__qualname__} cannot be stored")
        keys.sort(key=lambda pair: json.dumps(pair[0]))
    nodes = []
    for node, key in keys:
        try:
            nodes.append((node, _fold(value[key], arrays)))
        except _Unfit as unfit:
            unfit.path.append(key)
            raise
    return dict(nodes) if plain else {"$d": nodes}


def _array(array: NDArray[Any], dtype: str, kind: str, arrays: list[tuple[NDArray[Any], str]]) -> Any:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    name = dtype or _NAMES.get(array.dtype) or _COMPLEX.get(array.dtype, "")
    if name in _PAIRS and _PAIRS[name][1] == array.dtype:
        pair, _ = _PAIRS[name]
        flat = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray gives scalars an axis
        arrays.append((flat[..., None].view(_DTYPES[pair]), pair))
        return {"$a": [len(arrays) - 1, kind or "numpy", name]}
    if name not in _DTYPES or _DTYPES[name] != array.dtype:
        raise _Unfit(f"an array of dtype {array.dtype}{f' said to be {dtype}' if dtype else ''} cannot be stored")
    arrays.append((array, name))
    return {"$a": [len(arrays) - 1, kind, name]} if kind else {"$a": len(arrays) - 1}


def _decode(view: memoryview) -> Tree:
    size = int.from_bytes(view[:8], "little")
    if view.nbytes < 8 or size > view.nbytes - 8:
        raise ValueError(f"its header says {size} bytes")
    header = msgspec.json.decode(view[8 : 8 + size])
    text = header.pop("__metadata__", {}).get("hopyard")
    if text is None:
        raise StateError("these safetensors are not a State: the metadata key `hopyard` is missing")
    content = msgspec.json.decode(text)
    if content["format"] != FORMAT:
        raise StateError(f"the State has format {content['format']}; this Hopyard reads {FORMAT}: use a newer one")
    arrays: list[tuple[NDArray[Any], str]] = []
    base, used = 8 + size, 0
    for name in sorted(header):
        entry = header[name]
        start, end = entry["data_offsets"]
        dtype = _DTYPES[entry["dtype"]]
        # end is checked against the bytes there by numpy, the two against each other here
        array: NDArray[Any] = np.ndarray(entry["shape"], dtype, view, base + start)
        if array.nbytes != end - start or start < 0:
            raise ValueError(f"array {name} has {array.nbytes} bytes, its place {end - start}")
        used += array.nbytes
        arrays.append((array, entry["dtype"]))
    if base + used != view.nbytes:
        raise ValueError(f"its arrays end at byte {base + used}")
    return _unfold(content["tree"], arrays)


def _unfold(node: Any, arrays: list[tuple[NDArray[Any], str]]) -> Tree:
    kind = type(node)
    if kind is list:
        return [_unfold(item, arrays) for item in node]
    if kind is not dict:
        return node
    if len(node) == 1:
        [(tag, value)] = node.items()
        if tag[:1] == "$":
            return _tagged(tag, value, arrays)
    return {key: _unfold(item, arrays) for key, item in node.items()}


def _tagged(tag: str, value: Any, arrays: list[tuple[NDArray[Any], str]]) -> Any:
    if tag == "$a":
        if type(value) is int:
            return arrays[value][0]
        index, kind, dtype = value
        array = arrays[index][0]
        if dtype in _PAIRS:
            # the pairs may lie at any multiple of 4 bytes; a view of another dtype does not mind
            array = array.view(_PAIRS[dtype][1])[..., 0]
            if kind == "numpy":
                return array
        return Leaf(array, dtype, kind)
    if tag == "$t":
        return tuple(_unfold(item, arrays) for item in value)
    if tag == "$d":
        return {_unfold(key, arrays): _unfold(item, arrays) for key, item in value}
    if tag == "$f":
        return float(value)
    if tag == "$i":
        return int(value, 16)
    if tag == "$s":
        return "".join(map(chr, value))
    _unknown(tag)


def _unknown(tag: str) -> NoReturn:
    raise StateError(f"the State has a node {tag!r} that this Hopyard does not know: use a newer one")

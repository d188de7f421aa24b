"""Unknown and mistyped fields of an object, told as a real server tells them.

`fields.json` holds, of the API of Kubernetes 1.36, the types of what the server keeps and the types of their fields:
a type's name, "[]" before it for a list, "{}" for a map of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube.api.errors import bad_request

TYPES: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "fields.json").read_text())
SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("string", (str,)),
    "integer": ("int32", (int,)),
    "boolean": ("bool", (bool,)),
    "number": ("float64", (int, float)),
    "quantity": ("resource.Quantity", (str, int, float)),
}


def check_fields(kind: str, version: str, obj: dict[str, Any], mode: str) -> tuple[dict[str, Any], list[str]]:
    """Return the object without unknown fields, and warnings about them.

    Args:
        mode: of fieldValidation: Strict, Warn or Ignore.

    Raises:
        Refused: 400, a field is unknown and the mode is Strict, or a value is of another type.
    """
    if mode not in ("Strict", "Warn", "Ignore"):
        raise bad_request(f'invalid fieldValidation "{mode}": must be one of Ignore, Warn, Strict')
    unknown: list[str] = []
    cleaned = _clean(kind, version, obj, kind, "", unknown)
    sentences = [f'unknown field "{path}"' for path in unknown]
    if sentences and mode == "Strict":
        whole = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: '
        raise bad_request(whole + ", ".join(sentences))
    return cleaned, sentences if mode == "Warn" else []


def _clean(kind: str, version: str, value: Any, expected: str, path: str, unknown: list[str]) -> Any:
    """Return `value`, which is of type `expected`, without the unknown fields, whose paths are appended."""
    if value is None or expected == "any":
        return value
    if expected.startswith("[]"):
        if not isinstance(value, list):
            raise _mistyped(kind, version, value, path, expected)
        return [
            _clean(kind, version, one, expected[2:], f"{path}[{index}]", unknown) for index, one in enumerate(value)
        ]
    if expected in SCALARS:
        allowed = SCALARS[expected][1]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise _mistyped(kind, version, value, path, SCALARS[expected][0])
        return value
    if not isinstance(value, dict):
        raise _mistyped(kind, version, value, path, expected)
    dot = f"{path}." if path else ""
    if expected.startswith("{}"):
        return {key: _clean(kind, version, one, expected[2:], f"{dot}{key}", unknown) for key, one in value.items()}
    known = TYPES[expected]
    unknown += [f"{dot}{key}" for key in value if key not in known]
    return {
        key: _clean(kind, version, one, known[key], f"{dot}{key}", unknown)
        for key, one in value.items()
        if key in known
    }


def _mistyped(kind: str, version: str, value: Any, path: str, expected: str) -> Exception:
    names = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    sentence = f"json: cannot unmarshal {names[type(value)]} into Go struct field {kind}.{path} of type {expected}"
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {sentence}')

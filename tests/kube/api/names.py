"""Names, labels and annotations that the API takes."""

from __future__ import annotations

import re
import secrets
from typing import Any

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
KEY = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
NOT_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
)
NOT_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
)
NOT_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{VALUE}')"
)
NOT_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{KEY}')"
)
Causes = list[tuple[str, str]]


def generated(prefix: str) -> str:
    """Return a name after generateName."""
    return prefix + "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def check_subdomain(path: str, value: str) -> Causes:
    return _check(path, value, SUBDOMAIN, 253, NOT_SUBDOMAIN)


def check_label(path: str, value: str) -> Causes:
    """Check one label of a host's name."""
    return _check(path, value, LABEL, 63, NOT_LABEL)


def check_labels(path: str, labels: dict[str, str] | None) -> Causes:
    """Check the keys and values of a map of labels."""
    causes: Causes = []
    for key, value in (labels or {}).items():
        prefix, slash, name = key.rpartition("/")
        causes += check_subdomain(path, prefix) if slash else []
        causes += _check(path, name, KEY, 63, NOT_KEY)
        causes += _check(path, value, VALUE, 63, NOT_VALUE)
    return causes


def _check(path: str, value: str, pattern: str, limit: int, message: str) -> Causes:
    causes = []
    if len(value) > limit:
        causes.append((path, f'Invalid value: "{value}": must be no more than {limit} bytes'))
    if re.fullmatch(pattern, value) is None:
        causes.append((path, f'Invalid value: "{value}": {message}'))
    return causes


def check_metadata(meta: dict[str, Any], rbac: bool) -> Causes:
    """Check a name and labels; those of RBAC may be nearly anything."""
    causes: Causes = []
    if not rbac:
        causes += check_subdomain("metadata.name", meta["name"])
    causes += check_labels("metadata.labels", meta.get("labels"))
    for owner in meta.get("ownerReferences") or []:
        causes += [
            (f"metadata.ownerReferences.{field}", f"Required value: {field} must not be empty")
            for field in ("apiVersion", "kind", "name", "uid")
            if not owner.get(field)
        ]
    return causes

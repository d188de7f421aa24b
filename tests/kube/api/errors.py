"""What the API refuses, with the status bodies of the real server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Refused(Exception):
    """A request that is answered with a `Status` of failure."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.details = code, reason, message, details

    @property
    def status(self) -> dict[str, Any]:
        """Return the body."""
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        return {**status, "reason": self.reason, "details": self.details, "code": self.code}


class Cut(Exception):
    """Raised by a hook or a fault: the connection ends without an answer."""


def qualified(plural: str, group: str) -> str:
    """Return `jobs.batch`, but `pods`."""
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> Refused:
    message = f'{qualified(plural, group)} "{name}" not found'
    return Refused(404, "NotFound", message, name=name, group=group, kind=plural)


def already_exists(plural: str, group: str, name: str) -> Refused:
    message = f'{qualified(plural, group)} "{name}" already exists'
    return Refused(409, "AlreadyExists", message, name=name, group=group, kind=plural)


def conflict(plural: str, group: str, name: str, why: str = "") -> Refused:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return Refused(409, "Conflict", message, name=name, group=group, kind=plural)


def expired(since: int, oldest: int) -> Refused:
    return Refused(410, "Expired", f"too old resource version: {since} ({oldest})")


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def invalid(kind: str, group: str, name: str, causes: Sequence[tuple[str, str]]) -> Refused:
    """Return 422 for (field, what is wrong with it) pairs."""
    sentences = [f"{field}: {message}" for field, message in causes]
    text = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    reasons = {"Required value": "FieldValueRequired", "Forbidden": "FieldValueForbidden"}
    details = [
        {"reason": reasons.get(message.partition(":")[0], "FieldValueInvalid"), "message": message, "field": field}
        for field, message in causes
    ]
    whole = f'{qualified(kind, group)} "{name}" is invalid: {text}'
    return Refused(422, "Invalid", whole, name=name, group=group, kind=kind, causes=details)


def forbidden(plural: str, group: str, name: str, why: str) -> Refused:
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return Refused(403, "Forbidden", f"{subject} is forbidden: {why}", name=name, group=group, kind=plural)


def unknown(what: str) -> Refused:
    """Return 501: a real server knows this, and this one does not."""
    return Refused(
        501, "NotImplemented", f"the test's API server does not know {what}; add it to tests/kube or avoid it"
    )

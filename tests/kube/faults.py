"""Faults of the API server, which tests ask for."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Literal

from kube.api.errors import Refused

Kind = int | Literal["half-open", "cut", "lost"]
REASONS = {
    403: ("Forbidden", "forbidden by a test"),
    410: ("Expired", "The resourceVersion for the provided watch is too old."),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred: a test asked for it"),
    503: ("ServiceUnavailable", "apiserver is shutting down"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


@dataclass
class Fault:
    """What the next requests get whose `METHOD path?query` a pattern is found in.

    Args:
        kind: a status; "half-open": the connection stays, and says nothing any more (a watch: after its headers);
            "cut": it ends before anything is done; "lost": it ends after all was done, so that the client does not
            know.
        times: for how many requests.
        retry_after: seconds, of a 429 or 503.
    """

    kind: Kind
    pattern: str
    times: int = 1
    retry_after: int = 1

    def refusal(self) -> Refused:
        """Return the answer, of a fault that is a status."""
        assert isinstance(self.kind, int)
        reason, message = REASONS[self.kind]
        details = {"retryAfterSeconds": self.retry_after} if self.kind in (429, 503) else {}
        return Refused(self.kind, reason, message, **details)


class Faults:
    """The faults that are still to come, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, kind: Kind, pattern: str, times: int = 1, retry_after: int = 1) -> Fault:
        """Let the next `times` requests that match `pattern` meet this fault; its `times` counts down."""
        if isinstance(kind, int) and kind not in REASONS:
            raise ValueError(f"the status of a fault must be one of {sorted(REASONS)}, got {kind}")
        fault = Fault(kind, pattern, times, retry_after)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, line: str) -> Fault | None:
        """Return the fault that a request meets, and count it."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return None

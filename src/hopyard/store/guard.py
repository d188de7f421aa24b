"""Errors of the store of States, distinguished from all others.

What a store raises is never the fault of a recipe, nor of a trial: the store is away, or full. "Away" may be anything:
a socket that times out, a token that has run out (`PermissionError`), a driver's own error class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hopyard.errors import HopyardError, ResourceError
from hopyard.filesystems import line_of, why
from hopyard.ports.states import Store
from hopyard.spec import Ref


class StoreUnreachable(HopyardError):
    """The store cannot be reached at present, or refuses to answer. It may work the next time."""


class StateConflict(HopyardError):
    """Another State is stored under the address of the one to be stored."""


class Guarded:
    """A store whose errors are `StoreUnreachable`, `StateConflict`, `ResourceError` (no room) or `FileNotFoundError`
    (no such State), and nothing else.

    Args:
        opened: returns the store that is guarded, for each call; its errors count as the store's.
        url: its URL, for messages.
    """

    def __init__(self, opened: Callable[[], Store], url: str) -> None:
        self._opened, self._url = opened, url

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync. Raises ResourceError, StateConflict or StoreUnreachable."""
        with self._converting_errors(ref, "stored in"):
            self._opened().put(ref, data)

    def get(self, ref: Ref) -> bytearray | memoryview:
        """Return the bytes as stored. Raises FileNotFoundError or StoreUnreachable."""
        with self._converting_errors(ref, "read from", FileNotFoundError):
            return self._opened().get(ref)

    def has(self, ref: Ref) -> bool:
        """Whether it is stored."""
        with self._converting_errors(ref, "looked for in"):
            return self._opened().has(ref)

    def delete(self, ref: Ref) -> None:
        """Delete a State; no error when it is not there."""
        with self._converting_errors(ref, "deleted from"):
            self._opened().delete(ref)

    def refs(self) -> set[Ref]:
        """Return the refs of all that is stored."""
        with self._converting_errors(None, "listed in"):
            return self._opened().refs()

    @contextmanager
    def _converting_errors(self, ref: Ref | None, action: str, *others: type[Exception]) -> Iterator[None]:
        passed: tuple[type[Exception], ...] = (ResourceError, StateConflict, *others)
        try:
            yield
        except passed:
            raise
        except Exception as error:
            explanation = why(self._url, error)
            cause = f"{explanation[0]}; {explanation[1]}" if explanation else line_of(error)
            name = "States" if ref is None else f"State {ref}"
            raise StoreUnreachable(f"{name} cannot be {action} {self._url}: {cause}") from error

"""The values that members of a gang publish before they are connected: names and addresses, by group.

A group's values arrive in another thread than the one that waits for them. No wait is in vain: giving up a unit wakes
the thread that waits for its group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hopyard.errors import HopyardError


class GangBroken(HopyardError):
    """The exchange with the other members of a gang failed: one of them is gone, or gave up. The cause is elsewhere."""


class Board:
    """The values of the groups that this process is, or will be, a member of.

    Args:
        publish: (group, key, value): sends a value to the other members.
    """

    def __init__(self, publish: Callable[[int, str, bytes], None]) -> None:
        self._publish = publish
        self._values: dict[int, dict[str, bytes]] = {}
        self._closed = 0
        """No group up to this one is waited for."""
        self._changed = threading.Condition()

    def set(self, group: int, key: str, value: bytes) -> None:
        """Publish a value."""
        self.add(group, key, value)
        self._publish(group, key, value)

    def add(self, group: int, key: str, value: bytes) -> None:
        """Take a value that was published."""
        with self._changed:
            if group > self._closed:
                self._values.setdefault(group, {})[key] = value
                self._changed.notify_all()

    def get(self, group: int, key: str) -> bytes:
        """Return a value; waits until it is published.

        Raises:
            GangBroken: the group is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: group <= self._closed or key in self._values.get(group, ()))
            if group <= self._closed:
                raise GangBroken("the gang's unit was given up before its members met")
            return self._values[group][key]

    def close(self, group: int) -> None:
        """Drop this group and those before it; nobody waits for them any longer."""
        with self._changed:
            self._closed = max(self._closed, group)
            for number in [number for number in self._values if number <= group]:
                del self._values[number]
            self._changed.notify_all()

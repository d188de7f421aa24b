"""The user's hold on the driver of a run in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Handle:
    """Controls the driver of a run in this process, and says how it ended. It holds nothing of a driver that is over,
    which had sockets, files and built models.

    Attributes:
        error: what the driver raised, where `Run.wait` is to raise it; None: nothing.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._over = threading.Event()
        """(Not Thread.join: in Python 3.11 a Ctrl-C in it makes later joins return at once, though the thread still
        runs.)"""
        self._over.set()
        self._stopped: tuple[str, bool] | None = None
        self._halt: Callable[[str, bool], None] | None = None

    @property
    def over(self) -> bool:
        """Whether no driver of it is at work in this process."""
        return self._over.is_set()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end."""
        return self._stopped is not None

    def begin(self) -> None:
        """Note that a driver is at work in the background."""
        self._over.clear()

    def attach(self, halt: Callable[[str, bool], None]) -> None:
        """End the driver by `halt(reason, stopped)` from now on; it is called at once if `stop` was called before."""
        self._halt = halt
        if self._stopped:
            halt(*self._stopped)

    def detach(self) -> None:
        """Note that there is nothing to end any more."""
        self._halt = None

    def finish(self) -> None:
        """Note that the driver is over."""
        self._over.set()

    def stop(self, reason: str, stopped: bool) -> None:
        """End the driver, and wait until it is over. `stopped`: the user asked for it, so that the run's status is
        "stopped", not "interrupted"."""
        self._stopped = reason, stopped
        halt = self._halt
        if halt is not None:
            halt(reason, stopped)
        self._over.wait()

    def wait(self, seconds: float | None) -> None:
        """Wait until the driver is over, or for so many seconds."""
        self._over.wait(seconds)

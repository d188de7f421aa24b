"""Watches for warnings (of Python's `warnings`) that a recipe, its model or its loss gives while a unit runs.

They are shown, in a worker's log or in the user's own process: each text of a line once, whatever the filters say. In
addition they are told to the driver: each category of warning of a line, once for each trial.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from hopyard.code import places
from hopyard.spec import Warned
from hopyard.text import escaped, message_of

TEXT = 300
"""Characters of a warning that are told."""
MOST = 20
"""Lines and categories, of which one trial tells in one worker."""
REMEMBERED = 1000
"""Warnings that are not shown twice; beyond that, all are."""


class WarningWatch:
    """The warnings of one worker.

    Args:
        end: name of the module that runs units: lines of those who called it do not warn for a unit.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._told: dict[int, set[tuple[str, int, type[Warning]]]] = {}
        """Trial → (file, line, category) of what was told of it."""
        self._shown: set[tuple[str, int, str]] = set()

    @contextmanager
    def during(self, trial: int, recipe: Callable[..., Any]) -> Iterator[list[Warned]]:
        """A context manager that gives a list of the warnings that come while it is open, in this thread.

        Python shows a warning once for each line that gives it. That memory is cleared first, so that a second trial
        is heard too; what was shown before is not shown again.
        """
        news: list[Warned] = []
        told = self._told.setdefault(trial, set())
        original, thread = warnings.showwarning, threading.get_ident()

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            text = message_of(message) if isinstance(message, Warning) else str(message)
            if threading.get_ident() != thread or (filename, lineno, text) not in self._shown:
                original(message, category, filename, lineno, file, line)
            if threading.get_ident() != thread:
                return
            if len(self._shown) < REMEMBERED:
                self._shown.add((filename, lineno, text))
            if (filename, lineno, category) in told or len(told) >= MOST:
                return
            told.add((filename, lineno, category))
            users = places.of_stack(sys._getframe(1), self._end) or places.of_function(recipe)
            origin = places.named(filename, lineno)
            same = f"{users},".startswith(f"{origin},")
            place = origin if not users else users if same else f"{users}; from {origin}"
            news.append(Warned(escaped(f"{category.__name__}: {text}"[:TEXT]), escaped(place)))

        with warnings.catch_warnings():
            pass  # clears the memory
        warnings.showwarning = show
        try:
            yield news
        finally:
            if warnings.showwarning is show:
                warnings.showwarning = original

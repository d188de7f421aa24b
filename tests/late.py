"""Modules that are imported when they are first used: collecting tests imports them in no process."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """Stands for a module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest asks each name of a test module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

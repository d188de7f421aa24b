"""The Python workers of Spark, each of which does one task after another.

After each task Spark has its worker look for garbage in all that it holds. With PyTorch or TensorFlow imported that
takes up to half a second, so tasks of a few rows would take several times as long as their work.
"""

from __future__ import annotations

import gc
import sys

_MANY = 100
"""Modules that are imported at once with anything that is large."""

_modules = 0
"""How many modules this process had imported when their objects were last left out."""


def freeze_imports() -> None:
    """Leave all objects that are there out of all searches for garbage, if many modules were imported since the last
    call. To be called at the end of a task."""
    global _modules  # noqa: PLW0603 - the state of the process's garbage collector
    if len(sys.modules) >= _modules + _MANY:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()

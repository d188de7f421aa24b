"""Whether every run and program of this process goes on with what its directory has: `hopyard run --resume`.

Owner of that choice: `resume_all` alone makes it, for the whole process.
"""

from __future__ import annotations

import threading

_all = threading.Event()


def resume_all() -> None:
    """Let `select`, `fit` and `launch` do what `resume=True` says, whatever their calls say."""
    _all.set()


def resumes(asked: bool) -> bool:
    """Return whether a run or program goes on, by its own `resume=` and the choice for all."""
    return asked or _all.is_set()

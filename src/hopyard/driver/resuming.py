"""The choice of `hopyard run --resume`, for the whole process.

Owner of that choice: `resume_all` alone makes it.
"""

from __future__ import annotations

_chosen: list[bool] = []


def resume_all() -> None:
    """Treat every later `select`, `fit` and `launch` of this process as called with `resume=True`."""
    _chosen[:] = [True]


def resumes(resume: bool) -> bool:
    """Return whether a run or program goes on with what its directory has: by its own `resume=`, or as all do."""
    return resume or bool(_chosen)

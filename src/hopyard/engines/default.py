"""The engine of runs and programs that name none: worker processes of this host, unless the command line names others.

Owner of that choice: `choose` alone changes it, for the whole process.
"""

from __future__ import annotations

from hopyard.ports.engines import Engine

_chosen: list[Engine] = []


def choose(engine: Engine) -> None:
    """Let runs and programs of this process that name no engine have this one."""
    _chosen[:] = [engine]


def chosen() -> Engine | None:
    """Return the engine for those that name none; None: processes of this host."""
    return _chosen[0] if _chosen else None

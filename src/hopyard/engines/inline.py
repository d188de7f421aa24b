"""One slot in this very process: for notebooks, debuggers and tests. A peer of the other engines, not a mock: the same
machine, journal, worker and States, only without a process and a socket between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopyard.checks import whole


@dataclass(frozen=True, slots=True)
class Inline:
    """Units run in the calling process, one after the other, while the caller waits.

    Args:
        threads: intra-op threads of the framework.
    """

    threads: int = 1
    name: str = field(default="inline", init=False)
    workers: int = field(default=1, init=False)
    env: Mapping[str, str] = field(default_factory=dict, init=False, repr=False)
    apart: bool = field(default=False, init=False, repr=False)
    workers_by_host: tuple[int, ...] = field(default=(1,), init=False, repr=False)
    in_process: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "threads", whole("Inline(threads=)", self.threads, 1))

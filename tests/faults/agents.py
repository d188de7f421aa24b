"""The workers of a bad world (`chaos`), as they really are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from faults.promises import Content
from hopyard.core.runs.events import Check, Dispatch, Durable, Event
from hopyard.spec import Ref


@dataclass(eq=False)
class Agent:
    """A slot as it really is; the machine may hold another view."""

    number: int
    task: Dispatch | Check | None = None
    gang: tuple[Agent, ...] = ()
    """All that work on its task, by rank; empty: it does so alone."""
    memory: dict[str, tuple[Ref, Content]] = field(default_factory=dict)
    """Key → the State that lies there."""
    pending: list[tuple[Ref, Content]] = field(default_factory=list)
    """States to be stored."""
    outbox: deque[Event] = field(default_factory=deque)
    """Messages on their way to the driver, in order."""
    alive: bool = True
    away: bool = False
    """Whether it cannot reach the store."""

    @property
    def unstored(self) -> set[int]:
        """Trials with States on their way to the store, or with their `Durable` on its way to the driver."""
        refs = [event.ref for event in self.outbox if isinstance(event, Durable)]
        return {ref.trial for ref in [*refs, *(ref for ref, _ in self.pending)]}

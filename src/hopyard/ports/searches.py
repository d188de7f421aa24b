"""Samplers, which propose configurations, and what those that learn see of the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hopyard.spec import Config, Status


class Sampler(Protocol):
    """Proposes configurations. Its answers are journaled, so it need not be deterministic."""

    total: int | None
    """How many configurations it proposes in all; None when it does not know."""

    def ask(self, trial: int) -> Config | None:
        """Return the configuration of this trial; None when there is none left."""
        ...


@dataclass(frozen=True, slots=True)
class Observation:
    """What a sampler that learns sees of one trial.

    Attributes:
        config: its configuration.
        status: of the trial.
        values: epoch, from 1 → the run's metric, for epochs whose metrics are in.
        best: the run's objectives at its best epoch, the first one's value first; empty: there is none where all are
            finite.
        count: how many the sampler had proposed before this one; -1: it comes from somebody else.
        attributes: those of the Proposal.
    """

    config: Config
    status: Status
    values: Mapping[int, float]
    best: tuple[float, ...]
    count: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a sampler that learns proposes.

    Attributes:
        config: the configuration.
        count: as in Observation.
        attributes: what the sampler must find in the trial's Observation: plain values, as JSON has them.
    """

    config: Config
    count: int = -1
    attributes: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class LearningSampler(Protocol):
    """Proposes configurations from what came of those before. It keeps nothing from one call to the next, so that it
    proposes the same after a resume: all that it knows is the history."""

    total: int | None
    """How many configurations it proposes in all."""

    def propose(self, history: Sequence[Observation]) -> Proposal | None:
        """Return the next configuration, given all trials so far; None when there is none left."""
        ...

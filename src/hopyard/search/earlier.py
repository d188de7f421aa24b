"""What a search may learn from a Study that Optuna made elsewhere: its trials that are over, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from hopyard.errors import SpecError
from hopyard.ports import Observation
from hopyard.spec import Status
from hopyard.text import shown

STATUSES: dict[str, Status] = {"COMPLETE": "completed", "PRUNED": "stopped", "FAIL": "failed"}
"""State of Optuna → status of a trial."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The trials of a study.

    Attributes:
        directions: of its objectives: "minimize" or "maximize".
        trials: those that are over, in their order.
        count: how many there are in all, also those that are not over.
    """

    directions: tuple[str, ...]
    trials: tuple[Observation, ...]
    count: int


def earlier_of(study: Any) -> Earlier:
    """Return what there is to learn from an `optuna.Study`. A pruned trial counts with its last finite value.

    Raises:
        SpecError: it is not a study.
    """
    try:
        directions = tuple(direction.name.lower() for direction in study.directions)
        trials = study.get_trials(deepcopy=False)
    except AttributeError:
        raise SpecError(f"Optuna: study must be an optuna.Study, got {shown(study)}") from None
    return Earlier(directions, tuple(_observed(each) for each in trials if each.state.name in STATUSES), len(trials))


def _observed(trial: Any) -> Observation:
    reported = [trial.intermediate_values[step] for step in sorted(trial.intermediate_values)]
    best = tuple(trial.values or [value for value in reported if isfinite(value)][-1:])
    values = {int(step): value for step, value in trial.intermediate_values.items()}
    return Observation(dict(trial.params), STATUSES[trial.state.name], values, best, -1, {})

"""Between our searches and Optuna, which is imported here alone: distributions, values and states as each has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, nextafter
from typing import Any

import msgspec

from hopyard.errors import SpecError, UsageError
from hopyard.ports.searches import Observation
from hopyard.space import Choice, Distribution, RandInt, Steps, Uniform, category
from hopyard.spec import Status
from hopyard.text import shown

STATUSES: dict[str, Status] = {"COMPLETE": "completed", "PRUNED": "stopped", "FAIL": "failed"}
"""State of Optuna → status of a trial."""


def optuna_package() -> Any:
    """Import Optuna.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError(
            f"searches that learn, and Studies of runs, need Optuna: pip install 'hopyard[search]' ({error})"
        ) from None
    return optuna


@contextmanager
def quietly() -> Iterator[Any]:
    """Give Optuna, which would print a line for each study, and put its verbosity back. That something of it is
    experimental, it would say again for each sampler that is made."""
    optuna = optuna_package()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def state_of(each: Observation, prunes: bool) -> str:
    """Return the name of Optuna's state for a trial."""
    if each.status == "failed" or (not each.best and each.status in ("completed", "stopped", "paused")):
        return "FAIL"
    if each.status in ("stopped", "paused"):
        return "PRUNED" if prunes else "COMPLETE"
    return "COMPLETE" if each.status == "completed" else "RUNNING"


def as_optuna(optuna: Any, distribution: Distribution) -> Any:
    """Return the distribution as Optuna has it: of a choice and of steps, the number of the value."""
    kinds = optuna.distributions
    match distribution:
        case Choice(values):
            return kinds.CategoricalDistribution(tuple(range(len(values))))
        case RandInt(low, high, log=log):
            return kinds.IntDistribution(low, high - 1, log=log)
        case Steps(first=first, last=last):
            return kinds.IntDistribution(first, last)
        case Uniform(low, high, log):
            return kinds.FloatDistribution(low, high, log=log)


def suggest(trial: Any, name: str, distribution: Any) -> Any:
    """Ask the sampler for one parameter.

    Raises:
        ValueError: it proposes a value that is none of the distribution's.
    """
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    low, high = distribution.low, distribution.high
    if isinstance(low, int):
        if not low <= (value := trial.suggest_int(name, low, high, log=distribution.log)) <= high:
            raise ValueError(f"{value} is not one of the integers from {low} to {high}")  # Optuna has only warned
        return value
    return trial.suggest_float(name, low, high, log=distribution.log)


def value_of(distribution: Distribution, parameter: Any) -> Any:
    """Return our value for a parameter of Optuna."""
    match distribution:
        case Choice(values):
            return values[parameter]
        case Uniform(low, high):
            return min(max(parameter, low), nextafter(high, low))
        case Steps():
            return distribution.value(parameter)
        case RandInt():
            return parameter


def parameter_of(distribution: Distribution, value: Any) -> Any:
    """The reverse of `value_of`.

    Raises:
        ValueError: the value is none of the choice, or lies between two steps.
    """
    match distribution:
        case Choice(values):
            places = [*values, *map(category, values)]  # a study that `study_of` made has lists as text
            return places.index(value) % len(values)
        case Steps():
            return distribution.number(value)
        case _:
            return value


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's attributes as JSON has them.

    Raises:
        SpecError: a journal cannot hold them.
    """
    try:
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(attributes)))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SpecError(
            f"the sampler notes in its trials what no journal can hold: {error}; use another one"
        ) from error
    return values


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

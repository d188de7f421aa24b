"""A run as a Study of Optuna: for its dashboard, its plots, and the importance of parameters.

The values are those that users know (a choice's own, where the samplers' study has its number), and each parameter has
one distribution over all trials, as Optuna wants it: the smallest that holds those of the space and every value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any

from hopyard.errors import SpecError, UsageError
from hopyard.ports.searches import Observation
from hopyard.search.bridge import quietly, state_of
from hopyard.search.define import Searched, searched
from hopyard.space import Choice, Distribution, RandInt, Steps, Uniform, category
from hopyard.spec import Config, Objective

LEAST = 4
"""Trials with a value, below which Optuna tells nothing of importance."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a Study has of one trial.

    Attributes:
        observation: as samplers see it.
        notes: for its `user_attrs`: plain values, as JSON has them.
        start, end: when it began and ended, in seconds since the epoch; None: it did not.
    """

    observation: Observation
    notes: Mapping[str, Any] = field(default_factory=dict)
    start: float | None = None
    end: float | None = None


def study_of(
    name: str,
    objectives: Sequence[Objective],
    space: Any,
    results: Sequence[Result],
    prunes: bool = True,
) -> Any:
    """Return an optuna.Study, in memory, with a trial of the same number for each of ours. Its sampler is TPE, by which
    a search goes on from it that names no other.

    Args:
        name: of the study.
        objectives: what decides, the first one first.
        space: what was searched, as the user gave it; None: distributions are as wide as the values.
        results: of all trials, by number.
        prunes: whether stopped trials are "PRUNED"; else they are "COMPLETE" with their best values.

    Raises:
        UsageError: Optuna is not installed.
    """
    known = searched(space)
    walks = [_distributions(known, result.observation.config) for result in results]
    with quietly() as optuna:
        names = dict.fromkeys(name for walk in walks for name in walk)
        shared = {
            name: _shared(
                optuna.distributions,
                [distribution for walk in walks if (distribution := walk.get(name)) is not None],
                [r.observation.config[name] for r, walk in zip(results, walks, strict=True) if name in walk],
            )
            for name in names
        }
        study = optuna.create_study(
            study_name=name,
            directions=["minimize" if each.mode == "min" else "maximize" for each in objectives],
            sampler=optuna.samplers.TPESampler(seed=0),
        )
        study.set_metric_names([each.metric for each in objectives])
        study.add_trials(
            [
                _frozen(optuna, result, {name: shared[name] for name in walk}, len(objectives) == 1, prunes)
                for result, walk in zip(results, walks, strict=True)
            ]
        )
    return study


def importance_of(study: Any) -> dict[str, float]:
    """Return parameter → its share in what made trials good, the largest first; shares add up to 1.

    Raises:
        UsageError: there are too few trials with a value.
    """
    with quietly() as optuna:
        done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
        if len(done) < LEAST:
            raise UsageError(
                f"the importance of parameters needs at least {LEAST} trials that ended with a finite value of the "
                f"run's metric, there are {len(done)}"
            )
        shares: dict[str, float] = optuna.importance.get_param_importances(study)
        return {name: float(share) for name, share in shares.items()}


def _distributions(space: Searched | None, config: Config) -> dict[str, Distribution | None]:
    """Return parameter → its distribution in this configuration; None where the space does not say it."""
    walk: dict[str, Distribution | None] = {}

    def pick(name: str, distribution: Distribution) -> Any:
        walk[name] = distribution
        return config[name]

    if space is None:
        return dict.fromkeys(config)
    try:
        space.walk(pick)
    except (SpecError, KeyError):  # a configuration of the user (`enqueue=`) that is not of the space
        return dict.fromkeys(config)
    return walk


def _shared(kinds: Any, distributions: Sequence[Distribution], values: Sequence[Any]) -> Any:
    """Return the one distribution of a parameter over all trials, as Optuna has it."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not numbers or any(isinstance(each, Choice) for each in distributions):
        choices = [value for each in distributions if isinstance(each, Choice) for value in each.values]
        return kinds.CategoricalDistribution(list(dict.fromkeys(map(category, [*choices, *values]))))
    ranges = [each for each in distributions if isinstance(each, (RandInt, Uniform, Steps))]
    last = [each.high - 1 if isinstance(each, RandInt) else each.high for each in ranges]
    low, high = min([*values, *[each.low for each in ranges]]), max([*values, *last])
    log = bool(ranges) and low > 0 and all(isinstance(each, (RandInt, Uniform)) and each.log for each in ranges)
    if all(isinstance(value, int) for value in [low, high, *values]):
        return kinds.IntDistribution(low, high, log=log)
    return kinds.FloatDistribution(low, high, log=log)


def _frozen(optuna: Any, result: Result, distributions: Mapping[str, Any], single: bool, prunes: bool) -> Any:
    """Return a trial as Optuna has it."""
    each = result.observation
    state = state_of(each, prunes)
    if state == "RUNNING" and each.status == "waiting":
        state = "WAITING"
    params = {
        name: category(each.config[name]) if hasattr(distribution, "choices") else each.config[name]
        for name, distribution in distributions.items()
    }
    trial = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        values=list(each.best) if state in ("COMPLETE", "PRUNED") else None,
        params=params,
        distributions=dict(distributions),
        user_attrs=dict(result.notes),
        intermediate_values={epoch: value for epoch, value in each.values.items() if isfinite(value)} if single else {},
    )
    if trial.datetime_start is not None and result.start is not None:
        trial.datetime_start = datetime.fromtimestamp(result.start)
    if trial.datetime_complete is not None and result.end is not None:
        trial.datetime_complete = datetime.fromtimestamp(result.end)
    return trial

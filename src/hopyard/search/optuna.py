"""Searches that learn, by the samplers of Optuna, which is imported when a search is opened.

A sampler keeps much in memory, and one that is fed again after a resume does not propose what it would have proposed.
So it is made anew for each proposal, with a seed keyed by (run seed, number of its proposals before), over a study that
is made of the history: what it proposes is a function of the history alone. What it notes in a trial (CMA-ES keeps its
state there) goes through the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor, isfinite, nextafter
from typing import Any, Literal

import msgspec

from hopyard.checks import whole
from hopyard.core.runs.order import keyed
from hopyard.errors import SpecError, UsageError
from hopyard.ports import Observation, Proposal
from hopyard.search.listed import needed
from hopyard.space import Choice, Distribution, RandInt, Space, Uniform
from hopyard.text import shown

Make = Callable[..., Any]
"""seed= → a sampler."""


@dataclass(frozen=True, slots=True)
class TPE:
    """Tree-structured Parzen estimators: models of good and of other configurations, for any kind of parameter.

    Args:
        trials: how many configurations it proposes.
        batch: propose so many at a time, the next ones when all of these have ended: what it proposes does not depend
            on time then. None: about two for each worker train at a time, and each proposal knows what came before.
        seed: of its random numbers; None: the run's.

    Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, as in Optuna's TPESampler.
    """

    trials: int
    batch: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def open(self, space: Space | None, seed: int, mode: Literal["min", "max"] = "min") -> Asked:
        """Return its sampler for `space`."""
        return _opened(self, space, seed, mode, lambda: _optuna().samplers.TPESampler, prunes=True)


@dataclass(frozen=True, slots=True)
class GP:
    """Bayesian optimization with a Gaussian process, for up to a few hundred trials. `trials`, `batch` and `seed` as in
    `hy.TPE`. Needs PyTorch and SciPy.

    Source: Optuna's GPSampler (log expected improvement: Ament et al., NeurIPS 2023).
    """

    trials: int
    batch: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def open(self, space: Space | None, seed: int, mode: Literal["min", "max"] = "min") -> Asked:
        """Return its sampler for `space`."""
        _installed("GP", "scipy", "torch")
        return _opened(self, space, seed, mode, lambda: _optuna().samplers.GPSampler)


@dataclass(frozen=True, slots=True)
class CMA:
    """CMA-ES, an evolution strategy for numbers; parameters with a choice are drawn at random. `trials`, `batch` and
    `seed` as in `hy.TPE`.

    Source: Hansen, "The CMA Evolution Strategy: A Tutorial", 2016, as in Optuna's CmaEsSampler.
    """

    trials: int
    batch: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def open(self, space: Space | None, seed: int, mode: Literal["min", "max"] = "min") -> Asked:
        """Return its sampler for `space`."""
        _installed("CMA", "cmaes")
        options = {"warn_independent_sampling": False}
        return _opened(self, space, seed, mode, lambda: _optuna().samplers.CmaEsSampler, options)


@dataclass(frozen=True, slots=True)
class Optuna:
    """Any sampler of Optuna: `hy.Optuna(optuna.samplers.NSGAIISampler, 64)`.

    Args:
        sampler: a class of `optuna.samplers`, or a function, which is called with seed= for each proposal and returns
            a sampler. (A sampler that was made already has a state that no journal holds.)
        trials: how many configurations it proposes.
        batch, seed: as in `hy.TPE`.
    """

    sampler: Make
    trials: int
    batch: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.sampler):
            raise SpecError(
                "Optuna: sampler must be a class of optuna.samplers or a function that takes seed= and returns a "
                f"sampler, as one is made for each proposal, got {shown(self.sampler)}"
            )
        _check(self)

    def open(self, space: Space | None, seed: int, mode: Literal["min", "max"] = "min") -> Asked:
        """Return its sampler for `space`."""
        return _opened(self, space, seed, mode, lambda: self.sampler)


Learned = TPE | GP | CMA | Optuna


class Asked:
    """A LearningSampler over a sampler of Optuna.

    Args:
        make: returns the function that makes a sampler, given seed=.
        space: what is searched.
        total: how many configurations are proposed.
        seed: of the run, or of the search.
        mode: which values of the metric are better.
        prunes: whether the sampler learns from trials that did not come to their end as such; else their best value
            counts as if they had.
    """

    def __init__(self, make: Callable[[], Make], space: Space, total: int, seed: int, mode: str, prunes: bool) -> None:
        self.total: int | None = total
        self._make = make
        self._space = space
        self._seed = seed
        self._mode = mode
        self._prunes = prunes

    def propose(self, history: Sequence[Observation]) -> Proposal | None:
        """Return the next configuration; O(trials) and what the sampler takes."""
        count = sum(each.count >= 0 for each in history)
        if count >= (self.total or 0):
            return None
        with _quietly() as optuna:
            sampler = self._make()(seed=keyed(self._seed, "sampler", count) % (1 << 32))
            study = optuna.create_study(sampler=sampler, direction="minimize" if self._mode == "min" else "maximize")
            study.add_trials([trial for each in history if (trial := self._frozen(optuna, each)) is not None])
            trial = study.ask()

            def pick(name: str, distribution: Distribution) -> Any:
                return _value(distribution, _suggest(trial, name, _as_optuna(optuna, distribution)))

            config = self._space.walk(pick)
            return Proposal(config, count, _plain(study.trials[-1].system_attrs))

    def _frozen(self, optuna: Any, each: Observation) -> Any:
        """Return a trial as Optuna has it; None for one that is not of this space (`enqueue=`)."""
        distributions, params = {}, {}

        def pick(name: str, distribution: Distribution) -> Any:
            distributions[name] = _as_optuna(optuna, distribution)
            params[name] = _parameter(distribution, each.config[name])
            return each.config[name]

        state = _state(each, self._prunes)
        try:
            self._space.walk(pick)
            return optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                value=each.best if state in ("COMPLETE", "PRUNED") else None,
                params=params,
                distributions=distributions,
                intermediate_values={epoch: value for epoch, value in each.values.items() if isfinite(value)},
                system_attrs=dict(each.attributes),
            )
        except (KeyError, ValueError, TypeError):  # a value that the space does not have
            return None


def _state(each: Observation, prunes: bool) -> str:
    """Return the name of Optuna's state for a trial."""
    if each.status == "failed" or (each.best is None and each.status in ("completed", "stopped", "paused")):
        return "FAIL"
    if each.status in ("stopped", "paused"):
        return "PRUNED" if prunes else "COMPLETE"
    return "COMPLETE" if each.status == "completed" else "RUNNING"


def _as_optuna(optuna: Any, distribution: Distribution) -> Any:
    """Return the distribution as Optuna has it: of a choice and of steps, the number of the value."""
    kinds = optuna.distributions
    match distribution:
        case Choice(values):
            return kinds.CategoricalDistribution(tuple(range(len(values))))
        case RandInt(low, high):
            return kinds.IntDistribution(low, high - 1)
        case Uniform(low, high, q=q) if q is not None:
            return kinds.IntDistribution(ceil(low / q), max(ceil(low / q), floor(high / q)))
        case Uniform(low, high, log):
            return kinds.FloatDistribution(low, high, log=log)


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    """Ask the sampler for one parameter."""
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    low, high = distribution.low, distribution.high
    if isinstance(low, int):
        return trial.suggest_int(name, low, high)
    return trial.suggest_float(name, low, high, log=distribution.log)


def _value(distribution: Distribution, parameter: Any) -> Any:
    """Return our value for a parameter of Optuna."""
    match distribution:
        case Choice(values):
            return values[parameter]
        case Uniform(low, high, q=q) if q is not None:
            return float(min(max(parameter * q, low), high))
        case Uniform(low, high):
            return min(max(parameter, low), nextafter(high, low))
        case RandInt():
            return parameter


def _parameter(distribution: Distribution, value: Any) -> Any:
    """The reverse of `_value`."""
    match distribution:
        case Choice(values):
            return values.index(value)
        case Uniform(q=q) if q is not None:
            return round(value / q)
        case _:
            return value


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
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


def _check(search: Any) -> None:
    name = type(search).__name__
    object.__setattr__(search, "trials", whole(f"{name}: trials", search.trials, 1))
    if search.batch is not None:
        object.__setattr__(search, "batch", whole(f"{name}: batch", search.batch, 1))
    if search.seed is not None:
        object.__setattr__(search, "seed", whole(f"{name}: seed", search.seed))


def _opened(
    search: Any,
    space: Space | None,
    seed: int,
    mode: str,
    make: Callable[[], Make],
    options: Mapping[str, Any] | None = None,
    prunes: bool = False,
) -> Asked:
    _optuna()

    def named() -> Make:
        kind = make()
        return lambda seed: kind(seed=seed, **(options or {}))

    needs = needed(space, f"{type(search).__name__}(n)")
    return Asked(named, needs, search.trials, seed if search.seed is None else search.seed, mode, prunes)


def _optuna() -> Any:
    """Import Optuna.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"searches that learn need Optuna: pip install 'hopyard[search]' ({error})") from None
    return optuna


def _installed(name: str, *packages: str) -> None:
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"hy.{name} needs {package}: pip install 'hopyard[search]' {package}")


@contextmanager
def _quietly() -> Iterator[Any]:
    """Give Optuna, which would print a line for each study, and put its verbosity back."""
    optuna = _optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)

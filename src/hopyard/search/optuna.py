"""Searches that learn, by the samplers of Optuna, which is imported when a search is opened.

A sampler keeps much in memory, and one that is fed again after a resume does not propose what it would have proposed.
So it is made anew for each proposal, with a seed keyed by (run seed, number of its proposals before, the trials of an
earlier study included), over a study that is made of the history: what it proposes is a function of the history alone.
What it notes in a trial (CMA-ES keeps its state there) goes through the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, nextafter
from typing import Any, cast

from hopyard.checks import whole
from hopyard.core.keyed import keyed
from hopyard.errors import SpecError, UsageError
from hopyard.ports.searches import Observation, Proposal
from hopyard.search.bridge import (
    Earlier,
    as_optuna,
    earlier_of,
    optuna_package,
    parameter_of,
    plain_attributes,
    quietly,
    state_of,
    suggest,
    value_of,
)
from hopyard.search.define import Searched
from hopyard.search.listed import needed
from hopyard.space import Choice, Distribution
from hopyard.spec import Mode
from hopyard.text import error_line, shown

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

    def open(self, space: Any, seed: int, modes: Sequence[Mode] = ("min",)) -> OptunaLearner:
        """Return its sampler for `space`."""
        return _opened(self, space, seed, modes, optuna_package().samplers.TPESampler, prunes=True)


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

    def open(self, space: Any, seed: int, modes: Sequence[Mode] = ("min",)) -> OptunaLearner:
        """Return its sampler for `space`."""
        _installed("GP", "scipy", "torch")
        return _opened(self, space, seed, modes, optuna_package().samplers.GPSampler)


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

    def open(self, space: Any, seed: int, modes: Sequence[Mode] = ("min",)) -> OptunaLearner:
        """Return its sampler for `space`."""
        _installed("CMA", "cmaes")
        if len(modes) > 1:
            raise SpecError(
                f"hy.CMA learns from one metric, metric= has {len(modes)}; hy.TPE(n), hy.GP(n) and "
                "hy.Optuna(optuna.samplers.NSGAIISampler, n) learn from several"
            )
        make = partial(optuna_package().samplers.CmaEsSampler, warn_independent_sampling=False)
        return _opened(self, space, seed, modes, make)


@dataclass(frozen=True, slots=True)
class Optuna:
    """Any sampler of Optuna: `hy.Optuna(optuna.samplers.NSGAIISampler, 64)`; and a search that goes on from a Study of
    Optuna: `hy.Optuna(study=study, trials=64)`.

    Args:
        sampler: a class of `optuna.samplers`, or a function, which is called with seed= for each proposal and returns
            a sampler. (A sampler that was made already has a state that no journal holds.) None: the class of the
            study's sampler, with the class's defaults, whatever that one was made with.
        trials: how many configurations it proposes.
        batch, seed: as in `hy.TPE`.
        study: an `optuna.Study`. The sampler learns from its trials that are over and of the run's space, as they are
            now; nothing is written to it (`run.to_optuna()` returns a new one).
    """

    sampler: Make | None = None
    trials: int = 0
    batch: int | None = None
    seed: int | None = None
    study: Any = field(default=None, repr=False)
    """An `Earlier` from here on: what is learned from it, as it may be one in a database."""

    def __post_init__(self) -> None:
        if self.study is not None and not isinstance(self.study, Earlier):
            earlier = earlier_of(self.study)
            if self.sampler is None:
                object.__setattr__(self, "sampler", type(self.study.sampler))
            object.__setattr__(self, "study", earlier)
        if not callable(self.sampler):
            raise SpecError(
                "Optuna: sampler must be a class of optuna.samplers or a function that takes seed= and returns a "
                f"sampler, as one is made for each proposal, got {shown(self.sampler)}"
            )
        _check(self)

    def open(self, space: Any, seed: int, modes: Sequence[Mode] = ("min",)) -> OptunaLearner:
        """Return its sampler for `space`.

        Raises:
            SpecError: the study has other objectives than the run, or no trial of this space.
        """
        asked = _opened(self, space, seed, modes, cast(Make, self.sampler))
        if self.study is not None:
            asked.learn(self.study)
        return asked


Learned = TPE | GP | CMA | Optuna


class OptunaLearner:
    """A LearningSampler over a sampler of Optuna.

    Args:
        make: makes a sampler, given seed=.
        space: what is searched.
        total: how many configurations are proposed.
        seed: of the run, or of the search.
        modes: which values are better, of each objective.
        prunes: whether the sampler learns from trials that did not come to their end as such; else, and always where
            there are several objectives, their best values count as if they had.
    """

    def __init__(self, make: Make, space: Searched, total: int, seed: int, modes: Sequence[Mode], prunes: bool) -> None:
        self.total: int | None = total
        self._make = make
        self._space = space
        self._seed = seed
        self._directions = ["minimize" if mode == "min" else "maximize" for mode in modes]
        self._single = len(self._directions) == 1
        self._prunes = prunes and self._single
        self._earlier: Sequence[Observation] = ()
        self._before = 0
        """How many trials the earlier study has."""

    def learn(self, earlier: Earlier) -> None:
        """Count the trials of a study as results that came before. Seeds go on from their number, as the study may be
        one of a run with the seed of this one, whose random draws would come again.

        Raises:
            SpecError: it has other objectives, or no trial of this space.
        """
        if list(earlier.directions) != self._directions:
            raise SpecError(
                f"Optuna(study=…): the study's directions are {', '.join(earlier.directions)}, those of the run's "
                f"metric= and mode= {', '.join(self._directions)}; give modes that are equal"
            )
        self._before = earlier.count
        with quietly() as optuna:
            self._earlier = [each for each in earlier.trials if self._frozen(optuna, each) is not None]
        if earlier.trials and not self._earlier:
            raise SpecError(
                f"Optuna(study=…): none of the study's {len(earlier.trials)} trials is of the run's space: the last "
                f"one has {shown(earlier.trials[-1].config)}; names and ranges of parameters must be equal"
            )

    def propose(self, history: Sequence[Observation]) -> Proposal | None:
        """Return the next configuration; O(trials) and what the sampler takes."""
        count = sum(each.count >= 0 for each in history)
        if count >= (self.total or 0):
            return None
        with quietly() as optuna:
            sampler = self._make(seed=keyed(self._seed, "sampler", self._before + count) % (1 << 32))
            if not isinstance(sampler, optuna.samplers.BaseSampler):
                raise SpecError(
                    "Optuna: the function sampler= must return a sampler of optuna.samplers, and returned "
                    f"{shown(sampler)}"
                )
            if isinstance(sampler, optuna.samplers.QMCSampler):
                raise SpecError(
                    "QMCSampler counts its points in the study, and is made anew for each proposal: it would propose "
                    "the first one again and again; give hy.Random(n), or another sampler"
                )
            study = optuna.create_study(sampler=sampler, directions=self._directions)
            study.add_trials(
                [trial for each in (*self._earlier, *history) if (trial := self._frozen(optuna, each)) is not None]
            )
            trial = study.ask()

            def pick(name: str, distribution: Distribution) -> Any:
                try:
                    return value_of(distribution, suggest(trial, name, as_optuna(optuna, distribution)))
                except ValueError as error:
                    raise _explained(error, name, distribution) from error

            config = self._space.walk(pick)
            return Proposal(config, count, plain_attributes(study.trials[-1].system_attrs))

    def _frozen(self, optuna: Any, each: Observation) -> Any:
        """Return a trial as Optuna has it; None for one that is not of this space (`enqueue=`)."""
        distributions, params = {}, {}

        def pick(name: str, distribution: Distribution) -> Any:
            distributions[name] = as_optuna(optuna, distribution)
            params[name] = parameter_of(distribution, each.config[name])
            if isinstance(distribution, Choice):  # a study has lists as text
                return value_of(distribution, params[name])
            return each.config[name]

        state = state_of(each, self._prunes)
        try:
            self._space.walk(pick)
            return optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                values=list(each.best) if state in ("COMPLETE", "PRUNED") else None,
                params=params,
                distributions=distributions,
                intermediate_values={
                    epoch: value for epoch, value in each.values.items() if self._single and isfinite(value)
                },
                system_attrs=dict(each.attributes),
            )
        except (SpecError, KeyError, ValueError, TypeError):  # a value that the space does not have
            return None


def _explained(error: ValueError, name: str, distribution: Distribution) -> ValueError | SpecError:
    """Return an error of a sampler; one that says how it knows a parameter, where that is not by our value."""
    value = distribution.at(nextafter(1.0, 0.0))
    number = parameter_of(distribution, value)
    if number == value:
        return error
    return SpecError(
        f"search: the sampler raised {error_line(error).rstrip('.')}; Optuna's samplers know the values of a choice, "
        f"and steps, by their numbers: {name} = {shown(value)} is {number} to them"
    )


def _check(search: Any) -> None:
    name = type(search).__name__
    object.__setattr__(search, "trials", whole(f"{name}: trials", search.trials, 1))
    if search.batch is not None:
        object.__setattr__(search, "batch", whole(f"{name}: batch", search.batch, 1))
    if search.seed is not None:
        object.__setattr__(search, "seed", whole(f"{name}: seed", search.seed))


def _opened(
    search: Any, space: Any, seed: int, modes: Sequence[Mode], make: Make, prunes: bool = False
) -> OptunaLearner:
    optuna_package()
    known = needed(space, type(search).__name__)
    return OptunaLearner(make, known, search.trials, seed if search.seed is None else search.seed, modes, prunes)


def _installed(name: str, *packages: str) -> None:
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"hy.{name} needs {package}: pip install 'hopyard[search]' {package}")

"""All searches that users may give, and those that begin with configurations of the user (`enqueue=`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.checks import no_such, sequence
from hopyard.errors import SpecError
from hopyard.ports.searches import LearningSampler, Observation, Proposal, Sampler
from hopyard.search.define import Searched, check_pure, searched
from hopyard.search.listed import Configs, Grid, Listed, Random, plain_config
from hopyard.search.optuna import CMA, GP, TPE, Learned, Optuna
from hopyard.space import Choice, Distribution, RandInt, Space, Steps
from hopyard.spec import Config, Mode
from hopyard.text import error_line, numeral, shown

log = logging.getLogger(__name__)

Search = Grid | Random | Configs | Learned
SEARCHES = (Grid, Random, Configs, TPE, GP, CMA, Optuna)
NAMES = "hy.Grid(), hy.Random(n), hy.Configs([...]), hy.TPE(n), hy.GP(n), hy.CMA(n) or hy.Optuna(sampler, n)"
"""For messages."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A search after configurations that the user wants to be tried first."""

    search: Search
    configs: tuple[Config, ...]

    def open(self, space: Any, seed: int, modes: Sequence[Mode] = ("min",)) -> Sampler | LearningSampler:
        """Return the sampler of all."""
        if isinstance(self.search, Learned):
            return First(self.search.open(space, seed, modes), self.configs)
        return Listed([*self.configs, *self.search.open(space, seed).configs])


def open_sampler(search: Any, space: Any, seed: int, modes: Sequence[Mode]) -> Sampler | LearningSampler:
    """Return the sampler of a search. `modes` say which values of each objective are better, for one that learns."""
    if isinstance(search, Learned | Enqueued):
        return search.open(space, seed, modes)
    sampler: Sampler = search.open(space, seed)
    return sampler


def enqueued(search: Search, space: Any, configs: Any) -> Search | Enqueued:
    """Return a search that begins with these configurations. A value outside its range or choice, or between its steps,
    is tried as it is, and a warning says so, as Optuna's `enqueue_trial` does.

    Raises:
        SpecError: they are no configurations, or not of the space.
    """
    if configs is None:
        return search
    configs = configs if isinstance(configs, Sequence) else sequence(configs)
    if not isinstance(configs, Sequence) or not all(isinstance(config, dict) for config in configs):
        raise SpecError(f"enqueue must be a list of configurations, which are dicts, got {shown(configs)}")
    if not configs:
        return search
    known, learning = searched(space), learns(search)
    return Enqueued(search, tuple([_completed(plain_config(config, "enqueue"), known, learning) for config in configs]))


def after_the_same(search: Search, earlier: Search | Enqueued) -> Search | Enqueued:
    """Return a search that begins with the configurations of the user with which an earlier one began."""
    return Enqueued(search, earlier.configs) if isinstance(earlier, Enqueued) else search


def _completed(config: Config, space: Searched | None, learning: bool) -> Config:
    """Return a configuration of the user with what the space has beside the parameters, and warn of what the space does
    not have. `learning`: whether the search would learn from it."""
    if space is None:
        return config
    strange: list[str] = []

    def pick(name: str, distribution: Distribution) -> Any:
        if name not in config:
            raise SpecError(f"enqueue: {shown(config)} has no {name!r}, for which the space asks: give all parameters")
        if departure := _departure(distribution, config[name], f"enqueue: {shown(config)}: {name}"):
            strange.append(f"{name} = {shown(config[name])} {departure}")
        return config[name]

    known = space.parameters if isinstance(space, Space) else None
    whole = space.walk(pick) if known is None or known.keys() >= config.keys() else {}
    if wrong := [name for name in config if name not in (known or whole)]:
        raise SpecError(f"enqueue: {shown(config)}: {no_such('parameter', wrong, known or whole)}")
    for name, value in config.items():
        if name not in whole:
            strange.append(f"{name} is not a parameter where the others are {shown(whole)}")
        elif whole[name] != value:
            strange.append(f"{name} = {shown(value)} is not {shown(whole[name])}")
    if strange:
        text = "; ".join(strange) + ": the space has no such value; it is tried all the same"
        log.warning("enqueue: %s%s", text, ", and the search does not learn from it" if learning else "")
    return {**whole, **config}


def _departure(distribution: Distribution, value: Any, label: str) -> str:
    """Return how a value differs from those of a distribution, "is outside 0 to 1" for example; "": it is one of them.

    Raises:
        SpecError: it is not of their type.
    """
    if isinstance(distribution, Choice):
        return "" if value in distribution.values else f"is not one of {shown(list(distribution.values))}"
    low, last = distribution.low, distribution.high - 1 if isinstance(distribution, RandInt) else distribution.high
    limits = f"{numeral(low)} to {numeral(last)}"
    integers = isinstance(low, int)
    if isinstance(value, bool) or not isinstance(value, int if integers else (int, float)):
        kind = "an integer" if integers else "a number"
        raise SpecError(f"{label} must be {kind}, its range is {limits}, got {shown(value)}")
    if not isinstance(distribution, Steps):
        return "" if low <= value <= last else f"is outside {limits}"
    try:
        distribution.number(value)
    except ValueError as error:
        return str(error)
    return ""


def batch_of(search: Search | Enqueued) -> int:
    """Return how many trials are proposed at a time; 0: as others end."""
    inner = search.search if isinstance(search, Enqueued) else search
    return (inner.batch or 0) if isinstance(inner, Learned) else 0


def examined(search: Search | Enqueued, space: Any, seed: int, modes: Sequence[Mode]) -> tuple[int | None, bool]:
    """Ask a search what it would propose first. Returns how many trials there are, None where nobody knows, and whether
    it says the same when it is asked anew, as after a resume.

    Raises:
        SpecError: it raised, or a function of the space says something else for the same values.
    """
    inner, total = (search.search, len(search.configs)) if isinstance(search, Enqueued) else (search, 0)
    sampler = open_sampler(inner, space, seed, modes)
    first = _first(sampler)
    if first is not None and not isinstance(inner, Configs) and (known := searched(space)) is not None:
        check_pure(known, first)
    same = not isinstance(inner, Learned) or first == _first(open_sampler(inner, space, seed, modes))
    return None if sampler.total is None else sampler.total + total, same


def _first(sampler: Sampler | LearningSampler) -> Config | None:
    if not isinstance(sampler, LearningSampler):
        return sampler.ask(0)
    try:
        proposal = sampler.propose([])
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"search: it proposed nothing: {error_line(error)}") from error
    return None if proposal is None else proposal.config


def learns(search: Search | Enqueued) -> bool:
    """Whether what it proposes depends on results."""
    return isinstance(search.search if isinstance(search, Enqueued) else search, Learned)


class First:
    """A LearningSampler: configurations of the user, then those of another one, which learns from them too."""

    def __init__(self, sampler: LearningSampler, configs: Sequence[Config]) -> None:
        self._sampler = sampler
        self._configs = configs
        self.total: int | None = None if sampler.total is None else len(configs) + sampler.total

    def propose(self, history: Sequence[Observation]) -> Proposal | None:
        """Return the next configuration, given all trials so far; None when there is none left."""
        if len(history) < len(self._configs):
            return Proposal(self._configs[len(history)])
        return self._sampler.propose(history)

"""Searches that know all their configurations beforehand: a grid, random draws, configurations by hand.

They are pure functions of (space, seed, trial number), so a resumed run asks again and gets the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.checks import sequence, whole
from hopyard.core.keyed import fraction
from hopyard.errors import SpecError
from hopyard.search.define import Defined, Searched, searched
from hopyard.space import parameter_name, plain
from hopyard.spec import Config, copied
from hopyard.text import shown

LIMIT = 1_000_000
"""A search of more configurations than this, all known beforehand, is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Every point of the space, the last parameter fastest."""

    def open(self, space: Any, seed: int) -> Listed:
        """Return the configurations of `space`."""
        configs: list[Config] = []
        listed = needed(space, "Grid")
        if isinstance(listed, Defined):
            raise SpecError(
                "search = hy.Grid() lists all points beforehand, which a function does not tell; give a hy.Space, or "
                f"hy.Random(n), got space = {shown(space)}"
            )
        for config in listed.grid():
            configs.append(config)
            if len(configs) > LIMIT:
                raise SpecError(f"Grid(): the space has more than {LIMIT:,} points; use hy.Random(n)")
        return Listed(configs)


@dataclass(frozen=True, slots=True)
class Random:
    """`trials` independent draws. Each parameter of each trial has its own stream, keyed by (seed, trial, name).

    Source: Bergstra, Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012, §2.
    """

    trials: int
    seed: int | None = None
    """None: the run's seed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", whole("Random: trials", self.trials, 1, LIMIT))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("Random: seed", self.seed))

    def open(self, space: Any, seed: int) -> Listed:
        """Return the configurations of `space`."""
        run_seed = self.seed if self.seed is not None else seed
        known = needed(space, "Random")

        def draw(trial: int) -> Config:
            return known.walk(lambda name, values: values.at(fraction(run_seed, "space", trial, name)))

        return Listed([draw(trial) for trial in range(self.trials)])


@dataclass(frozen=True, slots=True)
class Configs:
    """These configurations, in this order; the run needs no space."""

    configs: Sequence[Config]

    def __post_init__(self) -> None:
        configs = self.configs if isinstance(self.configs, Sequence) else sequence(self.configs)
        if not isinstance(configs, Sequence) or not configs or not all(isinstance(config, dict) for config in configs):
            raise SpecError(f"Configs(…) must be given a list of at least one dict, got {shown(self.configs)}")
        object.__setattr__(self, "configs", tuple([plain_config(config, "Configs") for config in configs]))

    def open(self, space: Any, seed: int) -> Listed:
        """Return the list itself."""
        return Listed(list(self.configs))


class Listed:
    """A Sampler over a list."""

    def __init__(self, configs: list[Config]) -> None:
        self.configs = configs
        self.total: int | None = len(configs)

    def ask(self, trial: int) -> Config | None:
        """Return the configuration of this trial; None after the last."""
        return copied(self.configs[trial]) if trial < len(self.configs) else None


def plain_config(config: Config, label: str) -> Config:
    """Return a configuration that the user wrote, as the journal has it.

    Raises:
        SpecError: it cannot be written to a journal.
    """
    return {parameter_name(name, label): plain(value, f"{label}, {name}") for name, value in config.items()}


def needed(space: Any, name: str) -> Searched:
    """Return what is searched.

    Raises:
        SpecError: there is nothing.
    """
    if (known := searched(space)) is None:
        function = "" if name == "Grid" else " or a function of a trial that suggests values,"
        raise SpecError(
            f"space must be a hy.Space,{function} from which search=hy.{name}(…) takes its values, got {shown(space)}"
        )
    return known

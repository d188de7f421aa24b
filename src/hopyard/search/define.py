"""Spaces in define-by-run form: a function that asks for one parameter after the other, as in Optuna.

The function is called for each proposal, and again whenever a sampler is shown the trials so far, with the values that
these have. So it must depend on what it is told alone: no clock, no file, no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from hopyard.checks import number, real, scalar, whole
from hopyard.errors import SpecError
from hopyard.space import (
    SLACK,
    Distribution,
    RandInt,
    Space,
    Uniform,
    choice,
    exclusive,
    parameter_name,
    plain,
    stepped,
)
from hopyard.spec import Config, copied
from hopyard.text import error_line, numeral, shown

CALLS = 3
"""How often a function is called again with the same values."""
Pick = Callable[[str, Distribution], Any]
"""Name, distribution → value."""


class Suggestions:
    """What the function of a space is given: the methods of Optuna's Trial that suggest values. Bounds are included.

    Args:
        pick: says the value of each parameter.
    """

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._distributions: dict[str, Distribution] = {}
        self._raised: BaseException | None = None
        self._values: Config = {}

    def __getattr__(self, name: str) -> Any:
        known = [each for each in dir(Suggestions) if not each.startswith("_")]
        raise AttributeError(f"what the function of a space is given has {', '.join(known)}, and no {name!r}")

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
        """Return a real number from `low` to `high`; `step`: low, low + step, …; `log`: its logarithm is uniform."""
        label = f"suggest_float({name!r})"
        low, high = number(f"{label}: low", low), number(f"{label}: high", high)
        _ascending(label, low, high)
        log = exclusive(label, low, step is not None, log)
        if step is None:
            return self._suggest(label, name, Uniform(low, high, log=log))
        width = real(step)
        if not 0 < width <= (high - low) * (1 + SLACK):
            raise SpecError(f"{label}: step must be a number > 0 and <= {numeral(high - low)}, got {shown(step)}")
        return self._suggest(label, name, stepped(label, low, high, width, low))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
        """Return an integer from `low` to `high`; `step`: low, low + step, …; `log`: its logarithm is uniform."""
        label = f"suggest_int({name!r})"
        low, high = whole(f"{label}: low", low), whole(f"{label}: high", high)
        _ascending(label, low, high)
        step = whole(f"{label}: step", step, 1, high - low)
        log = exclusive(label, low, step != 1, log)
        if step == 1:
            return self._suggest(label, name, RandInt(low, high + 1, log=log))
        return self._suggest(label, name, stepped(label, low, high, step, low))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of `choices`."""
        return self._suggest(f"suggest_categorical({name!r})", name, choice(choices))

    def _suggest(self, label: str, name: str, distribution: Distribution) -> Any:
        name = parameter_name(name, label)
        if (before := self._distributions.get(name)) is not None:
            if before != distribution:
                raise SpecError(f"{label}: it was asked for before in this trial, with other values; give another name")
            return copied(self._values[name])
        self._distributions[name] = distribution
        try:
            self._values[name] = self._pick(name, distribution)
        except BaseException as error:
            self._raised = error
            raise
        return copied(self._values[name])


class Defined:
    """A space that a function defines.

    Args:
        function: takes `Suggestions`. It returns None, or a dict of what the configuration holds beside the parameters,
            which are in it by their names.
    """

    def __init__(self, function: Callable[[Suggestions], Config | None]) -> None:
        self._function = function

    def walk(self, pick: Pick) -> Config:
        """Return one configuration; `pick` says the value of each parameter, in the order that the function asks.

        Raises:
            SpecError: the function raised, or returned no configuration.
        """
        trial = Suggestions(pick)
        try:
            returned = self._function(trial)
        except SpecError:
            raise
        except Exception as error:
            if error is trial._raised:  # the sampler's, not the function's
                raise
            raise SpecError(
                f"space: the function raised after it was told {trial._values!r}: {error_line(error)}"
            ) from error
        if returned is None:
            returned = {}
        if not isinstance(returned, dict):
            raise SpecError(f"space: the function must return a configuration, which is a dict, got {shown(returned)}")
        config = dict(trial._values)
        for key, item in returned.items():
            name = scalar(key)
            value = plain(item, f"space, {plain(name, 'space, the name of a parameter')}")
            if name in config and config[name] != value:
                raise SpecError(
                    f"space: the function returns {name}={shown(value)}, but a parameter of that name was suggested as "
                    f"{shown(config[name])}; give the parameter another name"
                )
            config[name] = value
        if not config:
            raise SpecError("space: the function asked for no parameter: call trial.suggest_float(…) or the like in it")
        return config


Searched = Space | Defined


def searched(space: Any) -> Searched | None:
    """Return what is searched; None: it is neither a space nor a function."""
    if isinstance(space, Space):
        return space
    return Defined(space) if callable(space) and not isinstance(space, type) else None


def check_pure(space: Searched, config: Config) -> None:
    """Call the functions of a space again with the values of a configuration of it.

    Raises:
        SpecError: they say something else.
    """
    try:
        pure = all(space.walk(lambda name, _: config[name]) == config for _ in range(CALLS))
    except KeyError:  # a parameter for which it did not ask before
        pure = False
    if not pure:
        raise SpecError(
            f"space: it had the configuration {shown(config)}. When its functions were called again with these values "
            "they said something else: they must depend on what they are told alone (no clock, no file, no random "
            "numbers)"
        )


def _ascending(label: str, low: float, high: float) -> None:
    if not low < high:
        raise SpecError(f"{label}: low must be below high, got {numeral(low)} and {numeral(high)}")
    if not isfinite(high - low):
        raise SpecError(
            f"{label}: the range from {low:g} to {high:g} is wider than the largest float; give a narrower one"
        )

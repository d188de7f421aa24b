"""Hyperparameter spaces: name → distribution, and how a point of one is drawn.

A distribution is a frozen value that turns a number in [0, 1) into a value (`at`), or lists its values for a grid
(`points`). This module does not generate that number: `Space.draw` takes a function name → number, so each parameter
has a stream of its own and two uniform parameters are never correlated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.checks import flag, number, scalar, sequence, whole
from hopyard.errors import SpecError
from hopyard.spec import Config, copied
from hopyard.text import error_line, html_table, numeral, shown, unwritable

SLACK = 1e-9
"""The share of a step by which a value may differ from its place: 0.3 is three steps of 0.1."""
MULTIPLES = 1 << 53
"""The number of multiples of a step that floats can tell apart."""


def _range(name: str, low: Any, high: Any, grid: Any) -> tuple[float, float, int | None]:
    """Return low, high and grid, checked."""
    ends = number(f"{name}: low", low), number(f"{name}: high", high)
    if not ends[0] < ends[1]:
        raise SpecError(f"{name}({low!r}, {high!r}): low must be below high")
    if not math.isfinite(ends[1] - ends[0]):
        raise SpecError(f"{name}({low!r}, {high!r}): the range is wider than the largest float; give a narrower one")
    if grid is not None:
        grid = whole(f"{name}: grid, the number of points that a grid takes,", grid, 1)
    return *ends, grid


def plain(value: Any, label: str) -> Any:
    """Return the value as JSON has it: NumPy scalars become Python's, tuples and arrays of one axis lists.

    Raises:
        SpecError: it cannot be written to a journal.
    """
    value = sequence(value)
    if value is None or isinstance(value, (bool, int, str)):
        if fault := unwritable(value):
            raise SpecError(f"{label}: {shown(value)}: {fault}")
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise SpecError(f"{label}: {shown(value)} is not finite; leave the parameter out, or use None")
    if isinstance(value, list):
        try:
            return [plain(item, label) for item in value]
        except RecursionError:
            raise SpecError(f"{label}: {shown(value)}: its lists lie too deep in each other; give a flat one") from None
    raise SpecError(
        f"{label}: {shown(value)} is a {type(value).__name__}; a configuration holds numbers, strings, booleans, None "
        "and lists of these. Give a name, and look the object up in the recipe"
    )


def parameter_name(name: Any, label: str) -> str:
    """Return the name of a parameter.

    Raises:
        SpecError: it is no text, is empty, or cannot be written to a journal.
    """
    name = scalar(name)
    if not isinstance(name, str) or not name:
        raise SpecError(f"{label}: the name of a parameter must be text of at least one character, got {shown(name)}")
    plain(name, f"{label}, the name of a parameter")
    return name


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a list, all equally likely."""

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """Return the value for `u` in [0, 1)."""
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]

    def points(self) -> tuple[Any, ...]:
        """Return all values, for a grid."""
        return self.values


@dataclass(frozen=True, slots=True)
class Uniform:
    """A real number in [low, high); its logarithm is uniform if `log`."""

    low: float
    high: float
    log: bool = False
    grid: int | None = None

    def at(self, u: float) -> float:
        """Return the value for `u` in [0, 1)."""
        if self.log:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
            return min(max(value, self.low), math.nextafter(self.high, self.low))
        return min(self.low + u * (self.high - self.low), math.nextafter(self.high, self.low))

    def points(self) -> tuple[float, ...]:
        """Return `grid` values from low to high, both included."""
        if self.grid is None:
            raise SpecError(
                f"a grid over the range {numeral(self.low)} to {numeral(self.high)} has no end: say how many points, "
                f"for example {'loguniform' if self.log else 'uniform'}({numeral(self.low)}, {numeral(self.high)}, "
                "grid=5), or use hy.Random"
            )
        if self.grid == 1:
            middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
            return (middle,)
        first, last = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        inner = [first + (last - first) * i / (self.grid - 1) for i in range(1, self.grid - 1)]
        return (self.low, *(math.exp(x) if self.log else x for x in inner), self.high)


@dataclass(frozen=True, slots=True)
class RandInt:
    """A whole number in [low, high)."""

    low: int
    high: int
    grid: int | None = None
    log: bool = False
    """Its logarithm is uniform; `low` is above 0 then."""

    def at(self, u: float) -> int:
        """Return the value for `u` in [0, 1)."""
        if self.log:
            first, last = math.log(self.low - 0.5), math.log(self.high - 0.5)
            return min(max(round(math.exp(first + u * (last - first))), self.low), self.high - 1)
        return min(self.low + int(u * (self.high - self.low)), self.high - 1)

    def points(self) -> Sequence[int]:
        """Return every value, or `grid` of them, evenly spread."""
        if self.grid is None or self.grid >= self.high - self.low:
            return range(self.low, self.high)
        if self.grid == 1:
            return (round(math.sqrt(self.low * (self.high - 1))) if self.log else (self.low + self.high - 1) // 2,)
        last, parts = self.high - 1, [i / (self.grid - 1) for i in range(self.grid)]
        if self.log:
            return tuple(dict.fromkeys(round(self.low * (last / self.low) ** part) for part in parts))
        return tuple(dict.fromkeys(round(self.low + (last - self.low) * i / (self.grid - 1)) for i in range(self.grid)))


@dataclass(frozen=True, slots=True)
class Steps:
    """One of several numbers, all equally likely: origin + n · step for n = first, …, last. Every search draws n."""

    low: float
    high: float
    """Bounds that no number passes by rounding: 3 · 0.1 is above 0.3."""
    step: float
    origin: float
    first: int
    last: int
    grid: int | None = None

    def value(self, n: int) -> float:
        """Return the number that belongs to `n`."""
        return min(max(self.origin + n * self.step, self.low), self.high)

    def number(self, value: float) -> int:
        """Return the n to which a value belongs.

        Raises:
            ValueError: it lies between two of the numbers, or beyond them.
        """
        slack = SLACK * self.step
        if not self.low - slack <= value <= self.high + slack:
            raise ValueError(f"is outside {numeral(self.low)} to {numeral(self.high)}")
        n = round((value - self.origin) / self.step)
        near = math.isclose(value, self.origin + n * self.step, rel_tol=1e-12, abs_tol=slack)
        if not near or not self.first <= n <= self.last:
            raise ValueError(f"lies between two steps of {numeral(self.step)} from {numeral(self.origin)}")
        return n

    def at(self, u: float) -> float:
        """Return the value for `u` in [0, 1)."""
        return self.value(RandInt(self.first, self.last + 1).at(u))

    def points(self) -> Iterator[float]:
        """Yield all of them, or `grid` of them, evenly spread."""
        return map(self.value, RandInt(self.first, self.last + 1, self.grid).points())


def stepped(label: str, low: float, high: float, step: float, origin: float, grid: int | None = None) -> Steps:
    """Return the numbers origin + n · step from low to high. An end that is one of them up to rounding is included.

    Raises:
        SpecError: the step is too small to tell its multiples apart.
    """
    if isinstance(low, int):  # so are all of them, and origin is low; integers of 64 bits are no exact floats
        last = int((high - low) // step)
        return Steps(low, low + last * step, step, origin, 0, last, grid)
    ends = (low - origin) / step, (high - origin) / step
    if not max(map(abs, ends)) < MULTIPLES:
        raise SpecError(
            f"{label}: steps of {numeral(step)} cannot be told apart at {numeral(high)}, as floats have 53 bits; give "
            "a wider step"
        )
    first, last = (
        nearest if math.isclose(end, nearest := round(end), rel_tol=1e-15, abs_tol=SLACK) else toward(end)
        for end, toward in zip(ends, (math.ceil, math.floor), strict=True)
    )
    return Steps(low, high, step, origin, first, last, grid)


Distribution = Choice | Uniform | RandInt | Steps


def choice(values: Sequence[Any]) -> Choice:
    """One of `values`: numbers, strings, booleans, None, or lists of these. An array of one axis is a list of them.

    Raises:
        SpecError: two values are equal in Python, as 1, 1.0 and True are, or a list is there beside its own text.
    """
    items = sequence(values)
    if not isinstance(items, list) or not items:
        raise SpecError(f"choice(…) must be given a list of at least one value, got {shown(values)}")
    label = f"choice({shown(values)})"
    plain_values = [plain(value, label) for value in items]
    seen: dict[Any, Any] = {}
    for value in plain_values:
        keys = {_hashable(value), category(value)}
        if equal := keys & seen.keys():
            raise SpecError(
                f"{label}: {shown(seen[equal.pop()])} and {shown(value)} are the same value to a search, so it cannot "
                "tell their results apart; leave one out, or give names and look the values up in the recipe"
            )
        seen |= dict.fromkeys(keys, value)
    return Choice(tuple(plain_values))


def category(value: Any) -> Any:
    """Return a value of a choice as a study of Optuna has it: lists as text."""
    return str(value) if isinstance(value, list) else value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def uniform(low: float, high: float, grid: int | None = None) -> Uniform:
    """A real number in [low, high). `grid`: the number of points that a Grid uses."""
    low, high, grid = _range("uniform", low, high, grid)
    return Uniform(low, high, grid=grid)


def quniform(low: float, high: float, q: float, grid: int | None = None) -> Steps:
    """A multiple of `q` in [low, high], all equally likely. `low` and `high` are included where q divides them. It is a
    float also where `q` is whole: `hy.randint(16, 129, step=16)` gives integers, for the width of a layer. `grid`: the
    number of points that a Grid uses; None: all."""
    low, high, grid = _range("quniform", low, high, grid)
    if (q := number("quniform: q", q)) <= 0:
        raise SpecError(f"quniform(q=…) must be a number > 0, got {shown(q)}")
    if q > (high - low) * (1 + SLACK):
        raise SpecError(
            f"quniform({low!r}, {high!r}, q={q!r}): the step is wider than the range; give q <= {high - low!r}"
        )
    return stepped(f"quniform({low!r}, {high!r}, q={q!r})", low, high, q, 0.0, grid)


def loguniform(low: float, high: float, grid: int | None = None) -> Uniform:
    """A real number in [low, high) whose logarithm is uniform. The bounds are the values themselves, not exponents."""
    low, high, grid = _range("loguniform", low, high, grid)
    if low <= 0:
        raise SpecError(f"loguniform({low!r}, {high!r}): both bounds must be above 0; they are values, not exponents")
    return Uniform(low, high, log=True, grid=grid)


def randint(low: int, high: int, grid: int | None = None, *, step: int = 1, log: bool = False) -> RandInt | Steps:
    """A whole number in [low, high): high is excluded.

    Args:
        low, high: the bounds.
        grid: the number of points that a Grid uses; None: all.
        step: low, low + step, low + 2 · step, … below high: `randint(16, 129, step=16)` has 16, 32, …, 128.
        log: its logarithm is uniform; not together with `step`.
    """
    low, high = scalar(low), scalar(high)
    grid = _range("randint", low, high, grid)[2]
    if not isinstance(low, int) or not isinstance(high, int):
        raise SpecError(f"randint(…) must be given integers, got {shown(low)} and {shown(high)}")
    if fault := unwritable(low) or unwritable(high):
        raise SpecError(f"randint({low!r}, {high!r}): {fault}")
    label = f"randint({low!r}, {high!r})"
    step = whole(f"{label}: step", step, 1, max(1, high - 1 - low))
    log = exclusive(label, low, step != 1, log)
    if step != 1:
        return stepped(label, low, high - 1, step, low, grid)
    return RandInt(low, high, grid, log)


def exclusive(label: str, low: float, steps: bool, log: bool) -> bool:
    """Return log=.

    Raises:
        SpecError: it does not fit.
    """
    log = flag(f"{label}: log", log)
    if log and steps:
        raise SpecError(f"{label}: step and log = True are given; leave one of them out")
    if log and low <= 0:
        raise SpecError(f"{label}: low must be > 0 with log=True, got {numeral(low)}")
    return log


class Space:
    """Name → distribution, a constant, or a function of the configuration so far that returns one of these.

    A function that returns None leaves the parameter out:
    `Space(optimizer=choice(["sgd", "adam"]), momentum=lambda c: uniform(0, 1) if c["optimizer"] == "sgd" else None)`.
    Parameters are decided in the order they are written.

    Example:
        >>> import hopyard as hy
        >>> space = hy.Space(lr=hy.loguniform(1e-4, 1e-2, grid=2), width=hy.choice([64, 256]), epochs=3)
        >>> for config in space.grid():
        ...     print(config)
        {'lr': 0.0001, 'width': 64, 'epochs': 3}
        {'lr': 0.0001, 'width': 256, 'epochs': 3}
        {'lr': 0.01, 'width': 64, 'epochs': 3}
        {'lr': 0.01, 'width': 256, 'epochs': 3}
    """

    def __init__(self, **parameters: Any) -> None:
        if not parameters:
            raise SpecError("Space() must have at least one parameter, for example lr=hy.loguniform(1e-4, 1e-1)")
        self.parameters = {
            parameter_name(name, "Space"): value
            if isinstance(value, Distribution) or callable(value)
            else plain(value, f"Space({name}=…)")
            for name, value in parameters.items()
        }
        for name, value in self.parameters.items():
            if isinstance(value, list) and len(value) > 1:
                warnings.warn(
                    f"Space({name}={shown(value)}): every configuration has this list; hy.choice({shown(value)}) takes "
                    f"one of its values, hy.choice([{shown(value)}]) the list",
                    stacklevel=2,
                )

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={value!r}' for name, value in self.parameters.items())})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a line for each parameter."""
        rows = [[name, *_described(value)] for name, value in self.parameters.items()]
        return html_table("Space", [["parameter", "kind", "values"], *rows])

    def draw(self, u: Callable[[str], float]) -> Config:
        """Return one configuration; `u(name)` is a number in [0, 1) for each parameter."""
        return self.walk(lambda name, distribution: distribution.at(u(name)))

    def walk(self, pick: Callable[[str, Distribution], Any]) -> Config:
        """Return one configuration; `pick(name, distribution)` is the value of each parameter that has one. Called in
        the order of the parameters, as a distribution may depend on the values before it."""
        config: Config = {}
        for name in self.parameters:
            parameter = self._distribution(name, config)
            if isinstance(parameter, Distribution):
                config[name] = copied(pick(name, parameter))
            elif parameter is not None or not callable(self.parameters[name]):
                config[name] = copied(parameter)
        return config

    def grid(self) -> Iterator[Config]:
        """Yield every configuration; the last parameter changes fastest.

        Raises:
            SpecError: a range without `grid=n`.
        """
        return self._grid(list(self.parameters), {})

    def _grid(self, names: list[str], config: Config) -> Iterator[Config]:
        if not names:
            yield copied(config)
            return
        name, *rest = names
        parameter = self._distribution(name, config)
        if parameter is None and callable(self.parameters[name]):
            yield from self._grid(rest, config)
            return
        for value in parameter.points() if isinstance(parameter, Distribution) else (parameter,):
            yield from self._grid(rest, {**config, name: value})

    def _distribution(self, name: str, config: Config) -> Any:
        parameter = self.parameters[name]
        if isinstance(parameter, Distribution) or not callable(parameter):
            return parameter
        try:
            parameter = parameter(copied(config))
        except Exception as error:
            raise SpecError(
                f"Space({name}=…): the function failed on the configuration so far, {config!r}: {error_line(error)}"
            ) from error
        return parameter if isinstance(parameter, Distribution) else plain(parameter, f"Space({name}=…)")


def _described(parameter: Any) -> tuple[str, str]:
    """Return the kind of a parameter and its values, in words."""
    match parameter:
        case Choice(values):
            return "choice", ", ".join(map(shown, values))
        case Uniform(low, high, log):
            return "loguniform" if log else "uniform", f"{numeral(low)} to {numeral(high)}"
        case RandInt(low, high, _, log):
            return "integers, by their logarithm" if log else "integers", f"{low} to {high - 1}"
        case Steps(first=first, last=last, step=step):
            ends = " to ".join(numeral(parameter.value(n)) for n in (first, last))
            return "steps", f"{ends} by {numeral(step)}"
        case _:
            return ("function", "of those above") if callable(parameter) else ("constant", shown(parameter))

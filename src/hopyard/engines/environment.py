"""The environment variables that a user gives to workers. Their values may be secrets, so no pickle holds them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hopyard.checks import environment
from hopyard.errors import SpecError
from hopyard.ports.engines import Engine

log = logging.getLogger(__name__)


class Environment(dict[str, str]):
    """Environment variables of workers. Neither its text nor its pickle has their values.

    A pickle has the names. Whoever loads it gets the values that his own process has, and `missing` names those that it
    does not have. A copy has the values.
    """

    __slots__ = ("missing",)

    def __init__(self, variables: Mapping[str, str], missing: tuple[str, ...] = ()) -> None:
        super().__init__(variables)
        self.missing = missing
        """Names whose values are not known."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: …" for name in (*self, *self.missing)) + "}"

    def __rich_repr__(self) -> Iterator[str]:
        yield from (*self, *self.missing)

    def __copy__(self) -> Environment:
        return Environment(self, self.missing)

    def __deepcopy__(self, memo: object) -> Environment:
        return Environment(self, self.missing)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_process, ((*self, *self.missing),)


def with_environment(engine: Engine, directory: Path, backend: str) -> Engine:
    """Return an engine that was read from a run directory, when all variables of its workers are known.

    Args:
        engine: changed in place.
        directory: the run's.
        backend: Keras' backend, which the run has recorded; empty: none.

    Raises:
        SpecError: the value of a variable is not known.
    """
    environment = engine.env
    if isinstance(environment, Environment):
        if backend and "KERAS_BACKEND" in (*environment, *environment.missing):
            environment["KERAS_BACKEND"] = backend
        unknown = [name for name in environment.missing if name not in environment]
        if unknown:
            names = ", ".join(unknown)
            raise SpecError(
                f"{directory}: the engine of the run had env= with {names}, and values of env= are in no file; set "
                f"{names} in the environment of this process, or give engine="
            )
        environment.missing = ()
        if taken := [name for name in environment if name != "KERAS_BACKEND" or not backend]:
            log.warning("%s: env= of the engine: %s as in this process", directory, ", ".join(taken))
    return engine


def refuse_missing(environment: Mapping[str, str], engine: str) -> None:
    """Raise SpecError where an engine that was unpickled lacks values of its workers' variables."""
    if isinstance(environment, Environment) and environment.missing:
        raise SpecError(
            f"{engine}(env=…): the values of {', '.join(environment.missing)} are not known, as a pickle has none; "
            "make the engine anew"
        )


def worker_environment(name: str, value: Any) -> Environment:
    """Return the argument `name` of an engine as the environment of its workers.

    Raises:
        SpecError: it is not a mapping of text to text, or no process could have such variables.
    """
    return value if isinstance(value, Environment) else Environment(environment(name, value))


def _of_this_process(names: tuple[str, ...]) -> Environment:
    there = {name: os.environ[name] for name in names if name in os.environ}
    return Environment(there, tuple(name for name in names if name not in there))

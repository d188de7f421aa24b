"""The keywords of `select`, `fit` and `resume`: the default, the check and a line of text of each, declared once.

Params of the Estimator have check and text from here. Signatures and docstrings are written out in `api`, and help in
the command line, which imports nothing heavy; `tests/test_public.py` compares signatures with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.checks import flag, instance_of, one_of, path, whole
from hopyard.engines import followers
from hopyard.errors import SpecError
from hopyard.parallel import CHOICES, PARALLEL, Hopper
from hopyard.ports.engines import is_engine
from hopyard.search.kinds import NAMES, SEARCHES
from hopyard.spec import CHECKS, Timeouts
from hopyard.stopping import RULES, Asked, Rule
from hopyard.text import shown, unwritable
from hopyard.training.recipes import wants_context

Check = Callable[[str, Any], Any]
"""(name, value) → the value to use; raises SpecError where that is not allowed."""
REQUIRED = Parameter.empty


class Keyword(NamedTuple):
    """One keyword."""

    default: Any
    check: Check
    text: str = ""
    """For Params; "": there is none."""


def rule_of(stop: Any) -> Rule | None:
    """Return the rule that `stop=` means.

    Raises:
        SpecError: it is neither a rule nor a function.
    """
    if stop is None or isinstance(stop, RULES):
        return stop
    if callable(stop) and not isinstance(stop, type):
        try:
            signature(stop).bind(None, {})
        except TypeError as error:
            raise SpecError(
                f"stop = {shown(stop)} is called with two arguments, a hy.Trial and epoch → metrics: {error}"
            ) from None
        except ValueError:  # one written in C may not say what it takes
            pass
        return Asked()
    raise SpecError(
        "stop must be hy.ASHA(…), hy.Hyperband(…), hy.Median(…), hy.Patience(n) or a function (trial, history) that "
        f"returns whether the trial ends, got {shown(stop)}"
    )


def _stop(name: str, value: Any) -> Any:
    rule_of(value)
    return value


def _recipe(name: str, value: Any) -> Any:
    wants_context(value)
    return value


def _engine(name: str, value: Any) -> Any:
    if isinstance(value, type) or not is_engine(value):
        raise SpecError(
            f"{name} must be hy.Local(…), hy.Hosts([…]), hy.Spark(spark, …), hy.Kubernetes(…) or hy.Inline(), got "
            f"{shown(value)}"
        )
    return value


def _writable(kind: str, name: str, value: Any) -> str:
    text = path(name, value, kind)
    if fault := unwritable(text):
        raise SpecError(f"{name} = {text!a}: {fault}")
    return text


def _directory(name: str, value: Any) -> Any:
    text = "" if value is None else path(name, value)
    _writable("a path or URL", name, text if "://" in text else str(Path(text).absolute()))
    return value


def optional(check: Check, default: Any = None) -> Check:
    """Return the check for which None stands for `default`."""
    return lambda name, value: default if value is None else check(name, value)


def later(name: str, value: Any) -> Any:
    """Accept what is checked together with other keywords."""
    return value


_timeouts = partial(instance_of, Timeouts, "a hy.Timeouts")
_search = partial(instance_of, SEARCHES, NAMES)
_config = partial(instance_of, dict, "a dict")
_store = partial(_writable, "a path or URL")
_parallel = partial(instance_of, PARALLEL, CHOICES)

KEYWORDS = {
    "recipe": Keyword(REQUIRED, _recipe, "recipe(config) or recipe(config, ctx): returns a model that can train"),
    "config": Keyword(REQUIRED, _config, "the one configuration to train, in the place of space and search"),
    "search": Keyword(REQUIRED, _search, "how to search the space"),
    "epochs": Keyword(REQUIRED, CHECKS["epochs"], "passes over the training rows"),
    "metric": Keyword(REQUIRED, later),
    "mode": Keyword(REQUIRED, later),
    "stop": Keyword(None, _stop, "what stops, pauses and promotes trials; by default all train to the last epoch"),
    "enqueue": Keyword(None, later),
    "max_trials": Keyword(None, optional(partial(whole, least=1))),
    "max_time": Keyword(None, CHECKS["max_time"]),
    "goal": Keyword(None, CHECKS["goal"]),
    "engine": Keyword(None, optional(_engine), "an engine in the place of hopyard.Spark(session, workers)"),
    "parallel": Keyword(None, optional(_parallel, Hopper()), "how trials share the workers"),
    "seed": Keyword(0, CHECKS["seed"], "seed of everything random"),
    "directory": Keyword(None, _directory),
    "store": Keyword(None, optional(_store), "path or URL that driver and executors share"),
    "resume": Keyword(False, flag),
    "trust": Keyword(False, flag),
    "exact": Keyword("warn", CHECKS["exact"]),
    "wait": Keyword(True, flag),
    "encrypt": Keyword("between hosts", partial(one_of, allowed=(True, False, "between hosts"))),
    "timeouts": Keyword(None, optional(_timeouts, Timeouts()), "after which a worker is replaced, a hy.Timeouts"),
    "track": Keyword(None, optional(followers.resolved)),
}
"""Keywords of `select` and `fit`. For `fit`, metric and mode default to None."""

RESUME = {name: KEYWORDS[name] for name in ("engine", "wait", "trust")} | {
    "failed": Keyword(False, flag),
    "recipe": Keyword(None, later),
    "epochs": Keyword(None, later),
    "search": Keyword(None, optional(_search)),
    "workers": Keyword(None, later),
    "take_over": Keyword(False, flag),
    "timeouts": Keyword(None, optional(_timeouts)),
    "track": Keyword(None, optional(followers.resolved)),
}


def checked(keywords: Mapping[str, Keyword], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name, those of keywords checked.

    Raises:
        SpecError: one is not allowed.
    """
    return {name: keywords[name].check(name, value) if name in keywords else value for name, value in given.items()}

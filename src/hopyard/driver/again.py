"""Which failed trials are tried again when the user asks for it, and with which recipe.

Those that the system, the store or memory ended, and poison, go on from their last durable State, with nothing counted
against them. Those that the recipe ended would only fail again: they begin anew, with another recipe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.agent.build import wants_context
from hopyard.agent.recipes import joined
from hopyard.code.digest import Unseen, digest
from hopyard.core.events import Retried
from hopyard.core.machine import Machine
from hopyard.driver.run import About
from hopyard.driver.ship import Cargo, dump
from hopyard.errors import SpecError
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)


def chosen(layout: Layout, machine: Machine, recipe: Callable[..., Any] | None) -> tuple[Retried, ...]:
    """The failed trials that are tried again. What is not is said.

    Args:
        layout: of the run, for messages.
        machine: folded up to where its journal ends.
        recipe: with which those begin anew that the recipe ended; None: they stay as they are.

    Raises:
        SpecError: it is no recipe.
    """
    seal = "" if recipe is None else _digest(recipe)
    failed = [trial for trial in machine.trials.values() if trial.status == "failed"]
    users = [trial.id for trial in failed if trial.fault == "user"]
    if users and recipe is None:
        log.warning(
            "%s: trials %s were ended by the recipe's own errors and stay as they are: hy.resume(%r, failed=True, "
            "recipe=…) begins them anew with another recipe",
            *(layout.root, ", ".join(map(str, users)), str(layout.root)),
        )
    again = [trial.id for trial in failed if trial.fault != "user"]
    anew = users if recipe is not None else []
    return (
        *[Retried(at=0.0, trial=number) for number in again],
        *[Retried(at=0.0, trial=number, recipe=seal) for number in anew],
    )


def with_recipe(
    layout: Layout, about: About, cargo: Cargo, recipe: Callable[..., Any], again: tuple[Retried, ...]
) -> tuple[About, Cargo]:
    """What the run needs from now on, written to its directory: the pickle has both recipes, `run.json` names them."""
    anew = [fact for fact in again if fact.recipe]
    if not anew:
        return about, cargo
    name = getattr(recipe, "__name__", type(recipe).__name__)
    cargo = replace(cargo, recipe=joined(cargo.recipe, [fact.trial for fact in anew], recipe))
    about = msgspec.structs.replace(about, recipes={**about.recipes, anew[0].recipe: name})
    write_whole(layout.recipe, dump(cargo, "the run with its other recipe"))
    write_whole(layout.about, msgspec.json.encode(about))
    return about, cargo


def _digest(recipe: Callable[..., Any]) -> str:
    """By its code and values; of its pickle where that cannot be told."""
    if not callable(recipe):
        raise SpecError(f"recipe = {recipe!r}: a function of a config is needed, recipe(config) or recipe(config, ctx)")
    wants_context(recipe)
    try:
        return digest(recipe, imports=False)
    except Unseen:
        return blake3(dump(recipe, "recipe")).hexdigest()

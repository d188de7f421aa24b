"""Which failed trials are tried again when the user asks for it, and with which recipe.

Without another recipe all go on from their last durable States, with nothing counted against them, but for those that
the errors of their recipe ended: they would only fail again. With another recipe those begin anew with which a recipe
may have to do (`core.runs.faults.begins_anew`), and the others go on with the one that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.code.digest import Unseen, digest
from hopyard.core.messages import LIMIT
from hopyard.core.runs.events import Retried
from hopyard.core.runs.faults import begins_anew
from hopyard.core.runs.machine import Machine
from hopyard.driver.pickling import RunInputs, dump
from hopyard.driver.runs.run import About
from hopyard.errors import SpecError
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout
from hopyard.training.recipes import assigned, joined, wants_context

log = logging.getLogger(__name__)


def chosen(layout: Layout, machine: Machine, recipe: Callable[..., Any] | None) -> tuple[Retried, ...]:
    """The failed trials that are tried again. What may be unexpected is said.

    Args:
        layout: of the run, for messages.
        machine: folded up to where its journal ends.
        recipe: another, which some begin anew with; None: there is none.

    Raises:
        SpecError: it is no recipe.
    """
    seal = "" if recipe is None else _digest(recipe)
    failed = [trial for trial in machine.trials.values() if trial.status == "failed"]
    if recipe is None:
        anew = []
        on = [trial.id for trial in failed if trial.fault != "user"]
    else:
        anew = [trial.id for trial in failed if begins_anew(trial)]
        on = [trial.id for trial in failed if not begins_anew(trial)]
    name = "" if recipe is None else f"recipe {_name(recipe)}"
    if not failed:
        unused = f", and {name} is not used" if name else ""
        log.warning("%s: no trial has failed, so none is tried again%s", layout.root, unused)
    elif name:
        parts = [_numbered(anew, "begins", "begin") + f" anew with {name}" if anew else f"{name} is used for no trial"]
        if on:
            parts.append(
                _numbered(on, "goes on from its last State", "go on from their last States")
                + (" with the recipe that it has" if len(on) == 1 else " with the recipe that they have")
                + f", as no recipe is to blame for what ended {'it' if len(on) == 1 else 'them'}"
            )
        log.warning("%s: %s", layout.root, "; ".join(parts))
    elif stays := [trial.id for trial in failed if trial.fault == "user"]:
        log.warning(
            "%s: %s: hy.resume(%r, failed=True, recipe=…) begins %s anew with another recipe",
            layout.root,
            _numbered(
                stays,
                "was ended by errors of its recipe and stays as it is",
                "were ended by errors of their recipe and stay as they are",
            ),
            str(layout.root),
            "it" if len(stays) == 1 else "them",
        )
    return (
        *[Retried(trial=number) for number in on],
        *[Retried(trial=number, recipe=seal) for number in anew],
    )


def _numbered(trials: list[int], one: str, many: str) -> str:
    """The trials and what becomes of them."""
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials))} {one if len(trials) == 1 else many}"


def _name(recipe: Callable[..., Any]) -> str:
    return getattr(recipe, "__name__", type(recipe).__name__)


def with_recipe(
    layout: Layout,
    machine: Machine,
    about: About,
    inputs: RunInputs,
    recipe: Callable[..., Any],
    again: tuple[Retried, ...],
) -> tuple[About, RunInputs]:
    """What the run needs from now on, written to its directory: the pickle has both recipes, `run.json` names them.
    Which trial is trained with which is in the journal: if the run does not come to write that, nothing has changed.

    Raises:
        SpecError: it cannot be pickled, or is too large to be sent.
    """
    anew = [fact for fact in again if fact.recipe]
    if not anew:
        return about, inputs
    inputs = replace(inputs, recipe=joined(inputs.recipe, anew[0].recipe, recipe))
    for_workers(inputs.recipe, machine, again)
    about = msgspec.structs.replace(about, recipes={**about.recipes, anew[0].recipe: _name(recipe)})
    write_whole(layout.recipe, dump(inputs, "the run with its other recipe"))
    write_whole(layout.about, msgspec.json.encode(about))
    return about, inputs


def for_workers(recipe: Callable[..., Any], machine: Machine, again: tuple[Retried, ...]) -> bytes:
    """The pickle that each worker gets: of the recipes that trials are trained with, those of `again` included.

    Raises:
        SpecError: it cannot be pickled, or is too large.
    """
    trials = {trial.id: trial.recipe for trial in machine.trials.values() if trial.recipe}
    trials |= {fact.trial: fact.recipe for fact in again if fact.recipe}
    pickle = dump(assigned(recipe, trials), "recipe")
    if len(pickle) > LIMIT // 2:
        raise SpecError(
            f"recipe: its pickle has {len(pickle):,} bytes, at most {LIMIT // 2:,} are sent to each worker: it "
            "carries data or weights; load them inside the recipe, from a file"
        )
    return pickle


def _digest(recipe: Callable[..., Any]) -> str:
    """By its code and values; of its pickle where that cannot be told."""
    if not callable(recipe):
        raise SpecError(f"recipe must be a function, recipe(config) or recipe(config, ctx), got {recipe!r}")
    wants_context(recipe)
    try:
        return digest(recipe, imports=False)
    except Unseen:
        return blake3(dump(recipe, "recipe")).hexdigest()

"""Which failed trials are tried again when the user asks for it, and with which recipe.

Without another recipe all go on from their last durable States, with nothing counted against them, except those that
errors of their recipe ended: they would only fail again. With another recipe, the trials that a recipe may have made
fail begin anew (`core.runs.faults.begins_anew`), and the others go on with the one that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.code.digest import Unseen, digest
from hopyard.code.pickling import culprit
from hopyard.core.messages import LIMIT
from hopyard.core.runs.events import Event, Retried
from hopyard.core.runs.faults import begins_anew
from hopyard.core.runs.machine import Machine
from hopyard.driver.pickling import RunInputs, dump
from hopyard.driver.runs.about import About
from hopyard.errors import SpecError
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout
from hopyard.text import shown
from hopyard.training.recipes import assigned, joined, wants_context

log = logging.getLogger(__name__)


def trials_to_retry(layout: Layout, machine: Machine, recipe: Callable[..., Any] | None) -> tuple[Retried, ...]:
    """Return the failed trials that are tried again. A warning says what may be unexpected.

    Args:
        layout: layout of the run directory, for messages.
        machine: folded up to where its journal ends.
        recipe: another recipe, with which some begin anew; None: there is none.

    Raises:
        SpecError: `recipe` is no recipe; the run's goal was reached, or its `max_time` is over.
    """
    recipe_digest = "" if recipe is None else _digest(recipe)
    failed = [trial for trial in machine.trials.values() if trial.status == "failed"]
    if failed and machine.search.closed:
        raise SpecError(
            f"{layout.root}: {machine.search.closed}: what is tried again would be stopped at once; start another run, "
            f"with enqueue= for the configurations of the {len(failed)} trials that failed"
            + ("" if machine.ended else "; without failed=True this one goes on to its end")
        )
    if recipe is None:
        restarted = []
        resumed = [trial.id for trial in failed if trial.fault != "user"]
    else:
        restarted = [trial.id for trial in failed if begins_anew(trial)]
        resumed = [trial.id for trial in failed if not begins_anew(trial)]
    name = "" if recipe is None else f"recipe {_name(recipe)}"
    if not failed:
        unused = f", and {name} is not used" if name else ""
        log.warning("%s: no trial has failed, so none is tried again%s", layout.root, unused)
    elif name:
        parts = [
            _numbered(restarted, "begins", "begin") + f" anew with {name}"
            if restarted
            else f"{name} is used for no trial"
        ]
        if resumed:
            parts.append(
                _numbered(resumed, "goes on from its last State", "go on from their last States")
                + (" with the recipe that it has" if len(resumed) == 1 else " with the recipe that they have")
                + f", as no recipe is to blame for what ended {'it' if len(resumed) == 1 else 'them'}"
            )
        log.warning("%s: %s", layout.root, "; ".join(parts))
    elif unchanged := [trial.id for trial in failed if trial.fault == "user"]:
        log.warning(
            "%s: %s: hy.resume(%r, failed=True, recipe=…) begins %s anew with another recipe",
            layout.root,
            _numbered(
                unchanged,
                "was ended by errors of its recipe and stays as it is",
                "were ended by errors of their recipe and stay as they are",
            ),
            layout.shown,
            "it" if len(unchanged) == 1 else "them",
        )
    return (
        *[Retried(trial=number) for number in resumed],
        *[Retried(trial=number, recipe=recipe_digest) for number in restarted],
    )


def _numbered(trials: list[int], one: str, many: str) -> str:
    """Say what becomes of the trials, with their numbers."""
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials))} {one if len(trials) == 1 else many}"


def _name(recipe: Callable[..., Any]) -> str:
    return getattr(recipe, "__name__", type(recipe).__name__)


def with_recipe(
    layout: Layout,
    machine: Machine,
    about: About,
    inputs: RunInputs,
    recipe: Callable[..., Any],
    retries: tuple[Retried, ...],
) -> tuple[About, RunInputs]:
    """Write what the run needs from now on to its directory, and return it: the pickle has both recipes, `run.json`
    names them. The journal says which trial is trained with which: until the run has written that, nothing has changed.

    Raises:
        SpecError: it cannot be pickled, or is too large to be sent.
    """
    restarted = [fact for fact in retries if fact.recipe]
    if not restarted:
        return about, inputs
    inputs = replace(inputs, recipe=joined(inputs.recipe, restarted[0].recipe, recipe))
    for_workers(inputs.recipe, machine, retries)
    about = msgspec.structs.replace(about, recipes={**about.recipes, restarted[0].recipe: _name(recipe)})
    write_whole(layout.recipe, dump(inputs, "the run with its other recipe"), private=True)
    write_whole(layout.about, msgspec.json.encode(about))
    return about, inputs


def for_workers(recipe: Callable[..., Any], machine: Machine, changes: Sequence[Event]) -> bytes:
    """Return the pickle that each worker gets: the recipes that trials are trained with, those of `changes` included.

    Raises:
        SpecError: it cannot be pickled, or is too large.
    """
    trials = {trial.id: trial.recipe for trial in machine.trials.values() if trial.recipe}
    trials |= {fact.trial: fact.recipe for fact in changes if isinstance(fact, Retried) and fact.recipe}
    pickle = dump(assigned(recipe, trials), "recipe")
    if len(pickle) > LIMIT // 2:
        raise SpecError(
            f"recipe: its pickle has {len(pickle):,} bytes, at most {LIMIT // 2:,} are sent to each worker: it "
            f"carries data or weights{culprit(recipe, len(pickle))}; load them inside the recipe, from a file"
        )
    return pickle


def value_digest(value: Any) -> str:
    """Return its digest; empty: none. What bodies import does not count: no pickle holds it, workers import it anew."""
    try:
        return digest(value, imports=False)
    except Unseen:
        return ""


def _digest(recipe: Callable[..., Any]) -> str:
    """Return the digest of its code and values, or of its pickle where it has none."""
    if not callable(recipe):
        raise SpecError(f"recipe must be a function, recipe(config) or recipe(config, ctx), got {shown(recipe)}")
    wants_context(recipe)
    try:
        return digest(recipe, imports=False)
    except Unseen:
        return blake3(dump(recipe, "recipe")).hexdigest()

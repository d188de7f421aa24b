"""What the user changes of a run that goes on: timeouts, failed trials that are tried again, more epochs, more trials.

More of a run gives what a run with as much from the start gives: which partition a trial is at, and what it draws at
random, depends on its number and epoch alone, and a search gives each trial its configuration by its number.

Failed trials go on from their last durable States, with nothing counted against them, except those that errors of their
recipe ended: they would only fail again. With another recipe, the trials that a recipe may have made fail begin anew
(`core.runs.faults.rules.begins_anew`), and the others go on with the one that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.checks import whole
from hopyard.code.digest import Unseen, digest
from hopyard.code.pickling import culprit
from hopyard.core.messages import LIMIT
from hopyard.core.runs.events import Event, Extended, Retried
from hopyard.core.runs.faults.rules import begins_anew
from hopyard.core.runs.machine import Machine
from hopyard.driver.pickling import RunInputs, dump
from hopyard.driver.runs.about import About
from hopyard.errors import SpecError
from hopyard.ports.searches import LearningSampler
from hopyard.search.kinds import Enqueued, Search, after_the_same, learns, open_sampler
from hopyard.spec import RunSpec, Timeouts
from hopyard.store.layout import Layout
from hopyard.store.urls.mirror import publish
from hopyard.text import shown
from hopyard.training.recipes import assigned, joined, wants_context

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changes:
    """What the user changes.

    Attributes:
        timeouts: those from now on; None: as they were.
        failed: whether failed trials are tried again.
        recipe: the recipe with which some of them begin anew; None: their own.
        epochs: epochs of each trial from now on; None: as many as before.
        search: proposes the run's trials and more; None: as before.
        workers: workers of a gang from now on; None: as many as before.
        copies: homes of each partition from now on, as in Resumed; -1: as many as before.
        track: the trackers that followers bring the run to from now on; None: as before.
    """

    timeouts: Timeouts | None = None
    failed: bool = False
    recipe: Callable[..., Any] | None = None
    epochs: int | None = None
    search: Search | None = None
    workers: int | None = None
    copies: int = -1
    track: tuple[str, ...] | None = None

    @property
    def extend(self) -> bool:
        """Whether there is to be more of the run."""
        return self.epochs is not None or self.search is not None


def extension(layout: Layout, machine: Machine, inputs: RunInputs, changes: Changes) -> Extended:
    """Return what is added to the run.

    Args:
        layout: layout of the run directory, for messages.
        machine: folded up to where its journal ends.
        inputs: those that the run was started with.
        changes: more epochs, another search, or both.

    Raises:
        SpecError: there are fewer epochs than the run has, or as many and no more trials; the search learns, or does
            not begin with the run's trials; a recipe read `ctx.epochs`; every trial failed.
    """
    spec, trials = machine.spec, machine.trials
    limited = spec.stop is not None or bool(machine.search.closed)
    epochs = spec.epochs if changes.epochs is None else whole("epochs", changes.epochs)
    if epochs < spec.epochs or (epochs == spec.epochs and changes.search is None):
        over = machine.ended and not changes.failed
        text = "it has ended, and there is nothing to add" if over else "leave epochs= out to go on with it"
        more = "" if limited or learns(inputs.search) else "; give more, or a search= of more trials"
        raise SpecError(f"epochs = {epochs}: {layout.place} has {spec.epochs} epochs already: {text}{more}")
    if limited:
        what = "stop=" if spec.stop is not None else "a budget that is spent"
        raise SpecError(
            f"{layout.place}: a run with {what} cannot be given more epochs or trials, as its decisions were taken "
            "without them; start another run, with enqueue= for the configurations that were good"
        )
    if epochs > spec.epochs and learns(inputs.search):
        raise SpecError(
            f"epochs = {epochs}: what {shown(inputs.search)} proposed for {layout.place} follows from results after "
            f"{spec.epochs} epochs, so a run with {epochs} from the start has other trials; start another run, with "
            "enqueue= for the configurations that were good"
        )
    total = spec.trials
    if changes.search is not None:
        if learns(changes.search) or learns(inputs.search):
            raise SpecError(
                f"search = {shown(changes.search)}: a search that learns proposes from what came before, so nobody can "
                "tell whether it begins with the run's trials; start another run, with enqueue= for what was good"
            )
        search = after_the_same(changes.search, inputs.search)
        first = len(search.configs) if isinstance(search, Enqueued) else 0
        sampler = open_sampler(search, inputs.space, spec.seed, spec.modes)
        assert not isinstance(sampler, LearningSampler)
        total = sampler.total
        beside = f" (after the {first} of enqueue=, which stay)" if first else ""
        if total is not None and total < len(trials):
            count, before = total - first, len(trials) - first
            raise SpecError(
                f"search proposes {count} trials, {layout.place} has {before}{beside}, which count too: for {count} "
                f"more, hy.Random({before + count}) for example"
            )
        for trial in trials.values():
            if (config := sampler.ask(trial.id)) != trial.config:
                raise SpecError(
                    f"search: its trial {trial.id - first} is {config}, that of {layout.place}{beside} is "
                    f"{trial.config}; a search that adds trials must begin with those of the run, as hy.Random with a "
                    "larger number does"
                )
    if epochs == spec.epochs and total == spec.trials:
        raise SpecError(
            f"{layout.place} has {spec.epochs} epochs and {len(trials)} trials already: give more epochs=, a search= "
            "of more trials, or neither"
        )
    read = [trial.id for trial in trials.values() if trial.model is not None and trial.model.reads_epochs]
    if epochs > spec.epochs and read:
        raise SpecError(
            f"epochs = {epochs}: the recipe of trial {read[0]} of {layout.place} read ctx.epochs, which was "
            f"{spec.epochs}: a schedule for as many gives other results than one for the new number; start another run"
        )
    if total == spec.trials and not changes.failed and all(trial.status == "failed" for trial in trials.values()):
        raise SpecError(f"epochs = {epochs}: every trial of {layout.place} failed; failed=True tries them again")
    return Extended(epochs=epochs, trials=total)


def members_of(layout: Layout, spec: RunSpec, changes: Changes) -> int:
    """Return the number of workers that a gang has from now on; 0: as many as before.

    Raises:
        SpecError: the run has no gangs, or its States belong to as many members as it had.
    """
    if changes.workers is None:
        return 0
    members, gang = whole("workers", changes.workers, 1), spec.gang
    if gang is None:
        raise SpecError(
            f"workers = {members}: {layout.place} trains each net with one worker, and so has no number of workers "
            f"that its results depend on; for {members} processes give engine=hy.Local(workers={members})"
        )
    if gang.exchange == "parameters" and gang.inner == "keep" and members != gang.size > 1:
        raise SpecError(
            f'workers = {members}: with LocalSGD(inner="keep") each of the {gang.size} workers of {layout.place} has '
            f"an optimizer of its own in every State, so others cannot go on from it; go on with {gang.size} workers"
        )
    return 0 if members == gang.size else members


def with_search(layout: Layout, about: About, inputs: RunInputs, search: Search) -> tuple[About, RunInputs]:
    """Write the search to the run directory, after what was enqueued before the one it replaces, and return it with the
    rest of what the run needs from now on. Until the journal has the `Extended`, it proposes nothing."""
    inputs = replace(inputs, search=after_the_same(search, inputs.search))
    about = msgspec.structs.replace(about, digests={**about.digests, "search": value_digest(inputs.search)})
    publish(layout.recipe, dump(inputs, "the run with its other search"), private=True)
    publish(layout.about, msgspec.json.encode(about))
    return about, inputs


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
            f"{layout.place}: {machine.search.closed}: what is tried again would be stopped at once; start another "
            f"run, with enqueue= for the configurations of the {len(failed)} trials that failed"
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
        log.warning("%s: no trial has failed, so none is tried again%s", layout.place, unused)
    elif name:
        parts = [f"{_numbered(restarted)}: begun anew with {name}" if restarted else f"{name} is used for no trial"]
        if resumed:
            parts.append(f"{_numbered(resumed)}: continued from the last State, as no recipe is to blame")
        log.warning("%s: %s", layout.place, "; ".join(parts))
    elif unchanged := [trial.id for trial in failed if trial.fault == "user"]:
        log.warning(
            "%s: %s: left as before, ended by errors of the recipe; hy.resume(%r, failed=True, recipe=…) begins anew "
            "with another recipe",
            *(layout.place, _numbered(unchanged), layout.shown),
        )
    return (
        *[Retried(trial=number) for number in resumed],
        *[Retried(trial=number, recipe=recipe_digest) for number in restarted],
    )


def _numbered(trials: Sequence[int]) -> str:
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials))}"


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
    publish(layout.recipe, dump(inputs, "the run with its other recipe"), private=True)
    publish(layout.about, msgspec.json.encode(about))
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

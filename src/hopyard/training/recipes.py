"""Recipes of one run: the first, and those with which failed trials began anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.errors import SpecError

Recipe = Callable[..., Any]


class Recipes:
    """Stands where a recipe does: each trial has the one that it is trained with.

    Args:
        first: of all trials that are not named.
        others: digest → recipe.
        trials: trial → digest of its recipe. Empty in a run directory, where the journal has it.
    """

    def __init__(self, first: Recipe, others: Mapping[str, Recipe], trials: Mapping[int, str]) -> None:
        self.first = first
        self.others = dict(others)
        self.trials = dict(trials)

    def __call__(self, config: dict[str, Any], ctx: Any) -> Any:
        """What the recipe of trial `ctx.trial` gives."""
        recipe = recipe_of(self, ctx.trial)
        return recipe(config, ctx) if wants_context(recipe) else recipe(config)


def recipe_of(recipe: Recipe, trial: int) -> Recipe:
    """The recipe that this trial is trained with."""
    if not isinstance(recipe, Recipes) or trial not in recipe.trials:
        return all_of(recipe)[0]
    return recipe.others[recipe.trials[trial]]


def joined(recipe: Recipe, digest: str, other: Recipe) -> Recipes:
    """The same recipes, and another one, which no trial has yet."""
    known = recipe if isinstance(recipe, Recipes) else Recipes(recipe, {}, {})
    return Recipes(known.first, {**known.others, digest: other}, known.trials)


def assigned(recipe: Recipe, trials: Mapping[int, str]) -> Recipe:
    """The recipes that trials are trained with, and no others.

    Args:
        recipe: of a run directory.
        trials: trial → digest of its recipe, of those that do not have the first one.
    """
    if not isinstance(recipe, Recipes):
        return recipe
    trials = {**recipe.trials, **trials}
    return Recipes(recipe.first, {digest: recipe.others[digest] for digest in trials.values()}, trials)


def all_of(recipe: Recipe) -> list[Recipe]:
    """Every recipe, the first one first."""
    return [recipe.first, *recipe.others.values()] if isinstance(recipe, Recipes) else [recipe]


def wants_context(recipe: Callable[..., Any]) -> bool:
    """Whether it is `recipe(config, ctx)` rather than `recipe(config)`.

    Raises:
        SpecError: it takes something else.
    """
    if not callable(recipe):
        raise SpecError(f"recipe must be a function, recipe(config) or recipe(config, ctx), got {recipe!r}")
    try:
        parameters = inspect.signature(recipe).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    if len(needed) > 2 or (not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        name = getattr(recipe, "__name__", repr(recipe))
        raise SpecError(f"{name}{inspect.signature(recipe)}: a recipe takes (config) or (config, ctx)")
    return len(needed) == 2

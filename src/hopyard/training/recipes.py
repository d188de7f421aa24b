"""The recipes of one run: the first, and those with which failed trials were restarted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.errors import SpecError
from hopyard.text import shown

Recipe = Callable[..., Any]

_NETS = {("torch", "Module"): "hy.torch.Model(module, optimizer, loss)", ("keras", "Model"): "it compiled"}
"""Package and class of a framework's nets → what a recipe returns of one."""


class Recipes:
    """Takes the place of a recipe, and calls for each trial the recipe that the trial is trained with.

    Args:
        first: the recipe of all trials that are not in `trials`.
        others: digest → recipe.
        trials: trial → digest of its recipe. Empty in a run directory, where the journal has it.
    """

    def __init__(self, first: Recipe, others: Mapping[str, Recipe], trials: Mapping[int, str]) -> None:
        self.first = first
        self.others = dict(others)
        self.trials = dict(trials)

    def __call__(self, config: dict[str, Any], ctx: Any) -> Any:
        """Calls the recipe of trial `ctx.trial`."""
        recipe = recipe_of(self, ctx.trial)
        return recipe(config, ctx) if wants_context(recipe) else recipe(config)


def recipe_of(recipe: Recipe, trial: int) -> Recipe:
    """Return the recipe that this trial is trained with."""
    if not isinstance(recipe, Recipes) or trial not in recipe.trials:
        return all_of(recipe)[0]
    return recipe.others[recipe.trials[trial]]


def joined(recipe: Recipe, digest: str, other: Recipe) -> Recipes:
    """Return the same recipes and another one, which no trial uses yet."""
    recipes = recipe if isinstance(recipe, Recipes) else Recipes(recipe, {}, {})
    return Recipes(recipes.first, {**recipes.others, digest: other}, recipes.trials)


def assigned(recipe: Recipe, trials: Mapping[int, str]) -> Recipe:
    """Return the recipes that trials are trained with, and no others.

    Args:
        recipe: the recipe of a run directory.
        trials: trial → digest of its recipe, for trials that do not have the first one.
    """
    if not isinstance(recipe, Recipes):
        return recipe
    trials = {**recipe.trials, **trials}
    return Recipes(recipe.first, {digest: recipe.others[digest] for digest in trials.values()}, trials)


def all_of(recipe: Recipe) -> list[Recipe]:
    """Return every recipe, the first one first."""
    return [recipe.first, *recipe.others.values()] if isinstance(recipe, Recipes) else [recipe]


def wants_context(recipe: Callable[..., Any]) -> bool:
    """Whether the recipe is `recipe(config, ctx)` rather than `recipe(config)`.

    Raises:
        SpecError: it has other parameters.
    """
    for kind in type(recipe).__mro__:
        if returned := _NETS.get((kind.__module__.partition(".")[0], kind.__qualname__)):
            raise SpecError(
                f"recipe is a model, a {type(recipe).__name__}: give a function recipe(config) that builds one and "
                f"returns {returned}"
            )
    if not callable(recipe):
        raise SpecError(f"recipe must be a function, recipe(config) or recipe(config, ctx), got {shown(recipe)}")
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

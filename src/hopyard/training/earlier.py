"""Finds recipes that return what they returned before: a net that was built outside of the recipe.

Such a net carries what one trial learned into the next, so that results would depend on which worker trains what. It is
known by its parameters: those of a net that the recipe builds are new at each call. Earlier ones are kept weakly, which
costs no memory.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

from hopyard.errors import SpecError
from hopyard.frameworks import runtimes


class EarlierModels:
    """What the recipe of one worker returned so far. Owner of the references to it."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}
        """Identity → a Trainable, or parameters of one."""

    @property
    def alive(self) -> bool:
        """Whether something of it still lives, as what was built outside of the recipe does."""
        return any(reference() is not None for reference in self._references.values())

    def add(self, trainable: Any) -> None:
        """Note what the recipe returned.

        Raises:
            SpecError: it is, or trains, what the recipe returned before.
        """
        parts = _parts(trainable)
        for part in parts:
            reference = self._references.get(id(part))
            if reference is not None and reference() is part:
                raise SpecError(
                    "the recipe returns the same parameters each time it is called, so that a trial would go on with "
                    "the weights of another: build the net (and the optimizer) inside the recipe, or "
                    "copy.deepcopy(net) there"
                )
        self._references = {key: each for key, each in self._references.items() if each() is not None}
        for part in parts:
            with suppress(TypeError):  # a class with __slots__
                self._references[id(part)] = weakref.ref(part)


def _parts(trainable: Any) -> list[Any]:
    """Return the Trainable, and what training changes in the nets that it has for attributes."""
    frameworks = runtimes().values()
    attributes = getattr(trainable, "__dict__", {}).values()
    return [trainable, *(part for value in attributes for each in frameworks for part in each.parameters(value))]

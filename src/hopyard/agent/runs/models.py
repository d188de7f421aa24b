"""The built models of one worker: which trials share them, and which State each holds now."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import msgspec

from hopyard import meter
from hopyard.errors import SpecError
from hopyard.frameworks import runtimes
from hopyard.frameworks.tree import capture, restore
from hopyard.ports.training import SupportsFrozen
from hopyard.spec import Config, ModelInfo, Ref, Unit
from hopyard.training.build import Built, Plan, build

BUILT = 32
"""Built models that a worker keeps; the least recently used one is dropped first."""
BUILT_BYTES = 2 << 30
"""Bytes of States of the models that it keeps, and of what is frozen in them; a model in memory is about as large
again."""


class BuiltModels:
    """Owner of the models that a worker has built.

    Args:
        plan: recipe, data and run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.built: OrderedDict[str, Built] = OrderedDict()
        """Built models by their sharing key, or by their trial where there is none; least recently used first."""
        self._returned: dict[int, weakref.ref[Any]] = {}
        """Identity → what a recipe returned so far, or parameters of it."""
        self._infos: dict[int, ModelInfo] = {}
        """Trial → what its recipe returned."""
        self._loaded: dict[str, tuple[Ref, int]] = {}
        """Key → the State that the built model holds now, and whose part of it."""
        self._bytes: dict[str, int] = {}
        """Key → the bytes of a State of the built model, and of what is frozen in it."""

    def call_recipe(self, trial: int, config: Config) -> Built:
        """Return a model that is new.

        Raises:
            SpecError: the recipe returns what it returned before, or trains it: a net that was built outside of it.
                Such a net carries what one trial learned into the next, so that results would depend on which worker
                trains what.
        """
        built = build(self._plan, trial, config)
        parts = _parts(built.trainable)  # parameters of a net that the recipe builds are new at each call
        for part in parts:
            reference = self._returned.get(id(part))
            if reference is not None and reference() is part:
                raise SpecError(
                    "the recipe returns the same parameters each time it is called, so that a trial would go on with "
                    "the weights of another: build the net (and the optimizer) inside the recipe, or "
                    "copy.deepcopy(net) there"
                )
        self._returned = {key: each for key, each in self._returned.items() if each() is not None}
        for part in parts:
            with suppress(TypeError):  # a class with __slots__
                self._returned[id(part)] = weakref.ref(part)
        return built

    @property
    def has_earlier(self) -> bool:
        """True while something that a recipe returned is alive, as what was built outside of it is."""
        return any(reference() is not None for reference in self._returned.values())

    def keep(self, trial: int, built: Built) -> None:
        """Keep a model that trials share, unless there is one: its compiled steps are worth keeping."""
        if built.sharing_key is not None:
            self.built.setdefault(built.sharing_key or f"trial {trial}", built)

    def build(self, trial: int, config: Config, first: bool) -> Built:
        """Return the trial's model: newly built, or one with the same sharing key that is built (and compiled) already.
        `first`: with the State of a fresh build; else with any State."""
        meter.enter("build")
        fresh = self.call_recipe(trial, config)
        self._infos[trial] = info_of(fresh)
        key = self._key(trial)
        existing = None if fresh.sharing_key is None else self.built.get(key)
        if existing is None:
            self.built[key] = fresh
            self._loaded.pop(key, None)
        elif first:
            self._loaded.pop(key, None)
            restore(existing.trainable, capture(fresh.trainable))
        self.built.move_to_end(key)
        self._evict()
        built = existing or fresh
        return Built(built.trainable, fresh.batch_size, built.steps, fresh.context)

    def find(self, unit: Unit) -> Built | None:
        """Return a built model for the unit's trial, if there is one; it holds any State. The recipe need not be called
        for that where the driver knows what it returns."""
        info = self._infos.get(unit.trial, unit.model)
        if info is None:
            return None
        self._infos[unit.trial] = info
        key = self._key(unit.trial)
        if key not in self.built:
            return None
        self.built.move_to_end(key)
        built = self.built[key]
        context = None if info.sharing_key else built.context  # a shared one may be that of another trial
        return Built(built.trainable, info.batch_size, built.steps, context)

    def news(self, unit: Unit, built: Built) -> ModelInfo | None:
        """Return what the recipe returned, if the driver did not know it when it dispatched the unit. A model may ask
        for the number of epochs only while it trains."""
        if unit.model is not None and (unit.model.reads_epochs or not built.reads_epochs):
            return None
        return msgspec.structs.replace(self._infos[unit.trial], reads_epochs=built.reads_epochs)

    def holds(self, trial: int, ref: Ref, part: int) -> bool:
        """Return whether the trial's model holds this State now, with the part of the member of rank `part`."""
        return self._loaded.get(self._key(trial)) == (ref, part)

    def hold(self, trial: int, ref: Ref, part: int, size: int | None = None) -> None:
        """Record that the trial's model holds this State. `size`: its bytes; None: as before."""
        key = self._key(trial)
        self._loaded[key] = ref, part
        if size is not None:
            self._bytes[key] = size + (frozen_bytes(self.built[key].trainable) if key in self.built else 0)
            self._evict()

    def forget(self, trial: int) -> None:
        """Record that the trial's model holds no State any more."""
        if trial in self._infos:
            self._loaded.pop(self._key(trial), None)

    def _key(self, trial: int) -> str:
        """Return the key of the trial's built model."""
        return self._infos[trial].sharing_key or f"trial {trial}"

    def _evict(self) -> None:
        """Drop the least recently used models beyond the limits."""
        while len(self.built) > 1 and (
            len(self.built) > BUILT or sum(self._bytes.get(key, 0) for key in self.built) > BUILT_BYTES
        ):
            oldest, _ = self.built.popitem(last=False)
            self._loaded.pop(oldest, None)
            self._bytes.pop(oldest, None)


def frozen_bytes(trainable: Any) -> int:
    """Return the bytes that States of a Trainable leave out, as they are frozen."""
    return trainable.frozen_bytes() if isinstance(trainable, SupportsFrozen) else 0


def info_of(built: Built) -> ModelInfo:
    """Return what is sent to the driver, and by it to other workers, about a model that the recipe returned."""
    return ModelInfo(built.sharing_key or "", built.batch_size, built.reads_epochs)


def _parts(trainable: Any) -> list[Any]:
    """Return the Trainable, and what training changes in the nets that it has for attributes."""
    frameworks = runtimes().values()
    attributes = getattr(trainable, "__dict__", {}).values()
    declared = trainable.declared_state() if isinstance(trainable, SupportsFrozen) else []
    parts = [part for value in attributes for each in frameworks for part in each.parameters(value)]
    return [trainable, *declared, *parts]

"""Builds a Trainable from a recipe and a configuration.

The recipe is the user's, and so whatever it raises passes unchanged. Everything random in it is seeded by (run seed,
trial) before it is called, so that the first weights of a trial are the same wherever it is built.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hopyard.checks import whole
from hopyard.code.pickling import imports
from hopyard.core.runs.order import build_seed
from hopyard.data.manifest import ArrayInfo, Manifest, Shape
from hopyard.errors import SpecError
from hopyard.frameworks import FRAMEWORKS, imported, runtime, runtimes, seed_all
from hopyard.logged import Collector
from hopyard.meter import StepMeter
from hopyard.ports.training import SupportsDevice, SupportsEpochEnd, SupportsSchema, SupportsSharing
from hopyard.spec import Config, RecipeContext, RunSpec, copied
from hopyard.training.recipes import all_of, recipe_of, wants_context

BATCH_SIZE = 32
"""Used when neither the recipe nor its configuration sets one, as in Keras."""

NEEDED = ("state", "load", "train", "evaluate")


@dataclass(frozen=True, slots=True)
class Plan:
    """What building needs in addition to the configuration."""

    recipe: Callable[..., Any]
    manifest: Manifest
    spec: RunSpec
    device: str = "cpu"
    threads: int = 1
    """Threads of the frameworks that take a number; 0: unchanged, in a process that is not the run's."""
    collector: Collector = field(default_factory=Collector, compare=False)
    """Takes what the recipes log while the worker of this plan trains."""


@dataclass(slots=True)
class Built:
    """A trial's model in memory."""

    trainable: Any
    batch_size: int
    steps: StepMeter = field(default_factory=StepMeter)
    """Its steps that have run once, and so are compiled."""
    context: RecipeContext | None = None
    """What its recipe received; None: nothing, or the recipe was not called for it."""

    @property
    def reads_epochs(self) -> bool:
        """Whether the recipe, or what it made, has asked for the number of epochs."""
        return self.context is not None and self.context.epochs_read

    @property
    def sharing_key(self) -> str | None:
        """The key of `ports.training.SupportsSharing`; None when the model does not support sharing."""
        return self.trainable.sharing_key if isinstance(self.trainable, SupportsSharing) else None

    def end_epoch(self) -> None:
        """Tells the model that an epoch ended, if it supports that."""
        if isinstance(self.trainable, SupportsEpochEnd):
            self.trainable.end_epoch()


def warm() -> None:
    """Does what the imported frameworks put off until a first step, while there is nothing else to do."""
    for each in runtimes().values():
        each.warm()


def foresee(recipe: Callable[..., Any]) -> None:
    """Imports the frameworks that the recipe names, so that a worker does it before it is ready, not in its first unit.
    An import that fails here is left for the recipe to raise."""
    for framework in needed(recipe):
        with suppress(ImportError, ValueError):
            runtime(framework).prepare()


def needed(recipe: Callable[..., Any]) -> tuple[str, ...]:
    """Return the frameworks that the recipe names, and that are installed."""
    names = frozenset[str]().union(*[named(each) for each in all_of(recipe)])
    return tuple(name for name in FRAMEWORKS if name in names and importlib.util.find_spec(name) is not None)


def required(recipe: Callable[..., Any]) -> tuple[str, ...]:
    """Return those of `needed` without which the recipe does not load, as its pickle imports them. The others occur in
    its code, which may do without them: an import in one branch of it, say."""
    packages = frozenset[str]().union(*[imports(each) for each in all_of(recipe)])
    return tuple(name for name in needed(recipe) if name in packages)


def named(recipe: Callable[..., Any]) -> frozenset[str]:
    """Return the frameworks that occur in the recipe's code, or in that of functions and classes that it names."""
    pending: list[Any] = [recipe]
    names: set[str] = set()
    visited: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, FunctionType):
            names |= (code_names := _names(value.__code__))
            pending += _referenced(value, code_names)
        elif isinstance(value, MethodType):
            pending.append(value.__func__)
        elif isinstance(value, partial):
            pending.append(value.func)
        elif isinstance(value, ModuleType):  # `import keras as k`
            names.add(value.__name__.partition(".")[0])
        elif isinstance(value, type):
            if not _installed(value):
                pending += vars(value).values()
        elif callable(value):
            pending.append(type(value))
    return frozenset(names.intersection(FRAMEWORKS))


def _names(code: CodeType) -> set[str]:
    """Return the names in a function's code and in that of its inner functions."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    dotted = {name.partition(".")[0] for name in code.co_names}  # import keras.layers
    return dotted.union(code.co_names, *inner)


def _referenced(function: FunctionType, names: set[str]) -> list[Any]:
    """Return the modules, functions and classes that a function's code names: in its module, in enclosing functions,
    in modules of the user."""
    if _installed(function):
        return []
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            values.append(cell.cell_contents)
    for module in [value for value in values if isinstance(value, ModuleType)]:
        if not _installed(module):
            values += [getattr(module, name) for name in names if hasattr(module, name)]
    return [value for value in values if isinstance(value, (ModuleType, FunctionType, type))]


def _installed(value: Any) -> bool:
    """Whether it is not the user's own code, and so names no framework that the user's code does not name too."""
    name = value.__name__ if isinstance(value, ModuleType) else str(value.__module__)
    root = name.partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return (root in sys.stdlib_module_names and root != "__main__") or root == "hopyard" or "site-packages" in file


def install(plan: Plan) -> None:
    """Sets threads and determinism of every framework that is imported already."""
    for each in runtimes().values():
        each.install(plan.spec.exact, plan.threads)


_PROCESS_LOCK = threading.RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """A context manager that undoes what a unit changes in the user's own process: seeds, threads, determinism.

    One thread at a time: all of these belong to the whole process, so two runs in one process that took turns inside it
    would draw from each other's seeds, and restore each other's settings.
    """
    import numpy as np

    with _PROCESS_LOCK:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        snapshots = {framework: each.snapshot() for framework, each in runtimes().items()}
        try:
            yield
        finally:
            for framework, each in runtimes().items():  # the recipe may have imported more
                each.restore(snapshots.get(framework))
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def build(plan: Plan, trial: int, config: Config) -> Built:
    """Builds the model of this trial.

    Raises:
        SpecError: the recipe returns nothing that can train.
        Exception: whatever the recipe raises.
    """
    seed = build_seed(plan.spec.seed, trial)
    recipe, manifest = recipe_of(plan.recipe, trial), plan.manifest
    takes_context = wants_context(recipe)
    names = named(recipe)
    while True:
        before = imported()
        install(plan)
        seed_all(seed)
        for framework in before:
            runtime(framework).before_recipe(seed, framework in names)
        context = _context(plan, trial, seed) if takes_context else None
        arguments = [copied(config)] if context is None else [copied(config), context]
        trainable = _call_recipe(recipe, arguments)
        for framework in before:
            runtime(framework).after_recipe()
        if imported() == before:
            break  # else it imported its framework itself, too late to be seeded: build once more
    install(plan)  # again: the recipe may have imported torch's compiler, which has a flag of its own
    for framework in before:
        trainable = runtime(framework).adopt(trainable)
    missing = [name for name in NEEDED if not callable(getattr(trainable, name, None))]
    if missing:
        raise SpecError(_untrainable(trainable, missing))
    if isinstance(trainable, SupportsSchema):
        trainable.set_schema(*(_shapes(infos) for infos in (manifest.inputs, manifest.targets)))
    if plan.device != "cpu" and isinstance(trainable, SupportsDevice):
        trainable.to_device(plan.device)
    size = getattr(trainable, "batch_size", None)
    if size is None:
        size = config.get("batch_size", BATCH_SIZE)
    return Built(trainable, whole("batch_size", size, 1), context=context)


def _context(plan: Plan, trial: int, seed: int) -> RecipeContext:
    """Return what the recipe of this trial receives in addition to its configuration."""
    spec, manifest = plan.spec, plan.manifest
    labels = manifest.label_values
    classes = len(labels) if isinstance(labels, list) else manifest.classes
    rows = tuple([part.rows for part in manifest.train])
    return RecipeContext(
        *(plan.device, _shapes(manifest.inputs), classes, seed, trial, rows, spec.epochs, spec.own_batches),
        categories=manifest.categories,
        _log=plan.collector.log,
    )


def _shapes(infos: Mapping[str, ArrayInfo]) -> dict[str, tuple[Shape, str]]:
    return {name: (tuple(info.shape), info.dtype) for name, info in infos.items()}


def _call_recipe(recipe: Callable[..., Any], arguments: list[Any]) -> Any:
    """Calls the recipe; a framework that is not installed is reported by its name."""
    try:
        return recipe(*arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in FRAMEWORKS or importlib.util.find_spec(package) is not None:
            raise
        advice = ", or choose a backend that is there: hy.Local(env={'KERAS_BACKEND': 'torch'})"
        raise SpecError(
            f"the recipe needs {package}, which is not installed where the workers run ({sys.executable}): "
            f"pip install 'hopyard[{package}]'{advice if 'keras' in sys.modules or package == 'tensorflow' else ''}"
        ) from error


def _untrainable(value: Any, missing: list[str]) -> str:
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(value).__mro__):
        return (
            f"the recipe returned {_described(value)}, a model of Keras 2, and must return one of Keras 3. Say "
            "`import keras` in the place of tf_keras, and leave TF_USE_LEGACY_KERAS out of the environment"
        )
    return (
        f"the recipe returned {_described(value)}, which cannot train (no {', '.join(missing)}): return a compiled "
        "keras.Model, a hy.torch.Model(module, optimizer=…, loss=…), or an object with the methods of hy.Trainable"
    )


def _described(value: Any) -> str:
    return (
        "None (is a `return` missing?)" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
    )

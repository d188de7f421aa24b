"""From a recipe and a configuration to something that can train.

The recipe is the user's; whatever it raises is theirs to see. Everything random in it is seeded by (run seed, trial)
before it is called, so that the first weights of a trial are the same wherever it is built.
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
from hopyard.core.runs.order import build_seed
from hopyard.data.manifest import ArrayInfo, Manifest
from hopyard.errors import SpecError
from hopyard.frameworks import FRAMEWORKS, imported, runtime, runtimes, seed_all
from hopyard.meter import Steps
from hopyard.ports import SupportsDevice, SupportsEpochEnd, SupportsSchema, SupportsSharing
from hopyard.spec import Config, Context, RunSpec
from hopyard.training.recipes import all_of, recipe_of, wants_context

BATCH_SIZE = 32
"""When neither the recipe nor its configuration says, as in Keras."""

NEEDED = ("state", "load", "train", "evaluate")


@dataclass(frozen=True, slots=True)
class Plan:
    """What building needs beside the configuration."""

    recipe: Callable[..., Any]
    manifest: Manifest
    spec: RunSpec
    device: str = "cpu"
    threads: int = 1
    """Of the frameworks, where they can be told; 0: as they are, in a process that is not the run's."""


@dataclass(slots=True)
class Built:
    """A trial's model as it stands in memory."""

    trainable: Any
    batch_size: int
    steps: Steps = field(default_factory=Steps)
    """Which of its steps were made once, and compile no more."""

    @property
    def sharing_key(self) -> str | None:
        """What `ports.SupportsSharing` says; None when the model is not of that kind."""
        return self.trainable.sharing_key if isinstance(self.trainable, SupportsSharing) else None

    def end_epoch(self) -> None:
        """Tell the model, if it wants to know."""
        if isinstance(self.trainable, SupportsEpochEnd):
            self.trainable.end_epoch()


def warm() -> None:
    """What the imported frameworks put off until a first step, done while there is nothing else to do."""
    for one in runtimes().values():
        one.warm()


def foresee(recipe: Callable[..., Any]) -> None:
    """Import the frameworks that the recipe names, so that a worker that is ready has them, not its first unit. What
    cannot be imported is the recipe's to complain of."""
    names = frozenset[str]().union(*[named(one) for one in all_of(recipe)])
    for framework in FRAMEWORKS:
        if framework in names and importlib.util.find_spec(framework) is not None:
            with suppress(ImportError, ValueError):
                runtime(framework).prepare()


def named(recipe: Callable[..., Any]) -> frozenset[str]:
    """The frameworks that occur in the recipe's code, or in that of the functions and classes that it names."""
    waiting: list[Any] = [recipe]
    names: set[str] = set()
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            names |= (inside := _names(value.__code__))
            waiting += _reached(value, inside)
        elif isinstance(value, MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, partial):
            waiting.append(value.func)
        elif isinstance(value, ModuleType):  # `import keras as k`
            names.add(value.__name__.partition(".")[0])
        elif isinstance(value, type):
            if not _installed(value):
                waiting += vars(value).values()
        elif callable(value):
            waiting.append(type(value))
    return frozenset(names.intersection(FRAMEWORKS))


def _names(code: CodeType) -> set[str]:
    """The names in a function's code and in that of the functions in it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    dotted = {name.partition(".")[0] for name in code.co_names}  # import keras.layers
    return dotted.union(code.co_names, *inner)


def _reached(function: FunctionType, names: set[str]) -> list[Any]:
    """Modules, functions and classes that a function's code names: in its module, around it, in modules of the user."""
    if _installed(function):
        return []
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            found.append(cell.cell_contents)
    for module in [value for value in found if isinstance(value, ModuleType)]:
        if not _installed(module):
            found += [getattr(module, name) for name in names if hasattr(module, name)]
    return [value for value in found if isinstance(value, (ModuleType, FunctionType, type))]


def _installed(value: Any) -> bool:
    """Whether it is not the user's own code, and so names no framework that the user does not name too."""
    name = value.__name__ if isinstance(value, ModuleType) else str(value.__module__)
    root = name.partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return (root in sys.stdlib_module_names and root != "__main__") or root == "hopyard" or "site-packages" in file


def install(plan: Plan) -> None:
    """Threads and determinism of every framework that is imported by now; none is imported for it."""
    for one in runtimes().values():
        one.install(plan.spec.exact, plan.threads)


_ALONE = threading.RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a unit does to the process (seeds, threads, determinism) is undone behind it: for the user's own process.

    One thread at a time: all of that belongs to the whole process, so two runs of one process that took turns in the
    midst of it would draw from each other's seeds, and give back each other's settings.
    """
    import numpy as np

    with _ALONE:
        python, numpy = random.getstate(), np.random.get_state()
        snapshots = {framework: one.snapshot() for framework, one in runtimes().items()}
        try:
            yield
        finally:
            for framework, one in runtimes().items():  # some may have come with the recipe
                one.restore(snapshots.get(framework))
            random.setstate(python)
            np.random.set_state(numpy)


def build(plan: Plan, trial: int, config: Config) -> Built:
    """The model of this trial, freshly made.

    Raises:
        SpecError: the recipe gives nothing that can train.
        Exception: whatever the recipe raises.
    """
    seed = build_seed(plan.spec.seed, trial)
    arguments: list[Any] = [dict(config)]
    recipe = recipe_of(plan.recipe, trial)
    if wants_context(recipe):
        arguments.append(Context(plan.device, _shapes(plan.manifest.inputs), plan.manifest.classes, seed, trial))
    names = named(recipe)
    while True:
        before = imported()
        install(plan)
        seed_all(seed)
        for framework in before:
            runtime(framework).before_recipe(seed, framework in names)
        made = _called(recipe, arguments)
        for framework in before:
            runtime(framework).after_recipe()
        if imported() == before:
            break  # else it imported its framework itself, too late to be seeded: build once more
    for framework in before:
        made = runtime(framework).adopt(made)
    missing = [name for name in NEEDED if not callable(getattr(made, name, None))]
    if missing:
        raise SpecError(_useless(made, missing))
    if isinstance(made, SupportsSchema):
        made.set_schema(*(_shapes(infos) for infos in (plan.manifest.inputs, plan.manifest.targets)))
    if plan.device != "cpu" and isinstance(made, SupportsDevice):
        made.to_device(plan.device)
    size = getattr(made, "batch_size", None)
    if size is None:
        size = config.get("batch_size", BATCH_SIZE)
    return Built(made, whole("batch_size", size, 1))


def _shapes(infos: Mapping[str, ArrayInfo]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(info.shape), info.dtype) for name, info in infos.items()}


def _called(recipe: Callable[..., Any], arguments: list[Any]) -> Any:
    """What the recipe returns; a framework that is not there is named as what it is."""
    try:
        return recipe(*arguments)
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        if lacking not in FRAMEWORKS or importlib.util.find_spec(lacking) is not None:
            raise
        other = ", or choose a backend that is there: hy.Local(env={'KERAS_BACKEND': 'torch'})"
        raise SpecError(
            f"the recipe needs {lacking}, which is not installed where the workers run ({sys.executable}): "
            f"pip install 'hopyard[{lacking}]'{other if 'keras' in sys.modules or lacking == 'tensorflow' else ''}"
        ) from error


def _useless(made: Any, missing: list[str]) -> str:
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(made).__mro__):
        return (
            f"the recipe returned {_short(made)}, a model of Keras 2, and must return one of Keras 3. Say "
            "`import keras` in the place of tf_keras, and leave TF_USE_LEGACY_KERAS out of the environment"
        )
    return (
        f"the recipe returned {_short(made)}, which cannot train (no {', '.join(missing)}): return a compiled "
        "keras.Model, a hy.torch.Model(module, optimizer=…, loss=…), or an object with the methods of hy.Trainable"
    )


def _short(value: Any) -> str:
    return (
        "None (is a `return` missing?)" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
    )

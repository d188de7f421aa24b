"""From a recipe and a configuration to something that can train.

The recipe is the user's; whatever it raises is theirs to see. Everything random in it is seeded by (run seed, trial)
before it is called, so that the first weights of a trial are the same wherever it is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from hopyard.core.order import build_seed
from hopyard.data.manifest import Manifest
from hopyard.errors import SpecError
from hopyard.frameworks import seed_all
from hopyard.ports import EpochEnd
from hopyard.spec import Config, Context, RunSpec

BATCH_SIZE = 32
"""When neither the recipe nor its configuration says, as in Keras."""

FRAMEWORKS = {"torch": "hopyard.frameworks.torch_tools"}
"""Framework → the module with its `install(exact, threads)`, which sets the process up, and `warm()`."""

NEEDED = ("state", "load", "train", "evaluate")


@dataclass(frozen=True, slots=True)
class Plan:
    """What building needs beside the configuration."""

    recipe: Callable[..., Any]
    manifest: Manifest
    spec: RunSpec
    device: str = "cpu"
    threads: int = 1


@dataclass(slots=True)
class Built:
    """A trial's model as it stands in memory."""

    trainable: Any
    batch_size: int

    def end_epoch(self) -> None:
        """Tell the model, if it wants to know."""
        if isinstance(self.trainable, EpochEnd):
            self.trainable.end_epoch()


def wants_context(recipe: Callable[..., Any]) -> bool:
    """Whether it is `recipe(config, ctx)` rather than `recipe(config)`.

    Raises:
        SpecError: it takes something else.
    """
    if not callable(recipe):
        raise SpecError(f"recipe = {recipe!r}: a function of a config is needed, recipe(config) or recipe(config, ctx)")
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


def imported() -> set[str]:
    """The frameworks that this process has imported."""
    return FRAMEWORKS.keys() & sys.modules.keys()


def warm() -> None:
    """What the imported frameworks put off until a first step, done while there is nothing else to do."""
    for framework in imported():
        importlib.import_module(FRAMEWORKS[framework]).warm()


def foresee(recipe: Callable[..., Any]) -> None:
    """Import the frameworks that the recipe names, so that a worker that is ready has them, not its first unit."""
    codes = [getattr(recipe, "__code__", None)]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        if isinstance(code, CodeType):
            names.update(code.co_names)
            codes.extend(code.co_consts)
    for framework in sorted(FRAMEWORKS.keys() & names):
        if importlib.util.find_spec(framework) is not None:
            importlib.import_module(f"hopyard.frameworks.{framework}")


def install(plan: Plan) -> None:
    """Threads and determinism of every framework that is imported by now; none is imported for it."""
    for framework, module in FRAMEWORKS.items():
        if framework in sys.modules:
            importlib.import_module(module).install(plan.spec.exact, plan.threads)


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a unit does to the process (seeds, threads, determinism) is undone behind it: for the user's own process."""
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        exact = torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(state)
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(exact)
        elif "torch" in sys.modules:  # it came with the recipe
            sys.modules["torch"].set_deterministic_debug_mode("default")


def build(plan: Plan, trial: int, config: Config) -> Built:
    """The model of this trial, freshly made.

    Raises:
        SpecError: the recipe gives nothing that can train.
        Exception: whatever the recipe raises.
    """
    seed = build_seed(plan.spec.seed, trial)
    arguments: list[Any] = [dict(config)]
    if wants_context(plan.recipe):
        inputs = {name: (tuple(info.shape), info.dtype) for name, info in plan.manifest.inputs.items()}
        arguments.append(Context(plan.device, inputs, plan.manifest.classes, seed, trial))
    while True:
        before = imported()
        install(plan)
        seed_all(seed)
        made = plan.recipe(*arguments)
        if imported() == before:
            break  # else it imported its framework itself, too late to be seeded: build once more
    missing = [name for name in NEEDED if not callable(getattr(made, name, None))]
    if missing:
        raise SpecError(
            f"the recipe returned {_short(made)}, which cannot train (no {', '.join(missing)}): return a "
            "hy.torch.Model(module, optimizer=…, loss=…), or an object with the methods of hy.Trainable"
        )
    if plan.device != "cpu" and callable(getattr(made, "place", None)):
        made.place(plan.device)
    size = getattr(made, "batch_size", None)
    if size is None:
        size = config.get("batch_size", BATCH_SIZE)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SpecError(f"batch_size = {size!r}: a whole number of at least 1 is needed")
    return Built(made, size)


def _short(value: Any) -> str:
    return (
        "None (is a `return` missing?)" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
    )

"""The request for a new run: one frozen value, checked where it is made."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hopyard.checks import one_of, path
from hopyard.data.dataset import Dataset
from hopyard.driver.pickling import RunInputs
from hopyard.errors import SpecError
from hopyard.parallel import CHOICES, PARALLEL, Hopper, Parallel, gang_of, grouping
from hopyard.ports import Engine
from hopyard.spec import Encrypt, RunSpec, Timeouts
from hopyard.store.states import private
from hopyard.text import shown, unwritable
from hopyard.training.recipes import wants_context

log = logging.getLogger(__name__)

BETTER = {"max": ("acc", "auc", "f1", "precision", "recall"), "min": ("loss", "error", "mae", "mse")}
"""Which values of a metric are better, as its name tells."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for a new run.

    Attributes:
        inputs: recipe, data, space, search and engine.
        spec: what decides results and schedule; its numbers of partitions are filled in once the data is prepared.
        store: where the user wants folders of States; None: inside the run directory.
        encrypt: whether States are encrypted on the network.
        directory: the run directory; None: a new one under `runs/`.
        parallel: as the user gave it; the run's number of workers and partitions decides what is left open in it.

    Raises:
        SpecError: something is not allowed.
    """

    inputs: RunInputs
    spec: RunSpec
    store: str | Path | None = None
    encrypt: Encrypt = "between hosts"
    directory: str | Path | None = None
    parallel: Parallel | None = None

    def __post_init__(self) -> None:
        wants_context(self.inputs.recipe)
        if not isinstance(self.inputs.data, Dataset):
            raise SpecError(
                "data must be a hy.Dataset, for example hy.Dataset.numpy(x, y) or "
                f"hy.Dataset.parquet(path, features=[…], label=…), got {type(self.inputs.data).__name__}"
            )
        object.__setattr__(self, "encrypt", one_of("encrypt", self.encrypt, (True, False, "between hosts")))
        root = str(Path("" if self.directory is None else path("directory", self.directory)).absolute())
        store = None if self.store is None else path("store", self.store, "a path or URL")
        for name, text in (("directory", root), ("store", store)):
            if fault := unwritable(text):
                raise SpecError(f"{name} = {text!a}: {fault}")
        check_shared(store or "", self.inputs.engine)
        check_workers(self.spec.members, self.inputs.engine)
        object.__setattr__(self, "store", store)


def run_spec(
    inputs: RunInputs,
    epochs: int,
    metric: str | None,
    mode: Literal["min", "max"],
    parallel: Parallel | None,
    seed: int,
    exact: bool | Literal["warn"],
    timeouts: Timeouts,
) -> RunSpec:
    """Check what decides results and schedule, before the data is read, which decides the numbers of partitions.

    Raises:
        SpecError: something is not allowed.
    """
    parallel = Hopper() if parallel is None else parallel
    if not isinstance(parallel, PARALLEL):
        raise SpecError(f"parallel must be {CHOICES}, got {shown(parallel)}")
    if metric is not None and not isinstance(metric, str):
        raise SpecError(f'metric must be the name of a metric (for example "val_loss"), got {shown(metric)}')
    better = next((way for way, words in BETTER.items() if metric and any(word in metric for word in words)), mode)
    if metric is not None and better != mode:
        log.warning('mode = "%s": of metric = %r the %s is taken for the best', mode, metric, f"{mode[:3]}imum")
    return RunSpec(
        epochs=epochs,
        partitions=1,
        validation=0,
        trials=inputs.search.open(inputs.space, seed).total,
        seed=seed,
        metric=metric,
        mode=mode,
        exact=exact,
        void_epochs=True,
        timeouts=timeouts,
        gang=gang_of(parallel, inputs.engine.workers),
        **grouping(parallel),
    )


def check_workers(members: int, engine: Engine) -> None:
    """Raise SpecError where an engine has too few workers for one gang."""
    if engine.workers < members:
        raise SpecError(
            f"a gang of {members} workers needs an engine with as many: {engine.name!r} has {engine.workers}"
            + (", as its only worker is this process; give hy.Local(workers=…)" if engine.in_process else "")
        )


def check_shared(store: str, engine: Engine) -> None:
    """Raise SpecError where each agent of this engine would have a store of its own."""
    if private(store) and not engine.in_process:
        raise SpecError(
            f"store = {store!r}: States there live in the memory of one process, and the workers of engine "
            f"{engine.name!r} are other processes: give a path or URL that all of them reach, or hy.Inline()"
        )

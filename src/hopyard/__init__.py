"""Deep learning on the cluster people already have: name a table and a recipe, get the best of many nets.

    import hopyard as hy

    space = hy.Space(lr=hy.loguniform(1e-4, 1e-1), width=hy.choice([64, 256]))
    data = hy.Dataset.parquet("flights/*.parquet", features=[...], label="late", validation=0.2)
    run = hy.select(recipe, space, data, search=hy.Random(16), epochs=3, metric="val_loss", mode="min")
    run.best.model()

Names are looked up when they are first used, so that importing this package costs nothing and imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
"""Version of this package."""

_WHERE = {
    "AllReduce": "hopyard.parallel",
    "ASHA": "hopyard.stopping",
    "Batch": "hopyard.spec",
    "CMA": "hopyard.search.optuna",
    "Categories": "hopyard.data.options",
    "Configs": "hopyard.search.listed",
    "DataError": "hopyard.errors",
    "Dataset": "hopyard.data.dataset",
    "FeedError": "hopyard.errors",
    "GP": "hopyard.search.optuna",
    "Grid": "hopyard.search.listed",
    "Hopper": "hopyard.parallel",
    "HopyardError": "hopyard.errors",
    "Hosts": "hopyard.engines.hosts.engine",
    "Hyperband": "hopyard.stopping",
    "Inexact": "hopyard.errors",
    "Inline": "hopyard.engines.inline",
    "JournalError": "hopyard.errors",
    "Kubernetes": "hopyard.engines.kubernetes.engine",
    "Local": "hopyard.engines.local",
    "LocalSGD": "hopyard.parallel",
    "Nesterov": "hopyard.parallel",
    "Median": "hopyard.stopping",
    "Optuna": "hopyard.search.optuna",
    "Patience": "hopyard.stopping",
    "PreflightError": "hopyard.errors",
    "Program": "hopyard.driver.programs.program",
    "ProgramContext": "hopyard.agent.programs.context",
    "ProgramFailed": "hopyard.errors",
    "Random": "hopyard.search.listed",
    "RecipeContext": "hopyard.spec",
    "ResourceError": "hopyard.errors",
    "Role": "hopyard.core.programs.placement",
    "Run": "hopyard.driver.runs.run",
    "RunDirectoryError": "hopyard.errors",
    "RunFailed": "hopyard.errors",
    "SavedModel": "hopyard.driver.saved_model",
    "Space": "hopyard.space",
    "Spark": "hopyard.engines.spark.engine",
    "SpecError": "hopyard.errors",
    "TPE": "hopyard.search.optuna",
    "TaskParallel": "hopyard.parallel",
    "Timeouts": "hopyard.spec",
    "Trainable": "hopyard.ports.training",
    "Trial": "hopyard.driver.runs.trial",
    "TrialFailed": "hopyard.errors",
    "UsageError": "hopyard.errors",
    "choice": "hopyard.space",
    "context": "hopyard.agent.programs.context",
    "fit": "hopyard.driver.runs.api",
    "launch": "hopyard.driver.programs.api",
    "load": "hopyard.driver.runs.run",
    "load_model": "hopyard.driver.saved_model",
    "loguniform": "hopyard.space",
    "quniform": "hopyard.space",
    "randint": "hopyard.space",
    "resume": "hopyard.driver.runs.api",
    "select": "hopyard.driver.runs.api",
    "uniform": "hopyard.space",
}
"""Public name → the module that defines it."""

_MODULES = {"keras": "hopyard.frameworks.keras", "spark": "hopyard.spark", "torch": "hopyard.frameworks.torch"}
"""Public submodule → its module."""

__all__ = ["__version__", *sorted(_WHERE)]  # noqa: PLE0604 - no submodule: it would hide the package of its name


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'hopyard' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *sorted(_MODULES)]


if TYPE_CHECKING:
    from hopyard import spark as spark
    from hopyard.agent.programs.context import ProgramContext as ProgramContext
    from hopyard.agent.programs.context import context as context
    from hopyard.core.programs.placement import Role as Role
    from hopyard.data.dataset import Dataset as Dataset
    from hopyard.data.options import Categories as Categories
    from hopyard.driver.programs.api import launch as launch
    from hopyard.driver.programs.program import Program as Program
    from hopyard.driver.runs.api import fit as fit
    from hopyard.driver.runs.api import resume as resume
    from hopyard.driver.runs.api import select as select
    from hopyard.driver.runs.run import Run as Run
    from hopyard.driver.runs.run import load as load
    from hopyard.driver.runs.trial import Trial as Trial
    from hopyard.driver.saved_model import SavedModel as SavedModel
    from hopyard.driver.saved_model import load_model as load_model
    from hopyard.engines.hosts.engine import Hosts as Hosts
    from hopyard.engines.inline import Inline as Inline
    from hopyard.engines.kubernetes.engine import Kubernetes as Kubernetes
    from hopyard.engines.local import Local as Local
    from hopyard.engines.spark.engine import Spark as Spark
    from hopyard.errors import DataError as DataError
    from hopyard.errors import FeedError as FeedError
    from hopyard.errors import HopyardError as HopyardError
    from hopyard.errors import Inexact as Inexact
    from hopyard.errors import JournalError as JournalError
    from hopyard.errors import PreflightError as PreflightError
    from hopyard.errors import ProgramFailed as ProgramFailed
    from hopyard.errors import ResourceError as ResourceError
    from hopyard.errors import RunDirectoryError as RunDirectoryError
    from hopyard.errors import RunFailed as RunFailed
    from hopyard.errors import SpecError as SpecError
    from hopyard.errors import TrialFailed as TrialFailed
    from hopyard.errors import UsageError as UsageError
    from hopyard.frameworks import keras as keras
    from hopyard.frameworks import torch as torch
    from hopyard.parallel import AllReduce as AllReduce
    from hopyard.parallel import Hopper as Hopper
    from hopyard.parallel import LocalSGD as LocalSGD
    from hopyard.parallel import Nesterov as Nesterov
    from hopyard.parallel import TaskParallel as TaskParallel
    from hopyard.ports.training import Trainable as Trainable
    from hopyard.search.listed import Configs as Configs
    from hopyard.search.listed import Grid as Grid
    from hopyard.search.listed import Random as Random
    from hopyard.search.optuna import CMA as CMA
    from hopyard.search.optuna import GP as GP
    from hopyard.search.optuna import TPE as TPE
    from hopyard.search.optuna import Optuna as Optuna
    from hopyard.space import Space as Space
    from hopyard.space import choice as choice
    from hopyard.space import loguniform as loguniform
    from hopyard.space import quniform as quniform
    from hopyard.space import randint as randint
    from hopyard.space import uniform as uniform
    from hopyard.spec import Batch as Batch
    from hopyard.spec import RecipeContext as RecipeContext
    from hopyard.spec import Timeouts as Timeouts
    from hopyard.stopping import ASHA as ASHA
    from hopyard.stopping import Hyperband as Hyperband
    from hopyard.stopping import Median as Median
    from hopyard.stopping import Patience as Patience

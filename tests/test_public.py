"""The face: the exported names, what importing them costs, and the signatures."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

import hopyard as hy
from hopyard.driver.runs.keywords import KEYWORDS, RESUME

NAMES = {
    *("AllReduce", "LocalSGD", "Nesterov", "TaskParallel", "Timeouts"),
    *("ASHA", "CMA", "GP", "Hyperband", "Median", "Optuna", "Patience", "TPE"),
    *(
        "Batch",
        "Categories",
        "Configs",
        "DataError",
        "Dataset",
        "FeedError",
        "Grid",
        "Hopper",
        "HopyardError",
        "Hosts",
        "Inexact",
        "Inline",
    ),
    *(
        "JournalError",
        "Kubernetes",
        "Local",
        "PreflightError",
        "Random",
        "RecipeContext",
        "ResourceError",
        "Run",
        "RunDirectoryError",
        "RunFailed",
    ),
    "SavedModel",
    *(
        "Space",
        "SpecError",
        "Trainable",
        "Trial",
        "TrialFailed",
        "UsageError",
        "choice",
        "context",
        "fit",
        "load",
        "load_model",
    ),
    "Spark",
    *("Program", "ProgramContext", "ProgramFailed", "Role", "launch"),
    *("loguniform", "quniform", "randint", "resume", "select", "uniform", "__version__"),
}
MODULES = {"keras", "spark", "torch"}
"""Names that `from hopyard import *` leaves out: they would hide the packages of these names."""


def test_the_exported_names_are_these() -> None:
    assert set(hy.__all__) == NAMES
    assert len(hy.__all__) == len(NAMES)
    assert set(dir(hy)) == NAMES | MODULES
    assert set(hy.spark.__all__) == {
        *("HopyardEstimator", "HopyardModel", "load_tfrecords", "map_batches", "predict", "save_tfrecords", "session")
    }


@pytest.mark.parametrize("name", sorted(NAMES | MODULES))
def test_each_can_be_imported_and_has_a_docstring(name: str) -> None:
    value = getattr(hy, name)
    assert value is getattr(importlib.import_module("hopyard"), name)
    assert name == "__version__" or (value.__doc__ and value.__doc__.strip())


def test_each_has_its_type_for_type_checkers() -> None:
    """Else it is Any there: completion knows nothing of it, and no misuse is found."""
    tree = ast.parse(inspect.getsource(hy))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {alias.asname for node in imports for alias in node.names} == (NAMES | MODULES) - {"__version__"}


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'hopyard' has no attribute 'Trainer'"):
        hy.Trainer  # noqa: B018


def test_importing_it_imports_no_heavy_package() -> None:
    code = "import sys, hopyard; print(sorted({'torch', 'pyarrow', 'numpy', 'zmq', 'pandas'} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert out.strip() == "[]"


def test_all_names_at_once_hide_no_package_and_import_no_framework() -> None:
    code = (
        "import sys; from hopyard import *; select, Dataset, Program\n"
        "print(sorted({'torch', 'keras', 'spark', 'pyspark', 'tensorflow'} & {*globals(), *sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.strip() == "[]"


def parameters(function: Any) -> dict[str, Any]:
    """Name → default, of keyword-only parameters."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}


def positional(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]


def test_signatures_have_names_and_defaults_from_the_tables() -> None:
    assert positional(hy.select) == ["recipe", "space", "data"]
    assert positional(hy.fit) == ["recipe", "config", "data"]
    defaults = {name: keyword.default for name, keyword in KEYWORDS.items() if name not in ("recipe", "config")}
    assert list(parameters(hy.select).items()) == list(defaults.items())
    of_trials = {"search", "enqueue", "max_trials", "max_time", "goal"}
    single = {name: default for name, default in defaults.items() if name not in of_trials}
    assert parameters(hy.fit) == single | {"metric": None, "mode": None}
    assert parameters(hy.resume) == {name: keyword.default for name, keyword in RESUME.items()}


@pytest.mark.parametrize("function", [hy.select, hy.resume])
def test_docstrings_describe_each_argument(function: Any) -> None:
    assert re.findall(r"^        (\w+): ", function.__doc__.split("Args:")[1].split("\n\n")[0], re.MULTILINE) == [
        *inspect.signature(function).parameters
    ]


def test_the_signatures_of_resume_load_and_load_model() -> None:
    assert positional(hy.resume) == ["directory"]
    assert positional(hy.load) == ["directory"]
    assert parameters(hy.load) == {"trust": False}
    assert parameters(hy.load_model) == {"transform": None, "trust": False}
    assert parameters(hy.resume)["trust"] is False
    assert positional(hy.load_model) == ["directory", "recipe"]


def test_errors_are_one_tree_with_their_exit_codes() -> None:
    codes = {name: getattr(hy, name).exit_code for name in NAMES if isinstance(getattr(hy, name), type)
             and issubclass(getattr(hy, name), Exception)}  # fmt: skip
    assert codes == {
        **dict.fromkeys(("FeedError", "HopyardError", "JournalError", "RunFailed", "Inexact", "ProgramFailed"), 1),
        **dict.fromkeys(("UsageError", "SpecError", "DataError", "PreflightError", "RunDirectoryError"), 2),
        "TrialFailed": 3,
        "ResourceError": 4,
    }
    assert all(issubclass(getattr(hy, name), hy.HopyardError) for name in codes)
    assert issubclass(hy.SpecError, ValueError)

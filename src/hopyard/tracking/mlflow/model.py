"""The best model as a folder of MLflow's `python_function` flavor, written without MLflow. Where MLflow expects YAML,
it is JSON, which is a part of YAML.

Source: mlflow.org/docs/latest/ml/model, "Storage format" and "Model signature"; mlflow/models/model.py at v3.17.2.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard import __version__
from hopyard.data.manifest import Column, Manifest
from hopyard.driver.saved_files import CONFIG, OWN, parse

VERSION = "3.17.2"
"""The version of MLflow whose format this is."""
LOADER = "hopyard.tracking.mlflow.pyfunc"
DATA = "data"
TYPES = {
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "integer"),
    **dict.fromkeys(("int64", "uint32"), "long"),
    "float": "float",
    "double": "double",
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
}
"""Arrow's name of a type → MLflow's."""
PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu")}
"""Framework → the distributions that have it, where these have other names."""


def describe(folder: Path, run: str, model: str, at: float) -> None:
    """Write what MLflow asks of a model beside its saved files, which are in `folder / DATA`.

    Args:
        folder: of the model.
        run: the id of its run in MLflow.
        model: its id there.
        at: when the run had ended, in seconds since 1970.
    """
    about = parse((folder / DATA / CONFIG).read_bytes())
    flavor = {
        "loader_module": LOADER,
        "data": DATA,
        "python_version": platform.python_version(),
        "env": {"virtualenv": "python_env.yaml"},
    }
    fields: dict[str, Any] = {
        "flavors": {"python_function": flavor},
        "mlflow_version": VERSION,
        "model_id": model,
        "model_uuid": model,
        "run_id": run,
        "utc_time_created": str(datetime.fromtimestamp(at, UTC).replace(tzinfo=None)),
    }
    if not (folder / DATA / "transform.pkl").exists() and (inputs := signature(about.manifest)):
        fields["signature"] = {"inputs": json.dumps(inputs), "outputs": None, "params": None}
    packages = [f"hopyard=={__version__}", "mlflow", "pandas"]
    packages += [requirement(name) for name in (about.framework, about.backend) if name not in ("", OWN)]
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    for name, value in (("MLmodel", fields), ("python_env.yaml", environment)):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    (folder / "requirements.txt").write_text("".join(f"{package}\n" for package in packages))


def requirement(framework: str) -> str:
    """Return what pip is to install for a framework: the version that is installed here, without the build's name
    ("+cpu"), which indexes lack; any, where that is unknown."""
    names = PACKAGES.get(framework, (framework,))
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{name}=={importlib.metadata.version(name).partition('+')[0]}"
    return names[0]


def signature(manifest: Manifest) -> list[dict[str, Any]]:
    """Return MLflow's schema of the inputs: columns, or arrays; [] where one of them is of a type that MLflow lacks."""
    columns = [column for field in manifest.fields if field.role == "inputs" for column in field.columns]
    arrays = any(column.shape for column in columns)
    specs = list(_arrays(columns) if arrays else _columns(columns))
    return [] if None in specs else [spec for spec in specs if spec]


def _columns(columns: list[Column]) -> Iterator[dict[str, Any] | None]:
    for column in columns:
        kind = TYPES.get(column.type.partition(":")[0])
        if kind in ("integer", "long") and column.impute:
            kind = "double"  # pandas holds whole numbers of which some are missing so
        yield None if kind is None else {"type": kind, "name": column.name, "required": True}


def _arrays(columns: list[Column]) -> Iterator[dict[str, Any] | None]:
    names = [{}] if [column.name for column in columns] == ["inputs"] else [{"name": each.name} for each in columns]
    for name, column in zip(names, columns, strict=True):
        is_tensor = not column.encode and None not in column.shape
        spec = {"dtype": column.type.rpartition(":")[2], "shape": [-1, *column.shape]}
        yield {**name, "type": "tensor", "tensor-spec": spec} if is_tensor else None

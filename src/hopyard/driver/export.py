"""Export: a trained model in a format that runs without the recipe, with the encoding of its rows beside it.

What each framework can write is in its runtime (`ports.frameworks.Export`). It is written into a folder `.part-…`
beside the path, synced, and renamed: the model comes last, so where it is, its encoding is too.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopyard import checks
from hopyard.data.columns import pack
from hopyard.data.encoding.plain import plain
from hopyard.errors import HopyardError, ResourceError, SpecError, UsageError
from hopyard.frameworks import framework_of, runtime
from hopyard.ports.frameworks import Export
from hopyard.system.files import FULL, sync
from hopyard.text import shown
from hopyard.training.build import undisturbed
from hopyard.training.predictor import Predictor

ENCODING = "encoding.json"
"""Name of the encoding in the folder of a model; of a model in a file `m` it is `m.json`."""
INSTALL = {
    "jax2onnx": "pip install jax2onnx, which brings some 50 packages",
    "tf2onnx": "pip install tf2onnx",
    "tensorflow": "pip install tensorflow",
}
"""How to install what the extra `export` lacks."""


def export(path: str | Path, predictor: Predictor) -> Path:
    """Write the model of a predictor in the format that the end of the path names. Return the path.

    Raises:
        SpecError: the model has no such format, the framework cannot write it, or something is at the path already.
        UsageError: a package that the format needs is not installed.
        ResourceError: there is no room.
    """
    text = checks.path("path", path)
    target, where = Path(text), f"export({shown(text)})"
    ending = "" if text.endswith("/") else target.suffix
    if any(field.is_ragged for field in predictor.manifest.fields):
        raise SpecError(
            f"{where}: the model reads columns of ragged=, and a model that is exported takes rows of one shape; "
            "run.best.save(…) writes it with its recipe, and run.best.model() gives the model itself"
        )
    trainable = predictor.built.trainable
    form = _form(trainable, ending, where)
    encoding = target.with_name(f"{target.name}.json") if ending else target / ENCODING
    rows = plain(predictor.manifest, predictor.tracker is not None)
    content = msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n"
    with _folder_beside(target, where) as part:
        _free(target, encoding, where)
        _write(form, trainable, part / target.name, _rows(predictor), where)
        (part / encoding.relative_to(target.parent)).write_bytes(content)
        for file in (*part.rglob("*"), part):
            sync(file)
        _free(target, encoding, where)
        for file in sorted(part.iterdir(), key=lambda file: file.name == target.name):
            file.replace(target.with_name(file.name))
        sync(target.parent)
    return target


def _free(target: Path, encoding: Path, where: str) -> None:
    """Raise SpecError where something is at one of the paths already."""
    for existing in (target, encoding, target.with_name(f"{target.name}.data")):  # ONNX has it from 2 GB on
        if existing.exists():
            raise SpecError(f"{where}: {existing} is there already; remove it first, or give another path")


def _form(trainable: Any, ending: str, where: str) -> Export:
    """Return how the model is written to a path with this ending."""
    framework = framework_of(trainable)
    if framework is None:
        raise SpecError(
            f"{where}: the recipe returned a Trainable of its own ({type(trainable).__name__}), and only models of "
            "torch and Keras are exported; run.best.save(…) writes it with its recipe"
        )
    forms = runtime(framework).exports()
    if ending not in forms:
        backend = runtime(framework).versions().get("keras_backend", "")
        names = ", ".join(name or "/ (a folder: a SavedModel of TensorFlow)" for name in forms)
        raise SpecError(
            f"{where}: the path of an exported model of {framework}{f' on {backend}' if backend else ''} must end with "
            f"{names}; got {ending or 'no ending'}"
        )
    for package in forms[ending].needs:
        if importlib.util.find_spec(package) is None:
            how = INSTALL.get(package, "pip install 'hopyard[export]'")
            raise UsageError(f"{where}: this format needs {package}, which is not installed: {how}")
    return forms[ending]


def _rows(predictor: Predictor) -> Any:
    """Return two rows of zeros, encoded: two, as torch takes the axes of one row to have one length for ever."""
    infos = predictor.manifest.inputs.items()
    return pack({name: np.zeros((2, *info.shape), info.dtype) for name, info in infos}, "inputs")


def _write(form: Export, trainable: Any, path: Path, rows: Any, where: str) -> None:
    try:
        with undisturbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters warn of their own deprecated code
            form.write(trainable, path, rows)
    except (HopyardError, OSError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:500]
        raise SpecError(
            f"{where}: the model cannot be written in this format: {type(error).__name__}: {text}; the cause of this "
            "error has all of it. Another format may do, or model() gives the model itself"
        ) from error


@contextmanager
def _folder_beside(target: Path, where: str) -> Iterator[Path]:
    """Yield an empty folder in that of the target, and remove it at the end."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(f"{where}: no room ({error.strerror}); make some, and export again") from error
        raise SpecError(
            f"{where}: {error.strerror or error}; give a path in a folder that this user may write to"
        ) from error

"""How `mlflow.pyfunc.load_model` opens a model: files named `loader_module: hopyard.tracking.mlflow.pyfunc` are for
ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopyard.driver.saved_model import SavedModel


def _load_pyfunc(path: str) -> SavedModel:
    """Return the saved model in a folder, whose `predict` MLflow calls. This opens a pickle.

    Raises:
        RunDirectoryError: see `hopyard.load_model`.
    """
    from hopyard.driver.saved_model import load_model

    return load_model(path)

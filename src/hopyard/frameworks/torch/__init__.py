"""torch: `Model`, and the metrics that users need."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopyard.frameworks.torch.metrics import AUC, F1, TopK, accuracy
    from hopyard.frameworks.torch.model import Model

_WHERE = {"AUC": "metrics", "F1": "metrics", "Model": "model", "TopK": "metrics", "accuracy": "metrics"}

__all__ = ["AUC", "F1", "Model", "TopK", "accuracy"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

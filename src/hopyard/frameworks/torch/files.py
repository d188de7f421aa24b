"""Saves a torch model to a file and loads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hopyard.ports import ModelFile
from hopyard.system.files import replacing


def save(module: torch.nn.Module, path: str | Path) -> None:
    """Writes the module's tensors as safetensors, under a temporary name first: `path` exists whole or not at all."""
    from safetensors.torch import save_model

    with replacing(Path(path)) as part:
        save_model(module, os.fspath(part))


def load(module: torch.nn.Module, path: str | Path) -> torch.nn.Module:
    """Reads a file of `save` into a module of the same build, and sets evaluation mode. Raises RuntimeError when they
    differ."""
    from safetensors.torch import load_model

    load_model(module, os.fspath(path))
    return module.eval()


def model(trainable: Any) -> torch.nn.Module:
    """Return the module of a `Model`, in evaluation mode."""
    module: torch.nn.Module = trainable.module
    return module.eval()


FILE = ModelFile("model.safetensors", model, save, load)

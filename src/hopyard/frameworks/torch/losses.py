"""Outputs and losses of torch modules.

Batches, pieces of a batch and members of a gang count by the weight of their mean loss: by rows, by the sum of their
weights, or by the tokens of a loss that counts them. So neither the loss of an epoch nor the gradients depend on how
rows are cut.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import torch

from hopyard.checks import real
from hopyard.errors import SpecError
from hopyard.text import shown


def outputs_of(module: torch.nn.Module, inputs: Any, loss: Callable[..., Any] | str) -> Any:
    """Return a module's outputs; the logits of one that has its own loss."""
    outputs = _call(module, inputs)
    return _part(outputs, "logits") if isinstance(loss, str) else outputs


def outputs_and_loss(
    module: torch.nn.Module,
    inputs: Any,
    targets: Any,
    loss: Callable[..., Any] | str,
    weights: torch.Tensor | None,
    rows: float,
) -> tuple[Any, torch.Tensor, float]:
    """Return (outputs, mean loss, its weight) of a batch; the loss is a tensor without axes.

    Args:
        module: the module.
        inputs: a tensor, or a dict of tensors.
        targets: the labels.
        loss: `loss(outputs, targets)`; "model": the module's own.
        weights: of the rows, shape (rows,); None: all count alike.
        rows: how many rows there are, or the sum of their weights.

    Raises:
        SpecError: the loss gives something else, or does not fit the rows.
    """
    if not isinstance(loss, str):
        outputs = _call(module, inputs)
        return outputs, *_mean(loss(outputs, targets), weights, rows)
    if weights is not None:
        raise SpecError(
            'loss="model" gives one mean for all rows of a batch, and these rows have weights: leave out weight= of '
            "the Dataset, or give a loss(outputs, targets) with one value per row"
        )
    if not isinstance(targets, torch.Tensor) or targets.ndim != 1:
        labels = f"labels of shape {tuple(targets.shape)}" if isinstance(targets, torch.Tensor) else shown(targets)
        raise SpecError(
            f'loss="model" takes one label a row, got {labels}. Rows with several, as for tokens, count by how many '
            "they have, which the model's mean does not tell: write the loss over tokens, a function "
            "loss(outputs, targets) that returns (sum, how many)"
        )
    outputs = _call(module, inputs, labels=targets)
    return _part(outputs, "logits"), *_mean(_part(outputs, "loss"), None, rows)


def takes_labels(module: torch.nn.Module) -> bool:
    """Return True if a module can be called with `labels=`."""
    parameters = inspect.signature(module.forward).parameters.values()
    return any(each.name == "labels" or each.kind is each.VAR_KEYWORD for each in parameters)


def _call(module: torch.nn.Module, inputs: Any, **more: torch.Tensor) -> Any:
    return module(**inputs, **more) if isinstance(inputs, dict) else module(inputs, **more)


def _part(outputs: Any, name: Literal["loss", "logits"]) -> Any:
    if not hasattr(outputs, name):
        raise SpecError(
            f'loss="model": the module must return an object with loss and logits, as models of transformers do, gave '
            f"{shown(outputs)}, without {name}"
        )
    return getattr(outputs, name)


def _mean(loss: Any, weights: torch.Tensor | None, rows: float) -> tuple[torch.Tensor, float]:
    """Return what a loss gave as the mean over a batch, and its weight."""
    if isinstance(loss, tuple):
        return _mean_over_tokens(loss, weights)
    if not isinstance(loss, torch.Tensor):
        raise SpecError(f"loss must give a tensor, or a tuple (sum, how many), gave {shown(loss)}")
    if weights is None and loss.ndim == 0:
        return loss, rows
    count = int(rows) if weights is None else len(weights)
    if loss.numel() != count or loss.ndim == 0:
        allowed = "its mean or one value per row" if weights is None else "one value per row where rows have weights"
        raise SpecError(
            f"loss must give {allowed}, gave shape {tuple(loss.shape)} for {count} rows"
            '; torch\'s losses give one per row with reduction="none"'
        )
    values = loss.reshape(-1)
    return values.mean() if weights is None else (values * weights).sum() / weights.sum(), rows


def _mean_over_tokens(loss: tuple[Any, ...], weights: torch.Tensor | None) -> tuple[torch.Tensor, float]:
    total, count = loss if len(loss) == 2 else (None, None)
    tokens = real(count)
    if not isinstance(total, torch.Tensor) or total.ndim or not 0 <= tokens < math.inf:
        raise SpecError(
            f"a loss over tokens must give (sum, how many), a tensor without axes and a number >= 0, gave {shown(loss)}"
        )
    if weights is not None:
        raise SpecError(
            "a loss over tokens, (sum, how many), cannot count rows by their weights: leave out weight= of the "
            "Dataset, or make the loss one value per row"
        )
    return total / (tokens or 1.0), tokens

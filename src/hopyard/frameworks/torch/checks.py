"""Whether labels fit a torch model's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def label_fault(
    outputs: Any, low: float, high: float, loss: Callable[..., Any] | None = None, whole: bool = True
) -> str:
    """Return what is wrong with labels of [low, high] for these outputs; "" when nothing is, or when it is not known.

    Labels are class numbers when they are whole and the outputs have a second axis of at least 2. The ends of the range
    are tried with the loss on one row on the host (a quantile loss takes any number); on a GPU a label out of range
    ends the whole CUDA context, in a batch that may come hours later.

    Args:
        outputs: the outputs of one batch, a tensor of shape (rows, classes, …); anything else is not checked.
        low: the smallest label of the whole dataset.
        high: the largest label.
        loss: the model's loss; None: cross-entropy is assumed.
        whole: whether the labels are whole numbers.
    """
    if not whole or not isinstance(outputs, torch.Tensor) or outputs.ndim < 2 or outputs.shape[1] < 2:
        return ""
    classes = outputs.shape[1]
    wrong = [int(label) for label in (low, high) if not 0 <= label < classes]
    if not wrong or all(_accepts(loss, outputs, label) for label in wrong):
        return ""
    return (
        f"labels go from {low:g} to {high:g}, but the model has {classes} outputs, for labels 0 to {classes - 1}: "
        f"label {wrong[0]} has none; give the model {int(high) + 1} outputs, or number the labels from 0"
    )


def _accepts(loss: Callable[..., Any] | None, outputs: torch.Tensor, label: int) -> bool:
    loss = torch.nn.functional.cross_entropy if loss is None else loss
    row = outputs[:1].detach().float().cpu()
    target = torch.full((1, *row.shape[2:]), label, dtype=torch.int64)
    host_loss = loss.to("cpu") if isinstance(loss, torch.nn.Module) else loss
    try:
        with torch.inference_mode():
            host_loss(row, target)
    except (IndexError, RuntimeError, ValueError):
        return False
    finally:
        if isinstance(loss, torch.nn.Module):
            loss.to(outputs.device)
    return True

"""Checks of the arguments of a `Model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hopyard.checks import metric_fault, names
from hopyard.frameworks.torch.losses import takes_labels
from hopyard.text import shown

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Half precisions, by the names that `autocast=` takes."""


def wrong_types(module: Any, optimizer: Any, metrics: Any, patterns: Mapping[str, Any]) -> Iterator[str]:
    """Yield which arguments are nothing that can be looked into."""
    if not isinstance(module, torch.nn.Module):
        yield f"module must be a torch.nn.Module, got {shown(module)}"
    if isinstance(optimizer, type) or not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
        yield f"optimizer must be a torch optimizer of module.parameters(), got {shown(optimizer)}"
    if metrics is not None and not isinstance(metrics, Mapping):
        yield f"metrics must be a dict from name to metric, or None, got {shown(metrics)}"
    for keyword, value in patterns.items():
        if names(value) is None:
            yield f"{keyword} must be a list of patterns of names, got {shown(value)}"


def faults(model: Any, autocast: Any, clip_norm: Any) -> Iterator[str]:
    """Yield what is wrong with the arguments of a `Model`; `autocast` and `clip_norm` are as the user gave them."""
    lazy = [name for name, p in model.module.named_parameters() if isinstance(p, torch.nn.UninitializedParameter)]
    if lazy:
        yield f"module: parameter {lazy[0]!r} has no shape yet; call the module once on a row of the data"
    if isinstance(model.optimizer, torch.optim.LBFGS):
        yield "optimizer: LBFGS calls the loss several times for a step; write a Trainable of your own for it"
    own = {id(parameter) for parameter in model.module.parameters()}
    if own and not any(id(p) in own for group in model.optimizer.param_groups for p in group["params"]):
        yield "optimizer: none of its parameters is one of the module's; give it module.parameters()"
    if isinstance(model.loss, type):
        yield f"loss is the class {model.loss.__name__}; give an instance: {model.loss.__name__}()"
    if isinstance(model.loss, str) and model.loss == "model":
        if not takes_labels(model.module):
            forward = f"{type(model.module).__name__}.forward"
            yield (
                f'loss="model" calls the module with labels=, which {forward} does not take; give a function '
                "loss(outputs, targets)"
            )
    elif not callable(model.loss):
        yield f'loss must be a function loss(outputs, targets), or "model", got {shown(model.loss)}'
    for name, metric in model.metrics.items():
        if name == "loss":
            yield 'metrics: "loss" is always there; give yours another name'
        if fault := metric_fault(name):
            yield f"metrics[{name!a}]: {fault}"
        if isinstance(metric, type):
            yield f"metrics[{name!r}] is the class {metric.__name__}; give an instance: {metric.__name__}()"
        elif hasattr(metric, "update") and not hasattr(metric, "result"):
            yield (
                f"metrics[{name!r}] has update and no result, as metrics of torchmetrics, which keep their sums to "
                "themselves; write update(outputs, targets) -> array, which is added up, and result(total) -> float"
            )
        elif not callable(metric) and not (hasattr(metric, "update") and hasattr(metric, "result")):
            yield (
                f"metrics[{name!r}] must be a function f(outputs, targets) -> one value per row, or an object with "
                f"update and result, got {shown(metric)}"
            )
    if model.scheduler is not None and not (
        hasattr(model.scheduler, "step") and hasattr(model.scheduler, "state_dict")
    ):
        yield (
            f"scheduler must be one of torch.optim.lr_scheduler, got {shown(model.scheduler)}; "
            'scheduler_every="epoch" or "batch" says when it steps'
        )
    if isinstance(model.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        yield (
            "scheduler: ReduceLROnPlateau needs a metric before the next epoch, but validation of an epoch may overlap "
            "training of the next; use one that counts steps or epochs"
        )
    if getattr(model.scheduler, "optimizer", model.optimizer) is not model.optimizer:
        yield "scheduler: it was made over another optimizer"
    if not isinstance(model.scheduler_every, str) or model.scheduler_every not in ("epoch", "batch"):
        yield f'scheduler_every must be "epoch" or "batch", got {shown(model.scheduler_every)}'
    size = model.batch_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        yield f"batch_size must be an integer >= 1, or None, got {shown(size)}"
    if model.clip_norm is not None and not model.clip_norm > 0:
        yield f"clip_norm must be a number > 0, or None, got {shown(clip_norm)}"
    if autocast is not None and not any(model.autocast is half for half in HALVES.values()):
        yield f'autocast must be "bfloat16", "float16" or None, got {shown(autocast)}'
    if model.augment is not None and not _takes_two(model.augment):
        yield f"augment must be a function augment(inputs, generator) -> inputs, got {shown(model.augment)}"


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError, RecursionError):  # the last from the repr of what is no function
        return False
    return True

"""Whether labels fit a torch model's outputs, and its loss."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hopyard.frameworks.torch.metrics import map_tensors

Loss = Callable[..., Any]
"""What losses raise for labels that they do not take."""


def label_fault(outputs: Any, low: float, high: float, loss: Loss | None = None, whole: bool = True) -> str:
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
        f"label {wrong[0]} has none; "
        + (f"give the model {int(high) + 1} outputs, or " if low >= 0 else "")
        + "number the labels from 0"
    )


def _accepts(loss: Loss | None, outputs: torch.Tensor, label: int) -> bool:
    loss = torch.nn.functional.cross_entropy if loss is None else loss
    row = outputs[:1].detach().float().cpu()
    target = torch.full((1, *row.shape[2:]), label, dtype=torch.int64)
    host_loss = loss.to("cpu") if isinstance(loss, torch.nn.Module) else loss
    try:
        with torch.inference_mode():
            host_loss(row, target)
    except (IndexError, RuntimeError, ValueError):
        return False
    except Exception:  # noqa: BLE001 - of the user's own loss, for another reason
        return True
    finally:
        if isinstance(loss, torch.nn.Module):
            loss.to(outputs.device)
    return True


def loss_fault(outputs: Any, targets: Any, loss: Loss, label: str) -> str:
    """Return why the loss does not take these labels, or takes them otherwise than row by row; "" when nothing is
    wrong, or when no change of dtype or shape would help.

    Args:
        outputs: the outputs of one batch: a tensor, or tensors in dicts, lists or tuples.
        targets: its labels: a tensor, or a dict of tensors.
        loss: the model's.
        label: the name of a single label.
    """
    if targets is None:
        return _lacks_label(outputs, loss)
    if _is_cross_entropy_of_one(outputs, targets, loss):
        return _lacks_classes(outputs, targets, loss, label) or _no_class_numbers(outputs, targets, label)
    if _value(loss, outputs, targets) is not None:
        return _pairs_all(outputs, targets, loss, label)
    if fault := _lacks_classes(outputs, targets, loss, label):
        return fault
    for changed, remedy in _changes(outputs, targets, loss, label):
        if _value(loss, outputs, changed) is not None:
            return remedy
    return ""


def _lacks_label(outputs: Any, loss: Loss) -> str:
    """Return a fault where the loss does not take None, which stands for the labels that the data lacks."""
    try:
        with torch.no_grad():
            _call(loss, outputs, None)
    except Exception as error:  # noqa: BLE001 - any class; the text says whether it is because of None
        if "None" in str(error):
            name = getattr(loss, "__name__", type(loss).__name__)
            return f"the data has no label, but the model's loss ({name}) needs one: name it, Dataset(…, label=…)"
    return ""


def _call(loss: Loss, outputs: Any, targets: Any) -> Any:
    """Return what the loss gives; a module is called as a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = copy.deepcopy(loss) if isinstance(loss, torch.nn.Module) else loss
        return tried(outputs, targets)


def _value(loss: Loss, outputs: Any, targets: Any) -> torch.Tensor | None:
    """Return the loss, flat; None where it, or its gradient, cannot be computed. A module is tried as a copy."""
    leaves: list[torch.Tensor] = []

    def leaf(output: torch.Tensor) -> torch.Tensor:
        detached = output.detach().clone()
        if detached.is_floating_point():
            leaves.append(detached.requires_grad_())
        return detached

    try:
        with torch.enable_grad():
            value = _call(loss, map_tensors(outputs, leaf), map_tensors(targets, torch.Tensor.clone))
            value = value[0] / value[1] if isinstance(value, tuple) else value  # of a loss over tokens
            torch.autograd.grad(value.sum(), leaves, allow_unused=True)
            return value.detach().reshape(-1)  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 - the user's own loss may refuse by any: the real step will say so
        return None


def _lacks_classes(outputs: Any, targets: Any, loss: Loss, label: str) -> str:
    """Return a fault where the loss takes class numbers, and the model gives one output for all classes."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return ""
    if targets.ndim != 1 or outputs.numel() != len(targets) or not len(targets):
        return ""
    classes = max(2, int(targets.max()) + 1)
    if _value(loss, outputs.reshape(-1, 1).expand(-1, classes), targets) is None:
        return ""
    return (
        f"outputs have shape {_shape(outputs)}, and the loss takes class numbers such as label {label!r} by one output "
        f"for each class: give the model {classes} outputs (ctx.classes), or take a loss of one output, such as "
        "BCEWithLogitsLoss, with targets.float()"
    )


def _is_cross_entropy_of_one(outputs: Any, targets: Any, loss: Loss) -> bool:
    """Whether there is one output a row, and the loss is cross entropy: it takes a flat batch for the classes of one
    row, and a column for rows of one class, whose loss is 0. Tried with outputs and labels of those shapes."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return False
    rows = len(outputs) if outputs.ndim else 0
    if rows < 2 or outputs.numel() != rows or targets.numel() != rows or not outputs.is_floating_point():
        return False
    numbers = torch.arange(rows, dtype=outputs.dtype, device=outputs.device).reshape(outputs.shape)
    value = _value(loss, numbers / rows, numbers % 2)
    return value is not None and _equal(value, _value(torch.nn.functional.cross_entropy, numbers / rows, numbers % 2))


def _no_class_numbers(outputs: torch.Tensor, targets: torch.Tensor, label: str) -> str:
    """Return the fault where cross entropy gets one output a row and labels that are not class numbers."""
    others = targets[(targets < 0) | (targets != targets.round())]
    kind = str(targets.dtype).removeprefix("torch.")
    holds = f"holds {others[0].item():g}" if len(others) else f"is {kind}"
    return (
        f"the loss is cross entropy, which takes class numbers 0, 1, … and one output for each class; label {label!r} "
        f"{holds}, and outputs have shape {_shape(outputs)}: number the classes from 0 in an integer column and give "
        "the model ctx.classes outputs, or take a loss of one output, such as MSELoss, or BCEWithLogitsLoss for 0.0 "
        "and 1.0"
    )


def _pairs_all(outputs: Any, targets: Any, loss: Loss, label: str) -> str:
    """Return a fault where the loss compares each output of shape (rows, 1) with each label of shape (rows,), or the
    other way round, as broadcasting makes it do: then it does not change when the labels alone change places, and with
    outputs of the labels' shape it does. Tried with the labels as outputs, as those of a fresh net may be one
    constant."""
    if not (_is_column(outputs, targets) or _is_column(targets, outputs)):
        return ""
    if bool((targets == targets[:1]).all()):  # of a rare event, or sorted rows
        targets = (torch.arange(targets.numel(), device=targets.device) % 2).to(targets.dtype).reshape(targets.shape)
    perfect, others = targets.to(outputs.dtype), targets.roll(1, 0)
    if _equal(_value(loss, perfect, targets), _value(loss, perfect, others)):
        return ""
    perfect = perfect.reshape(outputs.shape)
    if not _equal(_value(loss, perfect, targets), _value(loss, perfect, others)):
        return ""
    return (
        f"outputs have shape {_shape(outputs)} and label {label!r} has shape {_shape(targets)}, so the loss compares "
        f"each output with the labels of all rows; {_reshape(outputs, targets, label)}"
    )


def _is_column(column: Any, flat: Any) -> bool:
    """Whether the first has the other's shape and one more axis, of length 1; with more than one row."""
    return (
        isinstance(column, torch.Tensor)
        and isinstance(flat, torch.Tensor)
        and flat.ndim >= 1
        and len(flat) > 1
        and column.shape == (*flat.shape, 1)
    )


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two losses are equal up to rounding, or neither can be computed."""
    if a is None or b is None:
        return a is b
    return torch.allclose(a.double().sum(), b.double().sum(), rtol=1e-3, atol=1e-6, equal_nan=True)


def _changes(outputs: Any, targets: Any, loss: Loss, label: str) -> Iterator[tuple[Any, str]]:
    """Yield labels in a form that the loss may take, and what to tell the user who has others."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(targets, dict):
        others = {key: other for key, target in targets.items() if (other := _other(target)) is not None}
        for key, other in others.items():
            yield {**targets, key: other}, _recast(key, targets[key], other, f"targets[{key!r}]", name)
        if len(others) > 1:
            texts = [_recast(key, targets[key], other, f"targets[{key!r}]", name) for key, other in others.items()]
            yield {**targets, **others}, "; ".join(texts)
        return
    other = _other(targets)
    recast = "" if other is None else _recast(label, targets, other, "targets", name)
    if _is_column(outputs, targets) or _is_column(targets, outputs):
        shapes = f"outputs have shape {_shape(outputs)} and label {label!r} has shape {_shape(targets)}, which {name} "
        reshape = f"{shapes}does not take; {_reshape(outputs, targets, label)}"
        yield targets.reshape(outputs.shape), reshape
        if other is not None:
            yield other.reshape(outputs.shape), f"{recast}; then: {reshape}"
    if other is not None:
        yield other, recast


def _other(target: torch.Tensor) -> torch.Tensor | None:
    """Return integers as float32, and whole numbers in floating point as int64; None for other labels."""
    if not target.is_floating_point():
        return target.float()
    return target.long() if bool((target == target.round()).all()) else None


def _recast(label: str, target: torch.Tensor, other: torch.Tensor, name: str, loss: str) -> str:
    old, new = (str(tensor.dtype).removeprefix("torch.") for tensor in (target, other))
    kind = "class numbers" if new == "int64" else "floating-point labels"
    method = "long" if new == "int64" else "float"
    return (
        f"label {label!r} is {old}, and the loss ({loss}) takes {kind} ({new}): make the column "
        f"{'an integer' if new == 'int64' else 'a floating-point'} one, or write {name}.{method}() in the loss"
    )


def _reshape(outputs: torch.Tensor, targets: torch.Tensor, label: str) -> str:
    change = "squeeze" if outputs.ndim > targets.ndim else "unsqueeze"
    return f"return outputs.{change}(-1) from the module, or give label {label!r} the outputs' shape"


def _shape(tensor: torch.Tensor) -> str:
    return f"({', '.join(['rows', *map(str, tensor.shape[1:])])}{',' if tensor.ndim == 1 else ''})"

"""The State of a torch model, and how it is copied into a model that is already built.

A State holds everything that training changes: parameters, every buffer (also those that `state_dict` leaves out),
optimizer state and param groups, scheduler, scaler. What is frozen is left out (see `frozen`). A State is copied *into*
the existing tensors: module and optimizer keep their identity, because optimizers and schedulers refer to them, and
because `Optimizer.load_state_dict` aliases the tensors that it receives, so that two trials would share one memory.

Functions here are pairs: `take_*` returns a tree that refers to live tensors (copy it before training goes on), `put_*`
copies one in.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from hopyard.errors import SpecError
from hopyard.frameworks.torch.tensors import copy_into, dtype_of, shape_of
from hopyard.ports.states import Leaf

Tree = dict[str, Any]

_ON_HOST = ("step", "mu_product", "eta", "mu")
"""Scalars that torch's optimizers keep on the host, wherever the parameters are, unless capturable or fused."""


def take_module(module: torch.nn.Module, without: Collection[str] = ()) -> Tree:
    """Return parameters, buffers and extra state; tied ones occur once, under their first name.

    Args:
        module: has them.
        without: names of parameters and buffers that are left out.
    """
    extra = {
        name: part.get_extra_state()
        for name, part in module.named_modules()
        if type(part).get_extra_state is not torch.nn.Module.get_extra_state
    }
    tree: Tree = {
        "parameters": {name: p.detach() for name, p in module.named_parameters() if name not in without},
        "buffers": buffers_of(module, without),
    }
    return tree | {"extra": extra} if extra else tree


def put_module(module: torch.nn.Module, tree: Tree, without: Collection[str] = ()) -> None:
    """Copies a State in, but for the parameters and buffers of the names in `without`. Raises SpecError when the module
    was built with other parameters, shapes or dtypes."""
    parameters = {name: p for name, p in module.named_parameters() if name not in without}
    saved = {name: value for name, value in tree["parameters"].items() if name not in without}
    _check_names("parameters", parameters, saved)
    for name, value in saved.items():
        _check_fits(f"parameter {name!r}", parameters[name], value)
    buffers = buffers_of(module, without)
    saved_buffers = {name: value for name, value in tree["buffers"].items() if name not in without}
    _check_names("buffers", buffers, saved_buffers)
    for name, value in saved.items():
        copy_into(parameters[name], value)
        parameters[name].grad = None
    for name, value in saved_buffers.items():
        buffer = buffers[name]
        if buffer is not None and value is not None and _alike(buffer, value):
            copy_into(buffer, value)
        elif buffer is not None or value is not None:  # buffers may be None at first, or grow
            owner, _, key = name.rpartition(".")
            submodule = module.get_submodule(owner)
            submodule._buffers[key] = None if value is None else _new(value, _device(module))
    for name, value in tree.get("extra", {}).items():
        module.get_submodule(name).set_extra_state(_copied(value))


def buffers_of(module: torch.nn.Module, without: Collection[str] = ()) -> dict[str, torch.Tensor | None]:
    """Return all buffers by their first name, also those that are None or not persistent, but no name in `without`."""
    buffers: dict[str, torch.Tensor | None] = {}
    buffer_ids: set[int] = set()
    for prefix, submodule in module.named_modules():
        for key, buffer in submodule._buffers.items():
            if buffer is None or id(buffer) not in buffer_ids:
                buffer_ids.add(id(buffer))
                buffers[f"{prefix}.{key}" if prefix else key] = None if buffer is None else buffer.detach()
    return {name: buffer for name, buffer in buffers.items() if name not in without}


def take_optimizer(optimizer: torch.optim.Optimizer) -> Tree:
    """Return the state by the position of each parameter, and param groups without their parameters."""
    position = {id(p): n for n, p in enumerate(_parameters(optimizer))}
    state = {}
    for key, values in optimizer.state.items():
        if isinstance(key, torch.Tensor) and id(key) not in position:
            continue  # its parameter was removed from its group
        state[position[id(key)] if isinstance(key, torch.Tensor) else key] = dict(values)
    groups = [_plain({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    return {"state": state, "groups": groups}


def put_optimizer(optimizer: torch.optim.Optimizer, tree: Tree) -> None:
    """Copies a State in, and drops entries that only the optimizer has, so that a State from before the first step is
    restored exactly. Raises SpecError when the groups differ in number."""
    if len(tree["groups"]) != len(optimizer.param_groups):
        raise SpecError(
            f"the State's optimizer has {len(tree['groups'])} param groups, the built one "
            f"{len(optimizer.param_groups)}: the recipe must build the same for the same config"
        )
    owner: dict[int, dict[str, Any]] = {}
    for group, saved in zip(optimizer.param_groups, tree["groups"], strict=True):
        _merge(group, saved, keep="params")
        owner |= {id(p): group for p in group["params"]}
    parameters = _parameters(optimizer)
    states: dict[Any, dict[str, Any]] = {
        parameters[key] if isinstance(key, int) else key: values for key, values in tree["state"].items()
    }
    for key in [key for key in optimizer.state if key not in states]:
        del optimizer.state[key]
    for key, values in states.items():
        state = optimizer.state[key]
        for name in [name for name in state if name not in values]:
            del state[name]
        for name, value in values.items():
            current = state.get(name)
            if isinstance(current, torch.Tensor) and dtype_of(value) is not None and _alike(current, value):
                copy_into(current, value)
            elif isinstance(key, torch.Tensor):
                state[name] = _new_state(key, owner[id(key)], name, value)
            else:
                state[name] = _copied(value)


def move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Moves optimizer state to `device`, except for the scalars that belong on the host."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = value.to(_state_device(p, group, name, value.shape, device))


def _new_state(parameter: torch.Tensor, group: dict[str, Any], name: str, value: Any) -> Any:
    """Return new optimizer state as the optimizer creates it: on the device of its parameter, with its strides."""
    dtype = dtype_of(value)
    if dtype is None:
        return _copied(value)
    shape = shape_of(value)
    device = _state_device(parameter, group, name, shape, parameter.device)
    if shape == tuple(parameter.shape):
        tensor = torch.empty_like(parameter, dtype=dtype, device=device, requires_grad=False)
    else:
        tensor = torch.empty(shape, dtype=dtype, device=device)
    copy_into(tensor, value)
    return tensor


def _state_device(
    parameter: torch.Tensor, group: dict[str, Any], name: str, shape: Any, device: torch.device
) -> torch.device:
    host = name in _ON_HOST and not len(shape) and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if host else device


def take_scheduler(scheduler: Any) -> Tree:
    """Return its `state_dict` without what cannot be stored (functions), which the built scheduler keeps."""
    return dict(_plain(scheduler.state_dict()))


def put_scheduler(scheduler: Any, tree: Tree) -> None:
    """Copies a State in; the scheduler keeps the types of its values (MultiStepLR's Counter) and its functions."""
    scheduler.load_state_dict(_graft(scheduler.state_dict(), tree))


_GAP = object()


def _plain(value: Any) -> Any:
    """Return `value` without the entries of dicts that cannot be stored; _GAP when nothing of it can."""
    if isinstance(value, dict):
        plain_items = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain_items.items() if item is not _GAP}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        if any(item is _GAP for item in items):
            return _GAP
        return items if isinstance(value, list) else tuple(items)
    storable = value is None or isinstance(value, (str, int, float, np.ndarray, np.generic, torch.Tensor))
    return value if storable else _GAP


def _graft(template: Any, value: Any) -> Any:
    """Return `value` in the form of `template`: with the same class of dict, and the entries that cannot be stored."""
    if isinstance(template, dict) and isinstance(value, dict):
        merged = template.copy()  # a Counter stays a Counter
        merged.clear()
        for key, item in template.items():
            if key in value:
                merged[key] = _graft(item, value[key])
            elif _plain(item) is _GAP:
                merged[key] = item
        for key, item in value.items():
            if key not in template:
                merged[key] = _copied(item)
        return merged
    if isinstance(template, list) and isinstance(value, list) and len(template) == len(value):
        return [_graft(a, b) for a, b in zip(template, value, strict=True)]
    return _copied(value)


def _merge(group: dict[str, Any], saved: Tree, *, keep: str) -> None:
    """Makes `group` equal to `saved`, copying into existing tensors (a learning rate may be one)."""
    for key in [key for key in group if key != keep and key not in saved and _plain(group[key]) is not _GAP]:
        del group[key]
    for key, value in saved.items():
        current = group.get(key)
        if isinstance(current, torch.Tensor) and dtype_of(value) is not None and _alike(current, value):
            copy_into(current, value)
        else:
            group[key] = _copied(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _copied(value: Any) -> Any:
    """Return an independent copy of anything in a State."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (torch.Tensor, Leaf)):
        return _new(value, torch.device("cpu"))
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _new(value: Any, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(shape_of(value), dtype=dtype_of(value), device=device)
    copy_into(tensor, value)
    return tensor


def _device(module: torch.nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _alike(tensor: torch.Tensor, value: Any) -> bool:
    return tuple(tensor.shape) == shape_of(value) and tensor.dtype == dtype_of(value)


def _check_fits(label: str, tensor: torch.Tensor, value: Any) -> None:
    if not _alike(tensor, value):
        raise SpecError(
            f"{label} of the State has shape {shape_of(value)} and dtype {dtype_of(value)}, the built module's has "
            f"{tuple(tensor.shape)} and {tensor.dtype}: the recipe must build the same for the same config"
        )


def _check_names(kind: str, built: Any, saved: Any) -> None:
    if built.keys() != saved.keys():
        missing, extra = sorted(saved.keys() - built.keys()), sorted(built.keys() - saved.keys())
        raise SpecError(
            f"the {kind} of the State are not those of the built module (missing there: {missing[:5]}, only there: "
            f"{extra[:5]}): the recipe must build the same for the same config"
        )

"""What the State of a torch model is, and how it gets into a model that is already built.

A State holds all that training changes: parameters, every buffer (also those that `state_dict` leaves out), optimizer
state and param groups, scheduler, scaler. It goes *into* the tensors that are there: module and optimizer keep their
identity, because optimizers and schedulers hold on to them, and because `Optimizer.load_state_dict` keeps (aliases)
the tensors it is given, so that two trials would share one memory.

Functions here are pairs: `take_*` gives a tree that refers to live tensors (copy it before training goes on), `put_*`
copies one in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopyard.errors import SpecError
from hopyard.frameworks.torch.tensors import copy_into, dtype_of, shape_of
from hopyard.ports import Leaf

Tree = dict[str, Any]

_ON_HOST = ("step", "mu_product", "eta", "mu")
"""Scalars that torch's optimizers keep on the host, wherever the parameters are, unless capturable or fused."""


def take_module(module: torch.nn.Module) -> Tree:
    """Parameters, buffers and extra state; what is tied is there once, under its first name."""
    extra = {
        name: part.get_extra_state()
        for name, part in module.named_modules()
        if type(part).get_extra_state is not torch.nn.Module.get_extra_state
    }
    tree: Tree = {
        "parameters": {name: p.detach() for name, p in module.named_parameters()},
        "buffers": _buffers(module),
    }
    return tree | {"extra": extra} if extra else tree


def put_module(module: torch.nn.Module, tree: Tree) -> None:
    """Copy in. Raises SpecError when the module was built with other parameters, shapes or dtypes."""
    parameters = dict(module.named_parameters())
    _same_names("parameters", parameters, tree["parameters"])
    for name, value in tree["parameters"].items():
        _fits(f"parameter {name!r}", parameters[name], value)
    buffers = _buffers(module)
    _same_names("buffers", buffers, tree["buffers"])
    for name, value in tree["parameters"].items():
        copy_into(parameters[name], value)
        parameters[name].grad = None
    for name, value in tree["buffers"].items():
        here = buffers[name]
        if here is not None and value is not None and _alike(here, value):
            copy_into(here, value)
        elif here is not None or value is not None:  # buffers may be None at first, or grow
            owner, _, key = name.rpartition(".")
            part = module.get_submodule(owner)
            part._buffers[key] = None if value is None else _new(value, _device(module))
    for name, value in tree.get("extra", {}).items():
        module.get_submodule(name).set_extra_state(_own(value))


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """All buffers by their first name, those that are None and those that are not persistent too."""
    found: dict[str, torch.Tensor | None] = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is None or id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{prefix}.{key}" if prefix else key] = None if buffer is None else buffer.detach()
    return found


def take_optimizer(optimizer: torch.optim.Optimizer) -> Tree:
    """State by the position of the parameter, and param groups without the parameters."""
    position = {id(p): n for n, p in enumerate(_parameters(optimizer))}
    state = {}
    for key, values in optimizer.state.items():
        if isinstance(key, torch.Tensor) and id(key) not in position:
            continue  # of a parameter that was removed from its group
        state[position[id(key)] if isinstance(key, torch.Tensor) else key] = dict(values)
    groups = [_plain({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    return {"state": state, "groups": groups}


def put_optimizer(optimizer: torch.optim.Optimizer, tree: Tree) -> None:
    """Copy in; what the optimizer has and the State has not is dropped, so that a State from before the first step
    restores exactly. Raises SpecError when the groups differ in number."""
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
    wanted: dict[Any, dict[str, Any]] = {
        parameters[key] if isinstance(key, int) else key: values for key, values in tree["state"].items()
    }
    for key in [key for key in optimizer.state if key not in wanted]:
        del optimizer.state[key]
    for key, values in wanted.items():
        state = optimizer.state[key]
        for name in [name for name in state if name not in values]:
            del state[name]
        for name, value in values.items():
            here = state.get(name)
            if isinstance(here, torch.Tensor) and dtype_of(value) is not None and _alike(here, value):
                copy_into(here, value)
            elif isinstance(key, torch.Tensor):
                state[name] = _beside(key, owner[id(key)], name, value)
            else:
                state[name] = _own(value)


def move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Bring optimizer state to `device`, but for the scalars that belong to the host."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = value.to(_place(p, group, name, value.shape, device))


def _beside(parameter: torch.Tensor, group: dict[str, Any], name: str, value: Any) -> Any:
    """New optimizer state as the optimizer itself would have made it: beside its parameter, with its strides."""
    dtype = dtype_of(value)
    if dtype is None:
        return _own(value)
    shape = shape_of(value)
    device = _place(parameter, group, name, shape, parameter.device)
    if shape == tuple(parameter.shape):
        made = torch.empty_like(parameter, dtype=dtype, device=device, requires_grad=False)
    else:
        made = torch.empty(shape, dtype=dtype, device=device)
    copy_into(made, value)
    return made


def _place(parameter: torch.Tensor, group: dict[str, Any], name: str, shape: Any, device: torch.device) -> torch.device:
    host = name in _ON_HOST and not len(shape) and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if host else device


def take_scheduler(scheduler: Any) -> Tree:
    """Its `state_dict` without what cannot be stored (functions): that stays with the one that is built."""
    return dict(_plain(scheduler.state_dict()))


def put_scheduler(scheduler: Any, tree: Tree) -> None:
    """Copy in, keeping the types of the built one's values (MultiStepLR's Counter) and its functions."""
    scheduler.load_state_dict(_graft(scheduler.state_dict(), tree))


_GAP = object()


def _plain(value: Any) -> Any:
    """`value` without the entries of dicts that cannot be stored; _GAP when nothing is left of it."""
    if isinstance(value, dict):
        kept = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not _GAP}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        if any(item is _GAP for item in items):
            return _GAP
        return items if isinstance(value, list) else tuple(items)
    storable = value is None or isinstance(value, (str, int, float, np.ndarray, np.generic, torch.Tensor))
    return value if storable else _GAP


def _graft(here: Any, value: Any) -> Any:
    """`value` in the form of `here`: same class of dict, and the entries that could not be stored."""
    if isinstance(here, dict) and isinstance(value, dict):
        made = here.copy()  # a Counter stays one
        made.clear()
        for key, item in here.items():
            if key in value:
                made[key] = _graft(item, value[key])
            elif _plain(item) is _GAP:
                made[key] = item
        for key, item in value.items():
            if key not in here:
                made[key] = _own(item)
        return made
    if isinstance(here, list) and isinstance(value, list) and len(here) == len(value):
        return [_graft(a, b) for a, b in zip(here, value, strict=True)]
    return _own(value)


def _merge(group: dict[str, Any], saved: Tree, *, keep: str) -> None:
    """Make `group` equal to `saved`, copying into tensors (a learning rate may be one) that are there."""
    for key in [key for key in group if key != keep and key not in saved and _plain(group[key]) is not _GAP]:
        del group[key]
    for key, value in saved.items():
        here = group.get(key)
        if isinstance(here, torch.Tensor) and dtype_of(value) is not None and _alike(here, value):
            copy_into(here, value)
        else:
            group[key] = _own(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _own(value: Any) -> Any:
    """A copy of its own of anything in a State."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (torch.Tensor, Leaf)):
        return _new(value, torch.device("cpu"))
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_own(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _new(value: Any, device: torch.device) -> torch.Tensor:
    made = torch.empty(shape_of(value), dtype=dtype_of(value), device=device)
    copy_into(made, value)
    return made


def _device(module: torch.nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _alike(here: torch.Tensor, value: Any) -> bool:
    return tuple(here.shape) == shape_of(value) and here.dtype == dtype_of(value)


def _fits(what: str, here: torch.Tensor, value: Any) -> None:
    if not _alike(here, value):
        raise SpecError(
            f"{what} of the State has shape {shape_of(value)} and dtype {dtype_of(value)}, the built module's has "
            f"{tuple(here.shape)} and {here.dtype}: the recipe must build the same for the same config"
        )


def _same_names(what: str, here: Any, there: Any) -> None:
    if here.keys() != there.keys():
        missing, more = sorted(there.keys() - here.keys()), sorted(here.keys() - there.keys())
        raise SpecError(
            f"the {what} of the State are not those of the built module (missing there: {missing[:5]}, only there: "
            f"{more[:5]}): the recipe must build the same for the same config"
        )

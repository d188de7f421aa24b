"""How a torch model is saved: the tensors of its `state_dict` for everybody, and the rest of its State beside them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hopyard.frameworks.frozen import KEY
from hopyard.frameworks.torch import state as torch_state
from hopyard.frameworks.torch.tensors import NAMES
from hopyard.ports.frameworks import ModelFile
from hopyard.ports.states import Tree

_DTYPES = {
    dtype for dtype, name in NAMES.items() if name[0] != "C" and name not in ("F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
}
"""Those that every version of safetensors has."""
_OTHERS = "others"
"""Names in the file that stand for nothing in the State: of a `state_dict` that the user's hooks change."""


def model(trainable: Any) -> torch.nn.Module:
    """Return the module of a `Model`, in evaluation mode."""
    module: torch.nn.Module = trainable.module
    return module.eval()


def save(trainable: Any, path: Path, base: bool = True) -> None:
    """Write the tensors of the module's `state_dict` as safetensors. Tied ones are written once, under their first
    name; the metadata name it for the others, as `safetensors.torch.save_model` does. `base`: also what is frozen."""
    from safetensors.torch import save as bytes_of

    tensors, first_names = _tensors(trainable.module)
    left_out = set() if base else trainable._base.ids
    own = {
        name: tensor.detach().contiguous()
        for name, tensor in tensors.items()
        if name not in first_names and id(tensor) not in left_out
    }
    path.write_bytes(bytes_of(own, metadata=first_names))  # `save_file` makes a file that this user alone may read


def rest(trainable: Any, other: Any, content: bytes, base: bool = True) -> Tree:
    """Return what module and loss have and the file of `save` lacks: buffers that are None or not persistent, extra
    state, dtypes that safetensors lacks; the loss, where it is a module with values; the digest of a base that is left
    out."""
    module, frozen = trainable.module, trainable._base
    tree = {
        part: torch_state.take_module(each, () if base else frozen.names[part])
        for part, each in trainable._modules.items()
    }
    tensors, _ = _tensors(module)
    common = {name for name, tensor in _named(module).items() if tensors.get(name) is tensor}
    state: Tree = {
        kind: {name: value for name, value in tree["module"][kind].items() if name not in common}
        for kind in ("parameters", "buffers")
    }
    state |= {"extra": tree["module"].get("extra"), _OTHERS: sorted(tensors.keys() - common)}
    parts = {"module": {kind: values for kind, values in state.items() if values}}
    if "loss" in tree and any(value is not None for values in tree["loss"].values() for value in values.values()):
        parts["loss"] = tree["loss"]
    if not base:
        parts |= frozen.frozen.entry
    return {name: part for name, part in parts.items() if part}


def load(trainable: Any, content: bytes, rest: Tree) -> None:
    """Copy into a model of the same build what `save` and `rest` gave of another. Raises SpecError where they lack the
    base, and this model has another one."""
    from safetensors.torch import load as tensors_of

    module, tensors = trainable.module, tensors_of(content)
    without: Any = {"module": (), "loss": ()}
    if KEY in rest:
        trainable._base.require_same(rest)
        without = trainable._base.names
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors |= {name: tensors[first] for name, first in header.get("__metadata__", {}).items() if first in tensors}
    parameters, buffers = dict(module.named_parameters()), torch_state.buffers_of(module)
    state = dict(rest.get("module", {}))
    for name in {*state.pop(_OTHERS, []), *(_named(module).keys() - parameters.keys() - buffers.keys())}:
        tensors.pop(name, None)
    state["parameters"] = {name: tensors.pop(name) for name in parameters if name in tensors} | state.get(
        "parameters", {}
    )
    state["buffers"] = tensors | state.get("buffers", {})
    torch_state.put_module(module, state, without["module"])
    if "loss" in rest:
        torch_state.put_module(trainable.loss, rest["loss"], without["loss"])
    trainable._renew_base()


def _named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, tied ones by each of their names."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def _tensors(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of the `state_dict` that the file gives back, by name; and name → first name of those that are
    the same as an earlier one. A view of a part of another tensor is not among them: safetensors refuses it."""
    names: dict[Any, str] = {}
    memory: set[int] = set()
    tensors, first_names = {}, {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES:
            continue
        storage = value.untyped_storage().data_ptr() if value.numel() else id(value)
        place = (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
        if place in names:
            first_names[name] = names[place]
        elif storage in memory:
            continue
        names.setdefault(place, name)
        memory.add(storage)
        tensors[name] = value
    return tensors, first_names


_PARTS = ("module", "loss", KEY)
_ADAPTER = ModelFile("model.safetensors", _PARTS, model, partial(save, base=False), partial(rest, base=False), load)
FILE = ModelFile("model.safetensors", _PARTS, model, save, rest, load, without_base=_ADAPTER)

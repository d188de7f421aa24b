"""The frozen tensors of a torch model: which ones they are, and whether anything has written to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from hopyard.checks import closest
from hopyard.errors import SpecError
from hopyard.frameworks.frozen import KEY, Frozen, read
from hopyard.frameworks.torch.tensors import NAMES, dtype_of, lower_tensor
from hopyard.ports.states import Leaf, Tree

_REMEDY = ", or keep in the State what differs from one to the next: hy.torch.Model(state=[…])"


class Base:
    """The parameters of a model that need no gradients now, and what the recipe has declared constant.

    Args:
        modules: "module" and, where the loss is one, "loss" → the module.
        base: patterns of names of other parameters and buffers that are constant.
        state: patterns of names of parameters that training changes without gradients.

    Attributes:
        names: "module" and "loss" → the names of frozen tensors there; of tied ones the first.
        ids: the identities of these tensors.
        frozen: their record.

    Raises:
        SpecError: a pattern matches no name.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module], base: Sequence[str], state: Sequence[str]) -> None:
        self._modules = modules
        constant, kept = matches(modules, "base", base), matches(modules, "state", state)
        self._tensors = _frozen(modules, constant.keys(), kept.keys())
        self._marks = {part: {name: _mark(each) for name, each in own.items()} for part, own in self._tensors.items()}
        self.names = {part: frozenset(own) for part, own in self._tensors.items()}
        self.ids = {id(each) for own in self._tensors.values() for each in own.values()}
        self.frozen = self._read()

    def _read(self) -> Frozen:
        return read((f"{part}.{name}", lower_tensor(each)) for part, name, each in self._each())

    def _each(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        return ((part, name, each) for part, own in self._tensors.items() for name, each in own.items())

    def require_same(self, tree: Tree) -> None:
        """Raise SpecError for the State of a model with another base. A State that has all parameters, as before frozen
        ones were left out, fits where these are the same."""
        digest = tree.get(KEY, "")
        if not digest and self.ids:
            digest = self._digest_in(tree)
        self.frozen.require(digest, _REMEDY)

    def _digest_in(self, tree: Tree) -> str:
        """Return the digest of what a State has for the frozen tensors; "": it lacks some of them."""
        whole = {part: tree[part]["parameters"] | tree[part]["buffers"] for part in self.names}
        if any(whole[part].get(name) is None for part, name, _ in self._each()):
            return ""
        return read((f"{part}.{name}", _leaf(whole[part][name])) for part, name, _ in self._each()).digest

    def require_unchanged(self) -> None:
        """Raise SpecError where torch has written other values to a frozen tensor, or another tensor has taken its
        place. What goes past torch's version counters is not seen."""
        for part, marks in self._marks.items():
            current = _named(self._modules[part]) if marks else {}
            for name, mark in marks.items():
                tensor, key = self._tensors[part][name], f"{part}.{name}"
                if current.get(name) is tensor and _mark(tensor) == mark:
                    continue
                now = read([(key, lower_tensor(tensor))]).digests[key]
                if current.get(name) is not tensor or now != self.frozen.digests[key]:
                    raise SpecError(
                        f"frozen parameter {name!r} has changed: it needs no gradients, or base= names it, so it is "
                        "not in the State, and other workers have its old values. Name it in hy.torch.Model(state=[…]) "
                        "if training changes it without gradients; else let it need gradients when the recipe returns"
                    )
                marks[name] = _mark(tensor)  # the same values were written, or moved

    def changed(self) -> list[str]:
        """Return the names of those that have other bits than at first, whoever wrote them."""
        return [name.partition(".")[2] for name in self.frozen.changed(self._read())]


def _frozen(
    modules: Mapping[str, torch.nn.Module], constant: Collection[int], kept: Collection[int]
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the frozen tensors of each module by name. Those that share memory with a tensor of the State change with
    it, and so are in the State too."""
    named = {part: _named(module) for part, module in modules.items()}
    frozen = {
        part: {
            name: each
            for name, each in own.items()
            if id(each) not in kept
            and (id(each) in constant or (isinstance(each, torch.nn.Parameter) and not each.requires_grad))
        }
        for part, own in named.items()
    }
    hops = {_memory(each) for part, own in named.items() for name, each in own.items() if name not in frozen[part]}
    return {
        part: {name: each for name, each in own.items() if _memory(each) not in hops} for part, own in frozen.items()
    }


def _named(module: torch.nn.Module, tied: bool = False) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; `tied`: by each of their names, else by the first."""
    parameters = dict(module.named_parameters(remove_duplicate=not tied))
    return parameters | dict(module.named_buffers(remove_duplicate=not tied))


def matches(modules: Mapping[str, torch.nn.Module], keyword: str, patterns: Sequence[str]) -> dict[int, torch.Tensor]:
    """Return the tensors that patterns match by one of their names, by identity. Raises SpecError for a pattern that
    matches none; `keyword` is the argument with the patterns."""
    named = [pair for module in modules.values() for pair in _named(module, tied=True).items()] if patterns else []
    tensors: dict[int, torch.Tensor] = {}
    for pattern in patterns:
        own = {id(each): each for name, each in named if fnmatchcase(name, pattern)}
        if not own:
            raise SpecError(
                f"hopyard.torch.Model: {keyword}: {pattern!r} matches no parameter or buffer"
                f"{closest(pattern, [name for name, _ in named])}"
            )
        tensors |= own
    return tensors


def _memory(tensor: torch.Tensor) -> Any:
    """Return what is equal for tensors that may overlap in memory."""
    address = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
    return (tensor.device, address) if address else id(tensor)


def _mark(tensor: torch.Tensor) -> tuple[int, int | None]:
    """Return what is another one once an operation of torch has written to the tensor, or `p.data = …` replaced it."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def _leaf(value: Any) -> Leaf:
    """Return a value of a State as a Leaf."""
    if isinstance(value, torch.Tensor):
        return lower_tensor(value)
    dtype = dtype_of(value)
    return value if isinstance(value, Leaf) or dtype is None else Leaf(value, NAMES[dtype], "torch")

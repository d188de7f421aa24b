"""Recipes whose models keep values in every kind of place, so that each part of a State shows in predictions or loss.

`torch_net` and `keras_net` build what their config's `parts` name; `drawn` is a hypothesis strategy of such configs.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch

import hopyard as hy

WIDTH, ROWS = 4, 24
BUFFERS = (
    *("persistent", "hidden", "hidden-still", "none", "hidden-none", "to-none", "growing", "hidden-growing", "twice"),
    *("view", "complex", "half", "empty"),
)
"""Kinds of buffers."""
OTHERS = ("tied", "shared", "norm", "extra-tensor", "extra-tree", "loss", "loss-hidden", "loss-class")


def data(rows: int = ROWS, seed: int = 0) -> tuple[Any, Any]:
    """x of shape (rows, 4), y of two classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


class Kept(torch.nn.Module):
    """Adds to its input what is in its buffer, which each training batch changes.

    Args:
        kind: one of BUFFERS.
    """

    kept: Any

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        stays = "hidden" not in kind
        first: torch.Tensor | None = torch.zeros(WIDTH)
        if kind in ("none", "hidden-none"):
            first = None
        elif "growing" in kind:
            first = torch.zeros(0, WIDTH)
        elif kind == "complex":
            first = torch.zeros(WIDTH, dtype=torch.complex128)
        elif kind == "half":
            first = torch.zeros(WIDTH, dtype=torch.bfloat16)
        elif kind == "empty":
            first = torch.zeros(0)
        elif kind == "hidden-still":
            first = torch.arange(float(WIDTH))
        elif kind == "view":
            first = self.scale.detach()[:2]
        self.register_buffer("kept", first, persistent=stays)
        if kind == "twice":
            self.register_buffer("again", first, persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self._learn(x.detach().mean(0))
        kept = self.kept
        if kept is None:
            return x * self.scale + 0.25
        if "growing" in self.kind:
            return x * self.scale + kept.sum(0)
        if self.kind == "view":
            return x * self.scale + kept.sum()
        return x * self.scale + kept.real.float() if kept.numel() else x * self.scale

    def _learn(self, mean: Any) -> None:
        kept = self.kept
        if "none" in self.kind:
            self.kept = None if self.kind == "to-none" else mean if kept is None else kept + mean
        elif "growing" in self.kind:
            self.kept = torch.cat([kept, mean[None]])
        elif self.kind not in ("hidden-still", "view", "empty"):
            kept += mean.to(kept.dtype)


class Extra(torch.nn.Module):
    """Keeps values outside of its buffers, as its extra state: a tensor, or a tree; or a number, which is another one
    each time that it is put back ("extra-drifts")."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.kept: Any = torch.zeros(WIDTH)
        self.batches: int = 0

    def forward(self, x: Any) -> Any:
        if self.training:
            self.kept, self.batches = self.kept + x.detach().mean(0), self.batches + 1
        return x + self.kept * 0.5 + self.batches * 0.125

    def get_extra_state(self) -> Any:
        if self.kind == "extra-drifts":
            return self.batches
        if self.kind == "extra-tensor":
            return torch.cat([self.kept, torch.tensor([float(self.batches)])])
        return {"kept": self.kept, "more": [self.batches, None, "text"]}

    def set_extra_state(self, state: Any) -> None:
        if self.kind == "extra-drifts":
            self.batches = state + (state > 1)  # preflight looks after one batch
        elif self.kind == "extra-tensor":
            self.kept, self.batches = state[:-1].clone(), int(state[-1])
        else:
            self.kept, self.batches = state["kept"], state["more"][0]


class Loss(torch.nn.Module):
    """Cross-entropy at a temperature that is learned, plus a number that is counted."""

    seen: Any

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()), persistent=not hidden)

    def forward(self, outputs: Any, targets: Any) -> Any:
        if self.training:
            self.seen += 1
        return torch.nn.functional.cross_entropy(outputs * self.temperature, targets) + 0.01 * self.seen


class Net(torch.nn.Module):
    """A network of the named parts."""

    def __init__(self, parts: list[str]) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        if "tied" in parts:
            self.second.weight = self.first.weight
        if "shared" in parts:
            self.third = self.first
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(WIDTH)] if "norm" in parts else [])
        self.kept = torch.nn.ModuleList([Kept(part) for part in parts if part in BUFFERS])
        self.extra = torch.nn.ModuleList([Extra(part) for part in parts if part.startswith("extra")])
        self.last = torch.nn.Linear(WIDTH, 2)

    def forward(self, x: Any) -> Any:
        x = self.second(torch.tanh(self.first(x)))
        for part in [*self.norms, *self.kept, *self.extra]:
            x = torch.tanh(part(x))
        return self.last(x)


def torch_net(config: dict[str, Any]) -> Any:
    """The recipe."""
    parts = config["parts"]
    module = Net(parts)
    loss: Any = torch.nn.functional.cross_entropy
    if "loss-class" in parts:
        loss = torch.nn.CrossEntropyLoss()
    elif "loss" in parts or "loss-hidden" in parts:
        loss = Loss("loss-hidden" in parts)
    parameters = [*module.parameters(), *(loss.parameters() if isinstance(loss, torch.nn.Module) else [])]
    return hy.torch.Model(
        module,
        torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        loss,
        metrics={"accuracy": hy.torch.accuracy},
        batch_size=ROWS,
    )


def drawn() -> st.SearchStrategy[dict[str, Any]]:
    """Configs of `torch_net`."""
    return st.fixed_dictionaries({"parts": st.lists(st.sampled_from((*BUFFERS, *OTHERS)), unique=True, max_size=8)})


def trained(config: dict[str, Any], directory: Any, recipe: Any = torch_net) -> hy.Run:
    """A run of one trial, in this process."""
    dataset = hy.Dataset.numpy(*data(), validation=0, partitions=2)
    return hy.fit(recipe, config, dataset, epochs=2, engine=hy.Inline(), directory=directory)

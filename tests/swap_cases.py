"""Nets, optimizers and schedulers for `test_torch_swap`, in a module that another process can import by name."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as lr

from hopyard.frameworks import seed_all
from hopyard.frameworks.torch.model import Model, accuracy
from hopyard.frameworks.torch.runtime import install
from hopyard.frameworks.tree import capture, restore
from hopyard.store.tree import decode, encode
from rows import rows

P, EPOCHS = 3, 3


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 16, num_layers=2, batch_first=True, dropout=0.2)
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.view(-1, 4, 5))[0][:, -1])


class Tied(nn.Module):
    """Encoder and decoder share one weight; a buffer that is not persistent counts calls and scales."""

    calls: torch.Tensor
    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight
        self.out = nn.Linear(20, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            here = x.mean(0).detach()
            self.mean = here if self.mean is None else 0.9 * self.mean + 0.1 * here
        hidden = torch.tanh(self.first(x)) * (1 + self.calls / 100)
        return self.out(torch.tanh(self.second(hidden - self.mean)))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.bfloat16()).float()


def transposed() -> nn.Module:
    """Parameters and buffers that are not contiguous."""
    net = nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))
    net[0].weight = nn.Parameter(torch.randn(20, 24).mul_(0.1).t())
    net[3].weight = nn.Parameter(torch.randn(5, 48).mul_(0.1)[:, ::2])
    net[1].running_mean = torch.zeros(48)[::2]
    assert not any(t.is_contiguous() for t in (net[0].weight, net[3].weight, net[1].running_mean))
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(
        nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 19), nn.LayerNorm(19),
        nn.GELU(), nn.Dropout(0.1), nn.Linear(19, 5),
    ),
    "cnn": lambda: nn.Sequential(  # type: ignore[call-overload]
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2),
        nn.Flatten(), nn.Linear(160, 5),
    ).to(memory_format=torch.channels_last),
    "lstm": Recurrent,
    "tied": Tied,
    "bf16": Half,
    "transposed": transposed,
}  # fmt: skip


def groups(net: nn.Module) -> list[dict[str, Any]]:
    parameters = list(net.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.01, "lr": 3e-3}]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=1e-3),
    "amsgrad": lambda net: torch.optim.AdamW(groups(net), lr=1e-3, amsgrad=True),
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=1e-3, centered=True, momentum=0.5),
    "tensor": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3)),
    "fused": lambda net: torch.optim.Adam(net.parameters(), lr=1e-3, fused=True),
    "nadam": lambda net: torch.optim.NAdam(net.parameters(), lr=1e-3),
    "asgd": lambda net: torch.optim.ASGD(net.parameters(), lr=1e-2),
    "adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=1e-2),
    "adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=1e-2),
    "plain": lambda net: torch.optim.SGD(net.parameters(), lr=1e-2),
}

SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "none": ("epoch", lambda opt: None),
    "lambda": ("epoch", lambda opt: lr.LambdaLR(opt, lambda epoch: 0.7**epoch)),
    "cosine": ("batch", lambda opt: lr.CosineAnnealingLR(opt, 30)),
    "onecycle": ("batch", lambda opt: lr.OneCycleLR(opt, 0.05, total_steps=P * EPOCHS * 4)),
    "multistep": ("epoch", lambda opt: lr.MultiStepLR(opt, [1, 2, 2], gamma=0.3)),
    "sequential": (
        "batch",
        lambda opt: lr.SequentialLR(opt, [lr.LinearLR(opt, 0.1, total_iters=9), lr.ExponentialLR(opt, 0.95)], [10]),
    ),
    "chained": ("epoch", lambda opt: lr.ChainedScheduler([lr.ConstantLR(opt, 0.5, 2), lr.StepLR(opt, 1, 0.9)])),
    "restarts": ("batch", lambda opt: lr.CosineAnnealingWarmRestarts(opt, 5)),
    "cyclic": ("batch", lambda opt: lr.CyclicLR(opt, 1e-4, 1e-2, 7, scale_fn=lambda x: 0.9**x)),
}

CASES = (
    [(net, opt, "cosine") for net in ("mlp", "cnn", "lstm") for opt in ("adam", "amsgrad", "sgd", "rmsprop")]
    + [("mlp", opt, "lambda") for opt in OPTIMIZERS if opt not in ("adam", "amsgrad", "sgd", "rmsprop")]
    + [("mlp", "sgd", name) for name in SCHEDULERS]
    + [(net, "adam", "none") for net in ("tied", "bf16", "transposed")]
    + [("mlp", "tensor", "onecycle"), ("transposed", "amsgrad", "sequential"), ("tied", "sgd", "multistep")]
)
Case = tuple[str, str, str]


def build(case: Case, seed: int) -> Model:
    net, opt, schedule = case
    seed_all(seed)
    module = NETS[net]()
    optimizer = OPTIMIZERS[opt](module)
    every, scheduler = SCHEDULERS[schedule]
    metrics = {"accuracy": accuracy}
    made = scheduler(optimizer)
    return Model(
        module, optimizer, nn.functional.cross_entropy, metrics, scheduler=made, scheduler_every=every, clip_norm=1.0  # type: ignore[arg-type]
    )  # fmt: skip


def step(model: Model, trial: int, number: int) -> Any:
    """Partition `number` of this trial, and the end of the epoch where it is one."""
    seed = 1000 * trial + number
    seed_all(seed)
    sums = model.train_partition(rows(seed))
    if number % P == P - 1:
        model.end_epoch()
    return sums


def dirty(model: Model, number: int) -> None:
    """Another trial was here, and left gradients too."""
    step(model, 7, number % 3)
    model.module(torch.randn(4, 20)).sum().backward()
    torch.randn(number * 7 + 1)


def never_swapped(case: Case) -> tuple[bytes, list[Any], bytes]:
    model = build(case, 0)
    first = bytes(encode(capture(model)))
    sums = [step(model, 0, number) for number in range(P * EPOCHS)]
    return first, sums, bytes(encode(capture(model)))


def serve(pipe: Connection) -> None:
    """The other process: models are built once for each case, with other seeds, and kept."""
    install(True, 1)
    built: dict[Case, Model] = {}
    while (job := pipe.recv()) is not None:
        case, number, data = job
        if case not in built:
            built[case] = build(case, 4321)
        model = built[case]
        dirty(model, number)
        restore(model, decode(data))
        sums = step(model, 0, number)
        pipe.send((sums, bytes(encode(capture(model)))))

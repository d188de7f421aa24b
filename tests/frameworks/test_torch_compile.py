"""`torch.compile` in a recipe: names of a State, and bits that do not depend on what was compiled before."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hopyard.frameworks import seed_all
from hopyard.frameworks.torch.metrics import accuracy
from hopyard.frameworks.torch.model import Model
from hopyard.frameworks.tree import capture
from hopyard.spec import RunSpec
from hopyard.store.tree import encode
from hopyard.training.build import Plan, build, install
from jobs import dataset
from rows import rows

BATCH_SIZES = (8, 24)
"""Of trials whose networks are alike."""


def model(batch_size: int | None = None, **compiled: Any) -> Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 40), nn.LayerNorm(40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    module: Any = torch.compile(net, **compiled) if compiled else net
    return Model(module, optimizer, F.cross_entropy, {"accuracy": accuracy}, batch_size=batch_size)


def bits(made: Model) -> bytes:
    return bytes(encode(capture(made)))


def test_a_compiled_module_has_the_state_of_the_module() -> None:
    plain, compiled = model(), model(backend="eager")
    assert bits(compiled) == bits(plain) and type(compiled.module) is nn.Sequential
    for made in (plain, compiled):
        seed_all(1)
        made.train_partition(rows(1))
    assert bits(compiled) == bits(plain)
    compiled.load(plain.state())
    assert compiled.evaluate_partition(rows(2)) == plain.evaluate_partition(rows(2))
    assert not compiled.module.training and not compiled._called.training


def digests(order: tuple[int, ...], dynamic: bool | None) -> dict[int, str]:
    """Batch size → digest of the State and the sums of a trial, trained in this order by one worker."""
    plan = Plan(lambda config: model(**config), dataset().prepare(), RunSpec(epochs=1, partitions=4, validation=0))
    install(plan)
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    found = {}
    for batch_size in order:
        made = build(plan, 0, {"batch_size": batch_size, "dynamic": dynamic}).trainable
        assert torch._inductor.config.deterministic, "also for the first trial"
        seed_all(batch_size)
        sums = made.train_partition(rows(1, 72, size=batch_size))
        found[batch_size] = hashlib.sha256(bits(made) + repr(sums).encode()).hexdigest()
    return found


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_bits_do_not_depend_on_which_trial_a_worker_compiled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `dynamic=False`. Else the second size of a batch that a worker sees is compiled for all sizes."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    workers = []
    for number, order in enumerate([BATCH_SIZES, BATCH_SIZES[::-1]]):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / str(number)))
        with multiprocessing.get_context("spawn").Pool(1) as worker:
            workers.append(worker.apply(digests, (order, False)))
    assert workers[0] == workers[1]

"""Workers that are forks of a process with a framework: the bits of new processes, and nothing that piles up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import Joined
from jobs import WIDTH, dataset, digests, gone, journal

pytestmark = [pytest.mark.cold, pytest.mark.slow]
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {"threads": 2},
    "keras, tensorflow": {"env": {"KERAS_BACKEND": "tensorflow"}},
    "keras, torch": {"env": {"KERAS_BACKEND": "torch"}, "threads": 2},
    "keras, jax": {"env": {"KERAS_BACKEND": "jax"}},
}
"""Workers of one thread of torch are compared with inline runs all over the tests."""


def torch_net(config: dict[str, Any]) -> Any:
    import torch

    net = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 2)
    )
    loss = torch.nn.CrossEntropyLoss()
    return hy.torch.Model(net, optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]), loss=loss, batch_size=32)


def keras_net(config: dict[str, Any]) -> Any:
    import keras

    parts = keras.Input((WIDTH,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)
    net = keras.Sequential([*parts, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss=loss)
    return hy.keras.Model(net, batch_size=32)


def trained(directory: Path, framework: str, engine: hy.Local) -> list[str]:
    """Digests of two trials."""
    recipe = torch_net if framework.startswith("torch") else keras_net
    search = hy.Configs([{"lr": 0.1}, {"lr": 0.01}])
    more: dict[str, Any] = {"search": search, "epochs": 1, "metric": "val_loss", "mode": "min", "directory": directory}
    return digests(hy.select(recipe, None, dataset(), engine=engine, **more))


def fingerprint(directory: Path) -> dict[str, Any]:
    return next(line.fingerprint for line in journal(directory) if isinstance(line, Joined))


def trained_cold(directory: Path, framework: str) -> list[str]:
    """The same of one worker that is a new process."""
    return trained(directory, framework, hy.Local(1, devices=None, **ENGINES[framework]))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("keras, tensorflow", marks=pytest.mark.tensorflow),
        pytest.param("keras, jax", marks=pytest.mark.jax),
    ],
)
def test_the_bits_of_new_processes(tmp_path: Path, framework: str) -> None:
    """The runs of `test_keras_runs.py` show it too, where `make test` needs them for more than this."""
    expected = trained_cold(tmp_path / "cold", framework)
    with hy.Local(2, devices=None, **ENGINES[framework]) as engine:
        assert trained(tmp_path / "forks", framework, engine) == expected
        assert fingerprint(tmp_path / "forks") == fingerprint(tmp_path / "cold")
        assert [template.refusal for template in engine._standby._items.values()] == [""]


def private_bytes(process: int) -> int:
    """Memory that no other process shares."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


@pytest.mark.long
def test_six_runs_of_two_frameworks_in_turn_give_the_bits_of_new_processes_and_leave_nothing(tmp_path: Path) -> None:
    frameworks = ("torch", "keras, torch")
    expected = [trained_cold(tmp_path / f"cold {framework}", framework) for framework in frameworks]
    held = []
    others = children()
    with hy.Local(2, devices=None, **ENGINES["keras, torch"]) as engine:
        for number in range(6):
            directory = tmp_path / str(number)
            assert trained(directory, frameworks[number % 2], engine) == expected[number % 2]
            assert fingerprint(directory) == fingerprint(tmp_path / f"cold {frameworks[number % 2]}")
            if number in (3, 5):
                templates = [template.pid for template in engine._standby._items.values()]
                processes = [os.getpid(), *sorted(templates)]
                held.append(([files(each) for each in processes], [private_bytes(each) for each in processes]))
        assert [template.refusal for template in engine._standby._items.values()] == ["", ""]
        assert children() - others == {*templates} and len(templates) == 2
        for template in templates:
            forks = Path(f"/proc/{template}/task/{template}/children").read_text().split()
            assert gone(list(map(int, forks)))
    (files_before, bytes_before), (files_after, bytes_after) = held
    assert files_after == files_before
    assert all(after < before + (3 << 20) for before, after in zip(bytes_before, bytes_after, strict=True))

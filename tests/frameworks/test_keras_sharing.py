"""Trials that differ in nothing but their State share one built (compiled) model in a worker, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hopyard as hy
from hopyard.agent.runs.state_writer import StateWriter
from hopyard.agent.runs.worker import Worker
from hopyard.core.runs.events import Checked, Done
from hopyard.frameworks.tensorflow import runtime as tensorflow_runtime
from hopyard.spec import Ref, RunSpec, Unit
from hopyard.store.arena import Arena
from hopyard.store.states import LocalStore
from hopyard.training.build import Plan

pytestmark = pytest.mark.tensorflow

WIDTH, PARTITIONS = 4, 3


@pytest.fixture(autouse=True)
def tensorflow_as_before() -> Iterator[None]:
    before = tensorflow_runtime.snapshot()
    yield
    tensorflow_runtime.restore(before)


def dataset() -> hy.Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, WIDTH)).astype(np.float32)
    return hy.Dataset.numpy(x, (x[:, :1] > 0).astype(np.int64), validation=0.25, partitions=PARTITIONS)


def recipe(config: dict[str, Any]) -> Any:
    layers = keras.layers
    net = [keras.Input((WIDTH,)), layers.Dense(config.get("units", 5)), layers.Dropout(config.get("rate", 0.4))]
    if config.get("norm"):
        net.append(layers.BatchNormalization())
    model = keras.Sequential([*net, layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.SGD(config["lr"], momentum=0.5, clipnorm=config.get("clip"))
    model.compile(optimizer, config.get("loss", "binary_crossentropy"), metrics=["accuracy"])
    return model


class Bench:
    """A worker, and where each of its trials stands."""

    def __init__(self, folder: Path, configs: list[dict[str, Any]], recipe: Any = recipe) -> None:
        folder.mkdir()
        self.configs = configs
        self.arena = Arena(folder / "memory", 0, 1 << 22)
        store = LocalStore(folder / "states")
        self.checkpoints = StateWriter(0, store, self.arena, lambda told: None)
        spec = RunSpec(epochs=2, partitions=PARTITIONS, validation=PARTITIONS, metric="val_loss")
        self.worker = Worker(0, Plan(recipe, dataset().prepare(), spec), store, self.arena, self.checkpoints)
        self.at: dict[int, tuple[Ref, str]] = {}
        self.lease = 0

    def train(self, trial: int, *partitions: int) -> Done:
        """The next partition of the trial, or these."""
        ref, _ = self.at.get(trial, (None, ""))
        step = 0 if ref is None else ref.step
        chosen = partitions or (step % PARTITIONS,)
        done = self._run(trial, "train", step // PARTITIONS, chosen)
        self.at[trial] = Ref(trial, step + len(chosen), self.lease), done.memory_key
        return done

    def validate(self, trial: int) -> Done:
        return self._run(trial, "validate", 0, tuple(range(PARTITIONS)))

    def _run(self, trial: int, kind: Any, epoch: int, partitions: tuple[int, ...]) -> Done:
        self.lease += 1
        ref, where = self.at.get(trial, (None, ""))
        unit = Unit(self.lease, trial, kind, epoch, partitions, ref, where)
        done = self.worker.run(unit, self.configs[trial])[0]
        assert isinstance(done, Done), done
        return done

    def state(self, trial: int) -> bytes:
        return bytes(self.arena.view(self.at[trial][1]))

    @property
    def built(self) -> list[Any]:
        """The models in memory."""
        return [built.trainable for built in self.worker._models.built.values()]

    def close(self) -> None:
        self.checkpoints.close()
        self.arena.close()


Make = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Make]:
    made: list[Bench] = []

    def make(configs: list[dict[str, Any]], **more: Any) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), configs, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def sums(done: Done) -> list[Any]:
    return [part.sums for part in done.parts]


def alone(bench: Make, configs: list[dict[str, Any]], trial: int, steps: int, **more: Any) -> tuple[bytes, list[Any]]:
    """The trial's State and reports from a worker that has seen no other."""
    it = bench(configs, **more)
    told = [sums(it.train(trial)) for _ in range(steps)]
    return it.state(trial), told


def test_trials_that_differ_in_their_rate_share_one_model_and_end_in_the_same_bits(bench: Make) -> None:
    configs = [{"lr": rate, "norm": True} for rate in (0.1, 0.001)]
    it = bench(configs)
    told: list[list[Any]] = [[], []]
    for _ in range(4):  # partition by partition, trial after trial, over the end of an epoch
        for trial in range(2):
            told[trial].append(sums(it.train(trial)))
    seen = [sums(it.validate(trial)) for trial in (1, 0)]
    (shared,) = it.built
    assert shared.traces == 2
    for trial in range(2):
        own = bench(configs)
        assert [sums(own.train(trial)) for _ in range(4)] == told[trial]
        assert own.state(trial) == it.state(trial)
    assert sums(own.validate(1)) == seen[0] != seen[1]
    assert it.state(0) != it.state(1)


@pytest.mark.long
def test_a_preflight_counts_too_and_leaves_nothing_in_the_model(bench: Make) -> None:
    configs = [{"lr": 0.1}, {"lr": 0.01}]
    it = bench(configs)
    checked = it.worker.check(0, configs[0])
    assert isinstance(checked, Checked)
    assert checked.faults == ()
    assert checked.names == ("loss", "accuracy", "val_loss", "val_accuracy")
    for trial in (1, 0):
        it.train(trial)
        it.validate(trial)
    (shared,) = it.built
    assert shared.traces == 2
    assert [it.state(trial) for trial in (0, 1)] == [alone(bench, configs, trial, 1)[0] for trial in (0, 1)]


def test_traces_of_preflight_are_reused_whatever_the_metrics(bench: Make) -> None:
    def scored(config: dict[str, Any]) -> Any:
        net = recipe(config)
        net.compile("sgd", "mse", metrics=[keras.metrics.F1Score(average="macro", threshold=0.5)])
        return net

    it = bench([{"lr": 0.1}], recipe=scored)
    it.worker.check(0, {"lr": 0.1})
    it.train(0)
    assert len(it.built) == 1


def test_first_weights_are_those_of_the_trial_also_in_a_shared_model(bench: Make) -> None:
    """Equal configs of two trials begin from different weights."""
    configs = [{"lr": 0.1}] * 2
    it = bench(configs)
    it.train(0)
    it.train(0)
    it.train(1)
    assert len(it.built) == 1
    assert it.state(1) == alone(bench, configs, 1, 1)[0] != alone(bench, configs, 0, 1)[0]


def test_batch_sizes_are_the_trials_own_in_a_shared_model(bench: Make) -> None:
    configs = [{"lr": 0.1, "batch_size": 8}, {"lr": 0.1, "batch_size": 32}]
    it = bench(configs)
    for _ in range(2):
        for trial in range(2):
            it.train(trial)
    (shared,) = it.built
    assert shared.traces == 1
    for trial in range(2):
        assert it.state(trial) == alone(bench, configs, trial, 2)[0]


@pytest.mark.parametrize(
    "other",
    [
        {"rate": 0.1},
        pytest.param({"loss": "mse"}, marks=pytest.mark.long),
        pytest.param({"clip": 0.01}, marks=pytest.mark.long),
        pytest.param({"units": 7}, marks=pytest.mark.long),
    ],
    ids=lambda other: next(iter(other)),
)
def test_constants_compiled_into_a_step_show_in_the_results(bench: Make, other: dict[str, Any]) -> None:
    configs = [{"lr": 0.05}, {"lr": 0.05} | other]
    it = bench(configs)
    for trial in range(2):
        it.train(trial)
    assert [model.traces for model in it.built] == [1, 1]
    assert it.state(1) == alone(bench, configs, 1, 1)[0]
    assert it.state(1) != alone(bench, [configs[0]] * 2, 1, 1)[0]  # of the same first weights


def test_hidden_settings_of_a_loss_show_in_the_results(bench: Make) -> None:
    def huber(config: dict[str, Any]) -> Any:
        net = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        net.compile(keras.optimizers.SGD(0.1), keras.losses.Huber(delta=config["delta"]))
        return net

    configs = [{"delta": 1.0}, {"delta": 0.1}]
    it = bench(configs, recipe=huber)
    for trial in range(2):
        it.train(trial)
    assert it.state(1) == alone(bench, configs, 1, 1, recipe=huber)[0]


def test_functional_models_are_shared(bench: Make) -> None:
    def functional(config: dict[str, Any]) -> Any:
        here = keras.Input((WIDTH,))
        hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(4, activation="relu")(here))
        net = keras.Model(here, keras.layers.Dense(2, activation="softmax")(hidden))
        net.compile(keras.optimizers.Adam(config["lr"]), "sparse_categorical_crossentropy")
        return net

    configs = [{"lr": 0.1}, {"lr": 0.01}]
    it = bench(configs, recipe=functional)
    for _ in range(2):
        for trial in range(2):
            it.train(trial)
    assert [it.state(trial) for trial in range(2)] == [
        alone(bench, configs, trial, 2, recipe=functional)[0] for trial in range(2)
    ]
    assert len(it.built) == 1


def test_code_of_the_user_is_built_for_each_trial(bench: Make) -> None:
    def own(config: dict[str, Any]) -> Any:
        net = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2, activation="softmax")])
        scale = config["scale"]

        def loss(y: Any, outputs: Any) -> Any:
            return scale * keras.losses.sparse_categorical_crossentropy(y, outputs)

        net.compile(keras.optimizers.SGD(0.1), loss)
        return net

    configs = [{"scale": 1.0}, {"scale": 3.0}]
    it = bench(configs, recipe=own)
    for _ in range(2):
        for trial in range(2):
            it.train(trial)
    assert len(it.built) == 2
    for trial in range(2):
        assert it.state(trial) == alone(bench, configs, trial, 2, recipe=own)[0]


def test_callbacks_are_each_trials_own(bench: Make) -> None:
    def scheduled(config: dict[str, Any]) -> Any:
        class Rate(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.model.optimizer.learning_rate = config["lr"] / (epoch + 1)

        return hy.keras.Model(recipe(config), callbacks=[Rate()], batch_size=16)

    configs = [{"lr": 0.1}, {"lr": 0.01}]
    it = bench(configs, recipe=scheduled)
    for _ in range(PARTITIONS + 1):
        for trial in range(2):
            it.train(trial)
    assert len(it.built) == 2
    assert it.state(1) == alone(bench, configs, 1, PARTITIONS + 1, recipe=scheduled)[0]


def test_a_trial_that_fails_does_not_disturb_those_that_share_its_model(bench: Make) -> None:
    """A rate that leads to nan fails its trial; the next one loads its own State."""
    configs = [{"lr": 0.1}, {"lr": float("inf")}]
    it = bench(configs)
    it.train(0)
    unit = Unit(99, 1, "train", 0, (0, 1), None, "")
    failed = it.worker.run(unit, configs[1])[0]
    assert not isinstance(failed, Done)
    assert "the loss is nan" in failed.error  # type: ignore[union-attr]
    it.train(0)
    assert it.state(0) == alone(bench, configs, 0, 2)[0]
    assert len(it.built) == 1


def test_several_partitions_in_one_unit_are_the_units_over_each(bench: Make) -> None:
    configs = [{"lr": 0.1}, {"lr": 0.01}]
    grouped, single = bench(configs), bench(configs)
    whole = [grouped.train(trial, 0, 1, 2) for trial in range(2)]
    each = [[sums(single.train(trial))[0] for _ in range(PARTITIONS)] for trial in range(2)]
    assert [sums(done) for done in whole] == each
    assert [grouped.state(trial) for trial in range(2)] == [single.state(trial) for trial in range(2)]


def test_a_model_that_still_holds_the_state_is_not_given_it_again(bench: Make) -> None:
    configs = [{"lr": 0.1}, {"lr": 0.01}]
    it = bench(configs)
    it.train(0)
    assert it.train(0).hop_bytes == 0
    it.train(1)
    assert it.train(0).hop_bytes > 0
    assert it.validate(0).hop_bytes == 0
    assert it.validate(1).hop_bytes > 0
    assert it.train(0).hop_bytes > 0

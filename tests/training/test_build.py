"""From a recipe and a configuration to something that can train."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.core.runs.order import build_seed
from hopyard.data.partitions.loader import PartitionLoader, sizes
from hopyard.data.partitions.mapped import open_partition
from hopyard.frameworks.linear import Linear
from hopyard.spec import Gang, RunSpec
from hopyard.training.build import BATCH_SIZE, Plan, build, foresee, needed, required, undisturbed
from hopyard.training.recipes import wants_context
from jobs import WIDTH, dataset, linear

SPEC = RunSpec(epochs=1, partitions=4, validation=0, seed=3)


def plan(recipe: Any) -> Plan:
    return Plan(recipe, dataset().prepare(), SPEC)


def test_recipe_of_config_or_of_config_and_context() -> None:
    class Callable:
        def __call__(self, config: Any, ctx: Any) -> None: ...

    assert not wants_context(linear)
    assert wants_context(lambda config, ctx: None)
    assert not wants_context(lambda config, width=3: None)
    assert not wants_context(lambda *config: None)
    assert wants_context(Callable())
    assert not wants_context(dict)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("linear", r"recipe must be .*, got 'linear'"),
        (
            type("Model", (), {"__module__": "keras.src.models.model"})(),
            r"recipe .*a Model: .*comp",
        ),
        (lambda: None, r"<lambda>\(\): a recipe takes"),
        (lambda a, b, c: None, r"<lambda>\(a, b, c\): a recipe takes"),
        (lambda *, config: None, r"<lambda>\(\*, config\): a recipe takes"),
    ],
)
def test_anything_else_is_refused(recipe: Any, message: str) -> None:
    with pytest.raises(hy.SpecError, match=message):
        wants_context(recipe)


def test_the_context_says_what_the_data_is() -> None:
    seen: list[Any] = []

    def recipe(config: Any, ctx: hy.RecipeContext) -> Any:
        seen.append(ctx)
        return linear(config)

    about = plan(recipe)
    built = build(about, 2, {"lr": 0.1})
    rows = tuple(part.rows for part in about.manifest.train)
    assert seen == [hy.RecipeContext("cpu", {"inputs": ((WIDTH,), "float32")}, 2, build_seed(3, 2), 2, rows, 1)]
    assert seen[0].rows == sum(rows) == about.manifest.train_rows
    assert built.context is seen[0] and not built.reads_epochs
    assert seen[0].epochs == 1 and built.reads_epochs  # type: ignore[union-attr]


def test_the_context_counts_the_codes_of_categories() -> None:
    table = pa.table({"a": ["x", None, "z", "z"], "b": [5, 7, 5, 7], "c": ["u", "v", "w", "u"], "y": ["p", "q"] * 2})
    encode = {"a": "one-hot", "b": "index", "c": hy.Categories("index", min_frequency=2), "y": "index"}
    rows = hy.Dataset.arrow(
        table, features={"m": ["a", "b"], "c": "c"}, label="y", encode=encode, impute={"a": ("constant", "none")},
        partitions=1,
    )  # fmt: skip
    seen: list[Any] = []
    manifest = rows.prepare()
    build(Plan(lambda config, ctx: seen.append(ctx) or linear(config), manifest, SPEC), 0, {"lr": 0.1})
    assert seen[0].categories == {"a": 3, "b": 2, "c": 2} and seen[0].classes == 2
    one_hot = hy.Dataset.arrow(table, features="b", label="y", encode={"y": ["q", "p"]}, partitions=1).prepare()
    build(Plan(lambda config, ctx: seen.append(ctx) or linear(config), one_hot, SPEC), 0, {"lr": 0.1})
    assert seen[1].classes == 2
    inputs = open_partition(manifest, "train", 0).inputs
    assert inputs["m"].shape == (4, 3 + 1) and set(inputs["m"][:, 3]) == {0, 1} and set(inputs["c"]) == {0, 1}


@pytest.mark.parametrize("batch_size", [1, 7, 16, 32, 51, 1000])
def test_the_context_counts_the_batches_of_an_epoch(batch_size: int) -> None:
    seen: list[Any] = []
    about = plan(lambda config, ctx: seen.append(ctx) or linear(config))
    build(about, 0, {"lr": 0.1})
    loaders = [
        PartitionLoader(open_partition(about.manifest, "train", partition), batch_size)
        for partition in range(len(about.manifest.train))
    ]
    assert seen[0].batches(batch_size) == sum(1 for loader in loaders for _ in loader)


def test_the_context_counts_the_steps_of_each_worker_where_parameters_are_averaged() -> None:
    """Bug: it counted those of one worker, so a schedule over the run never came to its end."""
    seen: list[Any] = []
    about = plan(lambda config, ctx: seen.append(ctx) or linear(config))
    for gang in (Gang(2), Gang(2, "parameters")):
        build(dataclasses.replace(about, spec=msgspec.structs.replace(about.spec, gang=gang)), 0, {"lr": 0.1})
    assert seen[0].batches(8) == seen[1].batches(4)


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 18, 33])
def test_a_last_batch_of_one_row_is_no_step_of_its_own(rows: int) -> None:
    ctx = hy.RecipeContext("cpu", {}, None, 0, 0, (rows, 16))
    assert ctx.batches(16) == len(sizes(rows, 16)) + 1


def test_batches_of_what_is_no_size_are_refused() -> None:
    with pytest.raises(hy.SpecError, match="batch_size must be an integer >= 1, got 0"):
        hy.RecipeContext("cpu", {}, None, 0, 0, (16,)).batches(0)


def test_to_show_a_context_does_not_count_as_asking_for_the_epochs() -> None:
    ctx = hy.RecipeContext("cpu", {}, None, 0, 0, (16,), 3)
    assert "trial=0" in repr(ctx) and ctx == hy.RecipeContext("cpu", {}, None, 0, 0, (16,), 3)
    assert not ctx.epochs_read


def test_a_context_is_read_only() -> None:
    ctx = hy.RecipeContext("cpu", {}, None, 0, 0, (16,), 3)
    with pytest.raises(hy.SpecError, match=r"ctx\.epochs = 7: .*select\(epochs=\)"):
        ctx.epochs = 7  # type: ignore[misc]
    for name in ("seed", "width"):
        with pytest.raises(hy.SpecError, match=rf"ctx\.{name} = 1: .*read only"):
            setattr(ctx, name, 1)
    assert ctx == copy.deepcopy(ctx) == pickle.loads(pickle.dumps(ctx)) and ctx.epochs == 3


def test_everything_random_is_seeded_by_run_and_trial() -> None:
    def recipe(config: Any) -> Any:
        model = linear(config)
        model.bias[:] = random.random(), np.random.random()
        return model

    made = [build(plan(recipe), trial, {"lr": 0.1}).trainable.bias.tolist() for trial in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_the_config_is_a_copy() -> None:
    config = {"lr": 0.1}
    build(plan(lambda config: linear({"lr": config.pop("lr")})), 0, config)
    assert config == {"lr": 0.1}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, r"returned None \(is a `return` missing\?\), which cannot train"),
        (3, r"builtins\.int, .*\(no state, load, train, evaluate\)"),
    ],
)
def test_a_model_that_cannot_train_is_refused(made: Any, message: str) -> None:
    with pytest.raises(hy.SpecError, match=message):
        build(plan(lambda config: made), 0, {})


def test_a_trainable_that_lacks_a_method_is_refused_by_name() -> None:
    class Forgetful(hy.Trainable):
        batch_size = 8

        def state(self) -> Any:
            return {}

        def train(self, batch: Any) -> Any:
            return {"loss": (1.0, 1)}

        def evaluate(self, batch: Any) -> Any:
            return {"loss": (1.0, 1)}

    with pytest.raises(TypeError, match=r"abstract class Forgetful .*abstract method '?load"):
        build(plan(lambda config: Forgetful()), 0, {})  # type: ignore[abstract]


def test_the_batch_size_is_the_models_or_the_configs_or_keras() -> None:
    def recipe(config: Any) -> Any:
        model = Linear(WIDTH, 2, lr=0.1, batch_size=16)
        model.batch_size = None  # type: ignore[assignment]
        return model

    assert build(plan(linear), 0, {"lr": 0.1, "batch_size": 5}).batch_size == 16
    assert build(plan(recipe), 0, {"batch_size": 5}).batch_size == 5
    assert build(plan(recipe), 0, {}).batch_size == BATCH_SIZE
    for wrong in (0, True, 2.5, "8"):
        with pytest.raises(hy.SpecError, match=r"batch_size must be an integer >= 1, got "):
            build(plan(recipe), 0, {"batch_size": wrong})


def test_a_framework_is_imported_before_the_first_unit_only_if_the_recipe_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "hopyard.training.build.runtime", lambda name: SimpleNamespace(prepare=lambda: asked.append(name))
    )
    foresee(linear)
    assert asked == []

    def recipe(config: Any) -> Any:
        def inner() -> Any:
            return hy.torch.Model

        return inner

    foresee(recipe)
    assert asked == ["torch"]
    foresee(Linear)  # no code of its own to look at
    assert len(asked) == 1
    foresee(partial(by_a_helper, width=3))
    assert asked[1:] == ["tensorflow", "keras"]


def test_a_framework_is_required_only_where_the_recipe_does_not_load_without_it() -> None:
    torch = importlib.import_module("torch")

    def maybe(config: Any) -> Any:
        if config["net"] == "keras":
            import keras

            return keras.Model()
        return torch.nn.Linear(1, 1)

    def indirect(config: Any) -> Any:
        return maybe(config)

    assert needed(maybe) == ("torch", "keras") and required(maybe) == ("torch",)
    assert required(partial(indirect, 3)) == ("torch",)
    assert required(linear) == ()


def by_a_helper(config: Any, width: int) -> Any:
    return helper(width)


def helper(width: int) -> Any:
    import tensorflow as tf

    return tf.keras.Sequential([tf.keras.layers.Dense(width)])


def test_a_framework_that_the_recipe_imports_itself_is_seeded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr("hopyard.training.build.imported", lambda: [] if not built else ["torch"])

    def recipe(config: Any, ctx: hy.RecipeContext) -> Any:
        built.append(ctx.inputs.popitem()[1][0][0])
        config["sizes"].append(1)
        return linear({"lr": config.pop("lr") * len(config["sizes"])})

    config = {"lr": 0.1, "sizes": [8]}
    assert build(plan(recipe), 0, config).trainable.lr == 0.2, "each call has arguments of its own"
    assert built == [WIDTH, WIDTH] and config == {"lr": 0.1, "sizes": [8]}


def test_threads_take_turns_in_the_users_own_process() -> None:
    import torch

    def one(number: int) -> bool:
        with undisturbed():
            build(plan(linear), number, {"lr": 0.1})
            return torch.are_deterministic_algorithms_enabled()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(12)))
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_users_own_process_is_left_as_it_was() -> None:
    import torch

    threads = torch.get_num_threads()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with undisturbed():
        build(plan(linear), 0, {"lr": 0.1})
        assert torch.are_deterministic_algorithms_enabled()
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert "torch" in sys.modules

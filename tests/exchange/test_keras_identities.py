"""What a gang of Keras models computes: the identities of all frameworks, and what only Keras has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from gang_identities import UNEVEN, Identities
from gang_threads import exchanges, partitions, together, trained
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.errors import SpecError
from hopyard.frameworks import seed_all
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.tree import capture, restore
from hopyard.spec import Gang, Outer
from hopyard.store.tree import decode, encode

pytestmark = pytest.mark.tensorflow

INPUTS = {"inputs": ((5,), "float64")}
TARGETS = {"targets": ((), "int64")}


def compute_in(kind: str) -> None:
    """A policy that another test of this process has set goes before the type of numbers."""
    keras.config.set_floatx(kind)
    keras.config.set_dtype_policy(kind)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    compute_in("float64")
    yield
    compute_in("float32")


def compiled(layers: list[Any], optimizer: Any, eager: bool = True, batches: Any = None, **more: Any) -> Model:
    """Steps are not compiled unless a test asks for it: a member that waits in a graph keeps one of TensorFlow's
    threads, of which this process has few, and to trace them takes a second."""
    net = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, **({"loss": loss, "metrics": ["accuracy"]} | more), run_eagerly=eager)
    model = Model(net)
    model.set_schema(INPUTS, TARGETS)
    return model


def model(
    optimizer: str = "SGD",
    weighted: bool = False,
    norm: bool = False,
    clip_norm: float | None = None,
    eager: bool = True,
    **more: Any,
) -> Model:
    seed_all(1)
    rates = {"SGD": 0.3, "momentum": 0.1, "Adam": 0.01}
    kind = keras.optimizers.Adam if optimizer == "Adam" else keras.optimizers.SGD
    arguments = {"momentum": 0.9} if optimizer == "momentum" else {}
    middle = [keras.layers.BatchNormalization(momentum=0.7)] if norm else []
    return compiled(
        [keras.layers.Dense(6), *middle, keras.layers.Activation("tanh"), keras.layers.Dense(3)],
        kind(rates[optimizer], global_clipnorm=clip_norm, **arguments),
        eager,
        **more,
    )


class TestKeras(Identities):
    def model(self, optimizer: str = "SGD", **more: Any) -> Any:
        return model(optimizer, **more)

    def parameters(self, model: Any) -> list[Any]:
        return [variable.numpy() for variable in model.model.trainable_variables]

    def everything(self, model: Any) -> list[Any]:
        return [variable.numpy() for variable in model.model.variables]


IDENTITIES = TestKeras()


def test_compiled_steps_are_traced_once_and_give_the_bits_of_those_that_are_not() -> None:
    """Pieces of batches go through the same graph as gradients of a gang."""
    data, gang = partitions(UNEVEN), Gang(1, accumulate=3)
    ((eager, _),) = trained(lambda: model("Adam"), data, 8, gang)
    ((graph, _),) = trained(lambda: model("Adam", eager=False), data, 8, gang)
    assert graph.traces == 1
    assert IDENTITIES.difference(eager, graph) < 1e-12


def test_compiled_rounds_are_traced_once() -> None:
    data, gang = partitions(UNEVEN), Gang(2, "parameters", every=2)
    members = trained(lambda: model("momentum", eager=False), data, 3, gang)
    assert [member.traces for member, _ in members] == [1, 1]
    others = trained(lambda: model("momentum"), data, 3, gang)
    assert IDENTITIES.difference(members[0][0], others[0][0]) < 1e-12


def test_a_scaled_loss_and_an_embedding_are_averaged_as_they_are_alone() -> None:
    """The gradient of an embedding is a list of rows; that of a scaled loss is averaged before it is scaled back."""

    def built() -> Model:
        seed_all(1)
        net = keras.Sequential(
            [keras.Input((5,)), keras.layers.Embedding(4, 2), keras.layers.Flatten(), keras.layers.Dense(3)]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3), initial_scale=8.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(optimizer, loss, run_eagerly=True)
        model = Model(net)
        model.set_schema({"inputs": ((5,), "int64")}, TARGETS)
        return model

    data = partitions([16])
    data[0].inputs = np.random.default_rng(0).integers(0, 4, (16, 5))
    ((alone, _),) = trained(built, data, 8)
    for member, _ in trained(built, data, 8, Gang(2)):
        assert IDENTITIES.difference(alone, member) < 1e-9


@pytest.mark.parametrize("inner", ["keep", "reset"])
def test_a_state_in_the_middle_brings_every_member_back(inner: Any) -> None:
    """Momenta are each member's own, and hop with the State of rank 0."""
    data = partitions([18, 12])
    gang = Gang(2, "parameters", every=2, inner=inner, warmup=4, outer=Outer(0.7, 0.9), compress="bf16")

    def over(member: Model, exchange: Any, number: int) -> None:
        member.set_exchange(exchange)
        member.train_partition(PartitionLoader(data[number], 6, 7, 3, (exchange.rank, 2)))

    models = [model("Adam") for _ in range(2)]
    together(lambda exchange: over(models[exchange.rank], exchange, 0), exchanges(gang))
    models[0].set_members([decode(encode(capture_of(models[1].member_state())))])
    middle = decode(encode(capture(models[0])))
    together(lambda exchange: over(models[exchange.rank], exchange, 1), exchanges(gang))

    others = [model("Adam") for _ in range(2)]

    def go_on(exchange: Any) -> None:
        others[exchange.rank].set_exchange(exchange)
        restore(others[exchange.rank], middle)
        over(others[exchange.rank], exchange, 1)

    together(go_on, exchanges(gang))
    for one, other in zip(models, others, strict=True):
        assert IDENTITIES.equal(one, other)
        assert encode(capture_of(one.member_state())) == encode(capture_of(other.member_state()))


def capture_of(tree: Any) -> Any:
    from hopyard.frameworks.tree import lower

    return lower(tree)


def test_an_optimizer_that_begins_anew_is_as_at_first() -> None:
    built = model("Adam")
    first = capture(built)["optimizer"]
    together(
        lambda exchange: (built.set_exchange(exchange), built.train_partition(PartitionLoader(partitions([8])[0], 4))),
        exchanges(Gang(1, "parameters", inner="reset")),
    )
    assert not all(map(np.array_equal, first, capture(built)["optimizer"]))
    rounds = [model("Adam") for _ in range(2)]

    def work(exchange: Any) -> None:
        member = rounds[exchange.rank]
        member.set_exchange(exchange)
        member.train_partition(PartitionLoader(partitions([8])[0], 4, member=(exchange.rank, 2)))

    together(work, exchanges(Gang(2, "parameters", inner="reset")))
    assert all(map(np.array_equal, first, capture(rounds[0])["optimizer"]))


def schedule() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))


@pytest.mark.parametrize(
    ("gang", "optimizer", "loss", "message"),
    [
        (Gang(2), "sgd", keras.losses.MeanSquaredError("sum"), "a loss with reduction='sum' has no gradients that"),
        (Gang(2), "sgd", "mse", ""),
        (Gang(2, "parameters"), schedule, keras.losses.MeanSquaredError("sum"), ""),
        (Gang(2, "parameters", inner="reset"), schedule, "mse", "the schedule of its learning rate"),
        (Gang(2, "parameters", inner="reset"), lambda: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2),
         "mse", "would lose the averages of weights"),
        (Gang(2, "parameters", inner="reset"), "adam", "mse", ""),
    ],
)  # fmt: skip
def test_models_that_no_gang_can_train(gang: Gang, optimizer: Any, loss: Any, message: str) -> None:
    built = compiled([keras.layers.Dense(1)], optimizer if isinstance(optimizer, str) else optimizer(), loss=loss)
    fault = built.gang_fault(gang)
    assert message in fault and bool(message) == bool(fault)


def test_hooks_of_batches_and_pieces_are_refused() -> None:
    class Hook(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    built = Model(model().model, callbacks=[Hook()])
    assert "hooks of batches" in built.gang_fault(Gang(2, accumulate=2))
    assert not built.gang_fault(Gang(2))


def test_a_step_that_never_applies_gradients_is_refused() -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return self.compute_metrics(data[0], data[1], self(data[0]))

    net = Own([keras.Input((5,)), keras.layers.Dense(3)])
    net.compile("sgd", metrics=["accuracy"])
    own = Model(net)
    own.set_schema(INPUTS, TARGETS)
    with pytest.raises(SpecError, match=r"must call self\.optimizer\.apply"):
        trained(lambda: own, partitions([8]), 4, Gang(1, accumulate=2))

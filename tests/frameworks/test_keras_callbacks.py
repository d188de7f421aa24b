"""Keras' callbacks in a model that hops: once an epoch, once a batch, wherever the State is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from keras.callbacks import Callback, LambdaCallback, LearningRateScheduler

from hopyard.errors import SpecError
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.tree import capture, restore
from hopyard.logged import Collected, Collector, points_of
from hopyard.store.tree import decode, encode
from hopyard.training.build import Built
from keras_nets import bits, data, feed, feed_of, made, metrics, model, optimizers, ordered, plain, small, with_loss

pytestmark = pytest.mark.tensorflow

PARTITIONS = 3
WARNS = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
"""Keras' own LearningRateScheduler, on TensorFlow with NumPy 2."""


class Notes(Callback):
    """Writes down what it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("begin", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("end", epoch))


class Batches(Notes):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("batch", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("done", batch))


def with_hooks(callbacks: Sequence[Any] = (), seed: int = 3, net: Any = small) -> Model:
    return model(net, seed, callbacks=callbacks)


def epoch(trainable: Model, number: int = 0) -> None:
    """What a worker does in one epoch."""
    for partition in range(PARTITIONS):
        trainable.train_partition(feed(10 * number + partition))
    Built(trainable, 8).end_epoch()


def halving(step: int, rate: float) -> float:
    return rate / 2


def test_hooks_of_epochs_come_once_each() -> None:
    notes = Notes()
    trainable = with_hooks([notes])
    for number in range(3):
        epoch(trainable, number)
        trainable.evaluate_partition(feed(9))
    assert notes.seen == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]
    assert trainable.traces == 2


def test_hooks_of_epochs_come_once_each_wherever_the_model_is() -> None:
    """Partition by partition from one model to another; each has callbacks of its own."""
    notes = [Notes(), Notes(), Notes()]
    models = [with_hooks([each], seed) for seed, each in enumerate(notes)]
    state = capture(models[0])
    for step in range(2 * PARTITIONS):
        here = models[step % len(models)]
        restore(here, decode(encode(state)))
        here.train_partition(feed(step))
        if (step + 1) % PARTITIONS == 0:
            here.end_epoch()
        state = capture(here)
    # the first partition of an epoch is always here, its last always there
    assert [each.seen for each in notes] == [[("begin", 0), ("begin", 1)], [], [("end", 0), ("end", 1)]]


@WARNS
def test_a_rate_by_epoch_is_that_of_fit() -> None:
    scheduler = LearningRateScheduler(halving)
    trainable, fitted = with_hooks([scheduler]), model(small)
    given = feed(1, count=64, draws=None)
    x, y = ordered(given)
    for _ in range(3):
        trainable.train_partition(given)
        trainable.end_epoch()
    fitted.model.fit(x, y, 8, epochs=3, shuffle=False, verbose=0, callbacks=[LearningRateScheduler(halving)])
    state = trainable.state()
    assert state.pop("epoch") == {"epoch": 3, "begun": False, "batch": 0}
    assert bytes(encode(state)) == bits(fitted)


@WARNS
def test_a_rate_by_epoch_hops() -> None:
    alone = with_hooks([LearningRateScheduler(halving)])
    models = [with_hooks([LearningRateScheduler(halving)], seed) for seed in (5, 6)]
    state = bits(alone)
    for step in range(2 * PARTITIONS):
        here = models[step % 2]
        restore(here, decode(state))
        for each in (alone, here):
            each.train_partition(feed(step))
            if (step + 1) % PARTITIONS == 0:
                each.end_epoch()
        state = bits(here)
        assert state == bits(alone)
    assert float(alone.model.optimizer.learning_rate) == pytest.approx(0.1 / 4)


@WARNS
def test_a_partition_done_again_begins_its_epoch_again() -> None:
    """After a lost worker: the State of before is loaded, and with it where in the epoch it stood."""
    trainable = with_hooks([LearningRateScheduler(halving)])
    before = bits(trainable)
    trainable.train_partition(feed(1))
    once = bits(trainable)
    restore(trainable, decode(before))
    trainable.train_partition(feed(1))
    assert bits(trainable) == once
    assert float(trainable.model.optimizer.learning_rate) == pytest.approx(0.05)


# ------------------------------------------------------------------------------------------------ batches


def test_hooks_of_batches() -> None:
    notes = Batches()
    trainable = with_hooks([notes])
    trainable.train_partition(feed(1, 20))
    trainable.train_partition(feed(2, 8))
    trainable.evaluate_partition(feed(2))
    trainable.end_epoch()
    trainable.train_partition(feed(1, 8))
    pairs = [(what, number) for number in range(4) for what in ("batch", "done")]
    assert notes.seen == [("begin", 0), *pairs, ("end", 0), ("begin", 1), ("batch", 0), ("done", 0)]


def test_batch_callbacks_change_no_bit() -> None:
    def kinds() -> list[Any]:
        class Both(Callback):
            def on_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.append(logs)

        return [[Notes()], [Batches()], [LambdaCallback(on_train_batch_begin=lambda batch, logs: None)], [Both()]]

    seen: list[Any] = []
    models = [with_hooks(callbacks, net=partial(small, metrics=["accuracy"])) for callbacks in kinds()]
    sums = [each.train_partition(feed(1)) for each in models]
    trees = [each.state() for each in models]
    for tree in trees:
        tree.pop("epoch")
    assert len({bytes(encode(tree)) for tree in trees}) == 1
    assert all(each == sums[0] for each in sums)
    assert len(seen) == 4
    assert {type(value) for logs in seen for value in logs.values()} == {float}
    assert seen[-1]["loss"] == pytest.approx(sums[0]["loss"][0] / 28)  # type: ignore[operator]
    assert set(seen[-1]) == {"loss", "accuracy"}


def test_one_trace_with_batch_callbacks() -> None:
    trainable = with_hooks([Batches()])
    for number in range(3):
        trainable.train_partition(feed(number, 8 * number + 5))
    assert trainable.traces == 1


def test_a_rate_by_batch_is_that_of_fit() -> None:
    class Warm(Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 * (batch + 1)

    trainable, fitted = with_hooks([Warm()]), model(small)
    given = feed(1, draws=None)
    x, y = ordered(given)
    for _ in range(2):
        trainable.train_partition(given)
        trainable.end_epoch()
    fitted.model.fit(x, y, 8, epochs=2, shuffle=False, verbose=0, callbacks=[Warm()])
    state = trainable.state()
    state.pop("epoch")
    assert bytes(encode(state)) == bits(fitted)


def test_no_metrics_are_passed_at_an_epochs_end() -> None:
    """They come from several workers, and are put together by the driver."""
    told: list[Any] = []
    trainable = with_hooks([LambdaCallback(on_epoch_end=lambda epoch, logs: told.append(logs))])
    epoch(trainable)
    assert told == [{}]


def test_array_metrics_are_not_reported() -> None:
    told: list[Any] = []
    callback = LambdaCallback(on_train_batch_end=lambda batch, logs: told.append(set(logs)))
    several = metrics.F1Score(average=None, name="several")
    net = partial(small, loss="categorical_crossentropy", metrics=["accuracy", several])
    trainable = Model(made(net), callbacks=[callback])
    x, y = data(1, 8)
    trainable.train_partition(feed_of(x, np.eye(3, dtype=np.float32)[y]))
    assert told == [{"loss", "accuracy"}]


def test_callbacks_may_change_the_weights() -> None:
    def zero(number: int, logs: Any) -> None:
        trainable.model.layers[-1].bias.assign([0.0, 0.0, 0.0])

    trainable = with_hooks([LambdaCallback(on_train_batch_end=zero)], net=plain)
    trainable.train_partition(feed(1))
    assert np.asarray(trainable.model.layers[-1].bias.value).tolist() == [0.0, 0.0, 0.0]
    assert np.asarray(trainable.model.layers[-1].kernel.value).any()


def test_run_eagerly_calls_them_too() -> None:
    notes = Batches()
    trainable = with_hooks([notes], net=partial(small, run_eagerly=True))
    trainable.train_partition(feed(1, 16))
    assert notes.seen == [("begin", 0), ("batch", 0), ("done", 0), ("batch", 1), ("done", 1)]


# ------------------------------------------------------------------------------------------------ refused


def refused() -> dict[str, tuple[Any, str]]:
    kinds: Any = keras.callbacks

    class Mine(kinds.EarlyStopping):
        pass

    return {
        "EarlyStopping": (kinds.EarlyStopping(), r"best epoch by itself \(run\.best\.epoch\).*stop=hy\.Patience\(n\)"),
        "of one's own": (Mine(), "EarlyStopping has no use here"),
        "ReduceLROnPlateau": (kinds.ReduceLROnPlateau(), "needs val_loss.*learning-rate schedule"),
        "ModelCheckpoint": (kinds.ModelCheckpoint("x.keras"), r"run\.best\.save\(directory\)"),
        "BackupAndRestore": (kinds.BackupAndRestore("x"), r"hy\.resume\(directory\)"),
        "TensorBoard": (kinds.TensorBoard("x"), r"run\.to_pandas\(\)"),
        "CSVLogger": (kinds.CSVLogger("x"), r"run\.to_pandas\(\)"),
        "ProgbarLogger": (kinds.ProgbarLogger(), "its own progress"),
        "History": (kinds.History(), r"run\.trials\[i\]\.history"),
        "SwapEMAWeights": (kinds.SwapEMAWeights(), "must not change weights"),
    }


@pytest.mark.parametrize("name", refused())
def test_a_useless_callback_is_refused_with_what_to_do(name: str) -> None:
    callback, advice = refused()[name]
    with pytest.raises(SpecError, match=rf"hopyard\.keras\.Model: callbacks: \w+ has no use here: .*{advice}|{advice}"):
        Model(made(plain), callbacks=[Notes(), callback])


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_end", "on_test_batch_end", "on_predict_begin"])
def test_a_hook_that_nobody_would_call_is_refused(hook: str) -> None:
    mine = type("Mine", (keras.callbacks.Callback,), {hook: lambda self, *told: None})
    with pytest.raises(SpecError, match=f"callbacks: Mine has {hook}, "):
        Model(made(plain), callbacks=[mine()])


@pytest.mark.parametrize("wrong", [3, "EarlyStopping", Notes, lambda epoch: 0.1])
def test_an_object_that_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=r"callbacks: .* is not a keras\.callbacks\.Callback"):
        Model(made(plain), callbacks=[wrong])


def test_without_callbacks_there_is_nothing_of_them_in_the_state() -> None:
    trainable = model(plain)
    assert set(trainable.state()) == {"model", "optimizer"}
    trainable.end_epoch()
    assert set(with_hooks([Notes()]).state()) == {"model", "optimizer", "epoch"}


def test_models_with_callbacks_are_like_no_other() -> None:
    assert with_hooks([Notes()]).sharing_key == ""
    assert with_hooks().sharing_key != ""


def test_a_schedule_of_the_optimizer_needs_no_callback() -> None:
    def net() -> Any:
        return small(optimizer=optimizers.SGD(optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.01])))

    trainable = model(net)
    trainable.train_partition(feed(1))
    assert float(trainable.model.optimizer.learning_rate) == pytest.approx(0.1)
    trainable.train_partition(feed(1))
    assert float(trainable.model.optimizer.learning_rate) == pytest.approx(0.01)


# ------------------------------------------------------------------------------------------ ctx.log


def test_callbacks_log_between_the_steps() -> None:
    collector, found = Collector(), Collected()

    class Logs(Batches):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            collector.log("loss", logs["loss"])
            collector.log("kernel", self.model.layers[-1].kernel)
            collector.log("mean", keras.ops.mean(self.model.layers[-1].kernel))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            collector.log("rate", self.model.optimizer.learning_rate)

    trainable = with_hooks([Logs()])
    with collector.collecting(found):
        trainable.train_partition(feed(1))
        trainable.end_epoch()
    logged, _ = points_of(found, 4096)
    assert [*logged] == ["loss", "mean", "rate", "kernel"]
    assert logged["rate"] == pytest.approx(0.1) and {len(each) for each in found.numbers.values()} == {8 * 4, 8}
    assert found.arrays["kernel"].count == 4 * trainable.model.layers[-1].kernel.shape[0] * 3


def test_a_compiled_step_may_not_log() -> None:
    """Its tensors have no value yet, and it would log once, when it is traced, not in each step."""
    collector, found = Collector(), Collected()

    def loss(targets: Any, outputs: Any) -> Any:
        collector.log("outputs", outputs)
        return keras.losses.sparse_categorical_crossentropy(targets, outputs)

    with collector.collecting(found), pytest.raises(SpecError, match=r"ctx\.log\('outputs', …\).*run_eagerly=True"):
        model(partial(small, loss=loss)).train_partition(feed(1))
    assert found == Collected()
    eager = model(partial(small, loss=loss, run_eagerly=True))
    with collector.collecting(found):
        eager.train_partition(feed(1))
    assert found.arrays["outputs"].count == 28 * 3


def test_a_layer_may_log_where_steps_are_not_compiled() -> None:
    """It is called with symbolic tensors when the recipe builds the model."""
    collector, found = Collector(), Collected()

    class Seen(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            collector.log("inputs", inputs)
            return inputs

    def net() -> keras.Model:
        layers = [keras.Input((4,)), Seen(), keras.layers.Dense(3, activation="softmax")]
        return with_loss(keras.Sequential(layers), run_eagerly=True)

    trainable = model(net)
    with collector.collecting(found):
        trainable.train_partition(feed(1))
    assert found.arrays["inputs"].count == 28 * 4

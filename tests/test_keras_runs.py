"""Keras through whole runs: the same bits wherever and however often a model hops, and the model that comes of it.

TensorFlow takes a worker some seconds to import, so most tests look at the same few runs, of one zoo of models
(`keras_jobs.ZOO`).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Dispatch, Done, Joined, Line
from hopyard.data.partitions.loader import sizes
from hopyard.data.partitions.mapped import open_partition
from hopyard.driver.runs.run import Run
from hopyard.engines.templates import Templates
from hopyard.store.layout import Layout
from jobs import agents, children, digests, driver, gone, journal, memory, script
from keras_jobs import FIXED, ZOO, dataset, even, local, net, select, table, zoo

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:. workers on"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy"),  # Keras' own, of NumPy 2
]
FEW = ZOO[:5]
"""One of each kind."""
ABSENT = """
import sys
def absent():
    found = [name for name in ("tensorflow", "keras", "jax") if name in sys.modules]
    if found:
        raise RuntimeError(f"imported: {found}")
absent()
hy.select, hy.fit, hy.resume, hy.Trial, hy.load_model
absent()
assert "torch" not in sys.modules
"""
DRIVER = (
    ABSENT
    + """
from keras_jobs import ZOO, local, select, zoo
run = select(Path("one"), zoo, ZOO, engine=local(1))
run.best, run.report(), run.gantt()
absent()
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> Iterator[Path]:
    """Of the runs that tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(data_cache))
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        yield tmp_path_factory.mktemp("keras")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Run]:
    """By Keras' backend, what one worker makes of the zoo, or of one architecture. Both at once, to save time; the
    first in a driver of its own, which imports no framework, and whose worker is no fork."""
    process = driver([str(script(folder / "job.py", DRIVER))], folder)
    run = on("torch", folder, 1, wait=False)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    return {"torch": run.wait(), "tensorflow": hy.load(folder / "one")}


@pytest.fixture(scope="module")
def jax(folder: Path) -> Run:
    """One architecture on one worker with JAX, which compiles for many seconds. It is a new process, no fork."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Templates, "fork", lambda *arguments: None)
        return on("jax", folder, 1)


@pytest.fixture(scope="module")
def one(alone: dict[str, Run]) -> Run:
    """The zoo on one worker."""
    return alone["tensorflow"]


def on(backend: str, folder: Path, workers: int, wait: bool = True) -> Run:
    """One architecture, twice."""
    configs = [{"width": 8, "lr": 0.01, "batch_size": 32}, {"width": 8, "lr": 0.03, "batch_size": 32}]
    engine = local(workers, KERAS_BACKEND=backend)
    directory = folder / f"{backend}-{workers}"
    return select(directory, net, configs, engine=engine, data=even(), parallel=hy.Hopper("off"), wait=wait)


@pytest.fixture(scope="module")
def two(folder: Path) -> Run:
    """The zoo on two workers, which write down what they trace; partition by partition, so that models hop much. The
    worker that has got the newest unit is killed when every model has trained a little."""
    engine = local(2, TRACES=str(folder / "traces"))
    run = select(folder / "two", zoo, ZOO, engine=engine, parallel=hy.Hopper("off"), wait=False)
    try:
        lines = until(lambda: journal(run.directory), units(len(ZOO) + 6))
        slot = [line.slot for line in lines if isinstance(line, Dispatch)][-1]
        (pid,) = [line.pid for line in lines if isinstance(line, Joined) and line.slot == slot]
        os.kill(pid, signal.SIGKILL)
    except BaseException:
        run.stop()
        raise
    return run.wait()


# ------------------------------------------------------------------------------------------------ the same bits


def test_every_kind_of_model_trains(one: Run) -> None:
    assert one.status == "completed"
    assert len(set(digests(one))) == len(ZOO)
    for trial in one.trials:
        assert trial.history[2]["loss"] < trial.history[1]["loss"]
        named = (
            {"loss", "val_loss"} if trial.config["kind"] == "tape" else {"loss", "accuracy", "val_loss", "val_accuracy"}
        )
        assert set(trial.metrics) == named


def fingerprints(run: Run) -> list[dict[str, Any]]:
    """Of its workers."""
    return [line.fingerprint for line in journal(run.directory) if isinstance(line, Joined)]


def test_two_workers_of_which_one_is_killed_give_the_bits_of_one(
    one: Run, two: Run, templates: Templates, before: set[str]
) -> None:
    """And forks those of a new process."""
    assert digests(two) == digests(one)
    assert [trial.history for trial in two.trials] == [trial.history for trial in one.trials]
    lines = journal(two.directory)
    (lost,) = [line for line in lines if isinstance(line, Lost)]
    assert "SIGKILL" in lost.reason
    assert {line.slot for line in lines if isinstance(line, Dispatch)} >= {0, 1}
    (new,) = fingerprints(one)
    assert all(fork == new for fork in fingerprints(two))
    assert refusals(templates) <= before


def refusals(templates: Templates) -> set[str]:
    """Why workers were no forks."""
    return {template.refusal for template in templates._items.values() if template.refusal}


@pytest.fixture(autouse=True, scope="module")
def before(templates: Templates) -> set[str]:
    """Why those of other files were none."""
    return refusals(templates)


@pytest.mark.long
def test_inline_gives_them_too(tmp_path: Path, one: Run) -> None:
    run = select(tmp_path / "run", zoo, FEW)
    assert digests(run) == digests(one)[: len(FEW)]
    assert [trial.history for trial in run.trials] == [trial.history for trial in one.trials[: len(FEW)]]


def until(lines: Callable[[], list[Line]], reached: Callable[[list[Line]], bool], seconds: float = 200) -> list[Line]:
    """The journal, as soon as it has got so far."""
    end = time.monotonic() + seconds
    while not reached(found := lines()):
        assert time.monotonic() < end, "the run did not get so far"
        time.sleep(0.01)
    return found


def units(count: int) -> Callable[[list[Line]], bool]:
    return lambda lines: sum(isinstance(line, Done) for line in lines) >= count


@pytest.mark.campaign
def test_when_the_driver_is_killed(tmp_path: Path, one: Run) -> None:
    body = """
from keras_jobs import ZOO, local, select, zoo
with local(2) as engine:
    select(Path("run"), zoo, ZOO[:3], engine=engine, parallel=hy.Hopper("off"))
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    directory = tmp_path / "run"
    try:
        until(lambda: journal(directory) if Layout(directory).exists else [], units(9))
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert gone(children(process))
    assert hy.load(directory).status == "interrupted"
    assert len(agents(directory)) == 2
    run = hy.resume(directory, engine=hy.Inline())  # no worker has to start again, which takes so long
    assert digests(run) == digests(one)[:3]
    assert not memory(tmp_path)


def backends(run: Run) -> set[str]:
    """As the workers saw it."""
    return {fingerprint["keras_backend"] for fingerprint in fingerprints(run)}


@pytest.mark.jax
@pytest.mark.long
def test_on_jax_two_workers_give_the_bits_of_one(
    jax: Run, folder: Path, templates: Templates, before: set[str]
) -> None:
    """And forks those of a new process."""
    one, two = jax, on("jax", folder, 2)
    assert backends(one) == backends(two) == {"jax"}
    assert fingerprints(two) == fingerprints(one) * 2
    assert refusals(templates) <= before
    assert digests(one) == digests(two)
    assert len(set(digests(one))) == 2
    assert [trial.history for trial in one.trials] == [trial.history for trial in two.trials]
    assert quiet(one)
    assert quiet(two)


def test_on_torch(alone: dict[str, Run]) -> None:
    run = alone["torch"]
    assert backends(run) == {"torch"}
    assert len(set(digests(run))) == 2
    for trial in run.trials:
        assert trial.history[2]["loss"] < trial.history[1]["loss"]
    assert quiet(run)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=[pytest.mark.jax, pytest.mark.long])])
def test_a_model_of_another_backend_is_as_good_here(
    request: pytest.FixtureRequest, alone: dict[str, Run], backend: str, one: Run
) -> None:
    """Here Keras is on TensorFlow; a State holds plain arrays."""
    one.trials[0].model()
    run = request.getfixturevalue("jax") if backend == "jax" else alone[backend]
    trial = run.trials[1]
    x, y = table(384)
    found = trial.evaluate({"inputs": x[256:], "targets": y[256:]}, "last")
    for name, value in found.items():
        assert value == pytest.approx(trial.history[2][f"val_{name}"], rel=1e-4)


@pytest.mark.long
def test_whoever_asks_for_a_model_of_jax_gets_no_workers_of_jax(jax: Run, tmp_path: Path) -> None:
    """In a process of its own, where Keras is not there yet. What is in its environment is in that of later workers."""
    body = f"""
import os
model = hy.load({str(jax.directory)!r}).best.model()
import keras
assert keras.backend.backend() == "jax"
assert isinstance(model, keras.Model)
assert "KERAS_BACKEND" not in os.environ
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


# ------------------------------------------------------------------------------------------------ traces, logs


def test_an_architecture_is_traced_once_by_each_worker(two: Run, folder: Path) -> None:
    """However many configurations of it there are, and also the preflight counts."""
    found = Counter((folder / "traces").read_text().splitlines())
    assert set(found.values()) == {1}
    by_worker = Counter((pid, name) for pid, name, _ in map(str.split, found))
    assert max(by_worker.values()) <= 4  # plain-8, plain-12, schedule-8, callback-8
    lines = journal(two.directory)
    (slot,) = {0, 1} - {line.slot for line in lines if isinstance(line, Lost)}  # the other one was killed early
    (pid,) = [line.pid for line in lines if isinstance(line, Joined) and line.slot == slot]
    assert by_worker[str(pid), "train_step"] and by_worker[str(pid), "test_step"]
    units = [line.unit for line in lines if isinstance(line, Dispatch) and line.slot == slot]
    plain = {trial.id for trial in two.trials if trial.config["kind"] in ("bare", "wrapped")}
    hosted = {unit.trial for unit in units if unit.kind == "train"}
    assert len(hosted & plain) > 2  # more trials than architectures, else nothing was shared


def quiet(run: Run) -> bool:
    """Whether no worker of the run said anything but what TensorFlow says as it is imported."""
    logs = list((run.directory / "logs").iterdir())
    assert logs
    for path in logs:
        lines = path.read_text(errors="replace").splitlines()
        assert [line for line in lines if "oneDNN" not in line and "absl::InitializeLog" not in line] == []
    return True


def test_workers_are_quiet(one: Run, two: Run) -> None:
    assert quiet(one)
    assert quiet(two)


@pytest.mark.filterwarnings("error")
def test_our_code_does_not_warn(one: Run, tmp_path: Path) -> None:
    """Keras' LearningRateScheduler and `save` do, with NumPy 2."""
    run = select(tmp_path / "run", zoo, [ZOO[0], ZOO[4]], epochs=1)
    one.trials[2].predict(table(5)[0])
    for trial in (*run.trials, one.trials[2]):
        trial.evaluate(dataset())


# ------------------------------------------------------------------------------------------------ batches, rates


@pytest.mark.parametrize(("trial", "size"), [(0, 16), (1, 32), (5, FIXED)], ids=["config", "default", "recipe"])
def test_sources_of_the_batch_size(one: Run, trial: int, size: int) -> None:
    """Told by the steps that the optimizer took."""
    parts = dataset().prepare().train
    steps = 2 * sum(len(sizes(part.rows, size)) for part in parts)
    assert len(parts) == 4
    assert int(one.trials[trial].model("last").optimizer.iterations.numpy()) == steps


def test_learning_rates_that_change(one: Run) -> None:
    """By step, and by a callback in the first partition of an epoch; that they are exact, the digests tell."""
    by_step, by_epoch = one.trials[2], one.trials[3]
    optimizer = by_step.model("last").optimizer
    steps = int(optimizer.iterations.numpy())
    assert steps == 2 * sum(len(sizes(part.rows, 16)) for part in dataset().prepare().train)
    assert float(np.asarray(optimizer.learning_rate)) == pytest.approx(0.05 * 0.8 ** (steps / 7), rel=1e-5)
    assert float(np.asarray(by_epoch.model("last").optimizer.learning_rate)) == np.float32(0.05 / 2)


# ------------------------------------------------------------------------------------------------ the model


def close(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


def validation_rows(data: hy.Dataset) -> tuple[Any, Any, Any]:
    """Of all partitions, one after the other."""
    manifest = data.prepare()
    parts = [open_partition(manifest, "validate", n) for n in range(len(manifest.validate))]
    return tuple(joined([getattr(part, name) for part in parts]) for name in ("inputs", "targets", "weights"))


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)


@pytest.mark.parametrize("trial", [0, 2, 3, 5])
def test_the_history_is_what_keras_itself_finds(one: Run, trial: int) -> None:
    x, y, _ = validation_rows(dataset())
    found = one.trials[trial].model("last").evaluate(x, y, batch_size=48, verbose=0, return_dict=True)
    history = one.trials[trial].history[2]
    close({name.removeprefix("val_"): v for name, v in history.items() if name.startswith("val_")}, found)


def test_the_model_of_a_trial(one: Run) -> None:
    import keras

    best = next(trial for trial in one.trials if trial.config["kind"] == "bare")
    model = best.model()
    assert isinstance(model, keras.Model)
    x, y = table(333, seed=1)
    size = best.config.get("batch_size", 32)
    expected = model.evaluate(x, y, batch_size=size, verbose=0, return_dict=True)
    close(best.evaluate({"inputs": x, "targets": y}), expected)
    close(best.evaluate(hy.Dataset.numpy(x, y)), expected)
    outputs = best.predict(x)
    assert outputs.shape == (333, 2)
    np.testing.assert_allclose(outputs, model.predict(x, batch_size=size, verbose=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(outputs, best.predict(hy.Dataset.numpy(x, y)))


def test_a_saved_model(one: Run, tmp_path: Path) -> None:
    import keras

    best = one.best
    directory = best.save(tmp_path / "model")
    files = sorted(path.name for path in directory.iterdir())
    assert files == [
        "config.json",
        "model.keras",
        "recipe.pkl",
        "state.safetensors",
    ]  # of a generator, which Keras leaves out
    x, _ = table(50, seed=1)
    expected = best.model().predict(x, verbose=0)
    for model in (
        hy.load_model(directory).model(),
        hy.load_model(directory, recipe=zoo).model(),
        keras.saving.load_model(directory / "model.keras"),
    ):
        assert isinstance(model, keras.Model)
        assert model.compiled
        np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    (directory / "recipe.pkl").unlink()
    np.testing.assert_array_equal(hy.load_model(directory, recipe=zoo).predict(x), best.predict(x))


def test_a_saved_model_goes_on_where_it_stood(one: Run, tmp_path: Path) -> None:
    """Its optimizer is saved too."""
    trial = one.trials[2]
    model, loaded = trial.model("last"), hy.load_model(trial.save(tmp_path / "model", "last")).model()
    for here, there in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_a_trainable_on_tensorflow_itself(one: Run, tmp_path: Path) -> None:
    trial = one.trials[4]
    made = trial.model("last")
    assert type(made).__name__ == "Tape"
    assert made.rows == 2 * dataset().prepare().train_rows
    x, y = table(64, seed=1)
    loss = trial.evaluate({"inputs": x, "targets": y})["loss"]
    assert 0 < loss < 2
    again = hy.load_model(trial.save(tmp_path / "model", "last")).model()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "model.safetensors", "recipe.pkl",
    ]  # fmt: skip
    for here, there in zip(made.weights, again.weights, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())


# ------------------------------------------------------------------------------------------------ several inputs


def several(weighted: bool) -> hy.Dataset:
    """Every batch of 32 is whole: Keras' own losses of single outputs are means over batches, not over rows."""
    x, y = table(384, seed=3)
    weight = np.random.default_rng(4).uniform(0.2, 3.0, 384).astype(np.float32)

    def rows(which: slice) -> dict[str, Any]:
        return {
            "x": {"left": x[which, :4], "right": x[which, 4:]},
            "y": {"sign": y[which], "size": np.abs(x[which]).sum(1)},
            "weight": weight[which] if weighted else None,
        }

    return hy.Dataset.numpy(**rows(slice(256)), validation=hy.Dataset.numpy(**rows(slice(256, 384))), partitions=4)


def forked(config: dict[str, Any]) -> Any:
    """Two inputs, two outputs, a metric of each, one of which is more than a mean."""
    import keras

    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    hidden = layers.Dropout(0.1)(layers.Dense(8, activation="relu")(layers.Concatenate()([left, right])))
    sign = layers.Dense(1, activation="sigmoid", name="sign")(hidden)
    size = layers.Dense(1, name="size")(hidden)
    model = keras.Model([left, right], {"sign": sign, "size": size})
    model.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss={"sign": "binary_crossentropy", "size": "mse"},
        loss_weights={"sign": 1.0, "size": 0.1},
        metrics={"sign": [keras.metrics.AUC(name="auc")], "size": ["mae"]},
        weighted_metrics={"sign": ["accuracy"]},
    )
    return model


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.campaign), True], ids=["plain", "weighted"])
def test_several_inputs_and_outputs_by_name(tmp_path: Path, weighted: bool) -> None:
    data = several(weighted)
    run = select(tmp_path / "run", forked, [{"lr": 0.03}], data=data, metric="val_sign_auc", mode="max")
    (trial,) = run.trials
    model = trial.model("last")
    x, y, weights = validation_rows(data)
    expected = model.evaluate(x, y, sample_weight=weights, batch_size=32, verbose=0, return_dict=True)
    found = {name.removeprefix("val_"): v for name, v in trial.history[2].items() if name.startswith("val_")}
    close(found, expected)
    outputs = trial.predict(x, "last")
    assert {name: values.shape for name, values in outputs.items()} == {
        "sign": (len(y["sign"]), 1),
        "size": (len(y["sign"]), 1),
    }
    again = hy.load_model(trial.save(tmp_path / "model", "last")).model()
    for name, values in again.predict(x, verbose=0).items():
        np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6)


def test_weights_count(tmp_path: Path) -> None:
    """Rows of weight 0 are as if they were not there."""
    x, y = table(400, seed=3)
    weight = (np.arange(400) % 2).astype(np.float32)
    data = hy.Dataset.numpy(x, np.where(weight > 0, y, 1 - y), weight=weight, validation=0.25, partitions=4)
    run = select(tmp_path / "run", net, ZOO[:1], data=data, epochs=4)
    trial = run.trials[0]
    assert trial.metrics["val_loss"] < 0.5
    flipped = trial.evaluate(hy.Dataset.numpy(x, np.where(weight > 0, y, 1 - y)))
    assert flipped["accuracy"] < 0.7


# ------------------------------------------------------------------------------------------------ who needs it not


@pytest.mark.long
def test_no_other_process_imports_tensorflow(tmp_path: Path) -> None:
    """Neither a driver nor a worker of a NumPy or a torch recipe; asked at the end of the last validation."""
    body = (
        ABSENT
        + """
from jobs import CONFIGS, WIDTH, select
from hopyard.frameworks.linear import Linear

class Wary(Linear):
    def evaluate_partition(self, feed):
        absent()
        return {"loss": (1.0, feed.rows)}
    def train_partition(self, feed):
        absent()
        return {"loss": (1.0, feed.rows)}

def plain(config):
    absent()
    return Wary(WIDTH, 2, lr=config["lr"], batch_size=16)

def torches(config):
    import torch
    absent()
    net = torch.nn.Linear(WIDTH, 2)
    made = hy.torch.Model(net, optimizer=torch.optim.Adam(net.parameters()), loss=torch.nn.functional.cross_entropy)
    step = made.evaluate_partition
    def evaluate_partition(feed):
        absent()
        return step(feed)
    made.evaluate_partition = evaluate_partition
    return made

for name, recipe in (("plain", plain), ("torches", torches)):
    run = select(Path(name), recipe, CONFIGS[:2], engine=hy.Local(1, devices=None))
    assert run.status == "completed", [trial.error for trial in run.trials]
    run.best.model()
    run.best.save(Path(name) / "model")
    hy.load_model(Path(name) / "model")
    absent()
"""
    )
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err

"""Keras against what one would do without Hopyard, and against the least that the same training can cost.

    python benchmarks/keras_vs_limit.py [--repeats 3] [--only selection|conv] [--small]

Selection: 8 small nets on 15,000 × 100 rows, 3 epochs with validation. Reference: plain `model.fit`, one configuration
after the other, in one fresh process that may use all cores, with its data in memory. Its clock: from TensorFlow and
Keras imported until the last `fit` has ended. Ours: from the first worker having them imported (its `Joined`; the
second may still be at it) until every final State is durable and the run `Finished`. Preflight, building and tracing
are inside. The rows are dealt to partitions once for many runs, before either clock starts. Also checked: one trained
model evaluates to the same by `trial.evaluate` and by `model.evaluate`. Counted: how often Keras' steps were traced.

Conv: convolutional nets whose steps take 10 ms and more, without validation. Reference: the plain loop around a
`tf.function`, over the same batches in the same order, one thread, deterministic kernels, two such processes at once
with half of the configurations each; it must end in bitwise the same weights, so the work is the same. Limit: half the
sum of what the two processes took, as if no core ever had to wait. Both clocks hold all that comes after the import:
building, tracing, and what TensorFlow puts off until its first operation. That is fairer than sums over units, which
hide preflight, waiting, hops, and the worker that has nothing left to do at the end. No two of the configurations are
alike, so Hopyard traces each at least once too, and gains nothing from sharing compiled steps; it traces one again in
each worker that it hops to, and that is inside. Sums over the units that traced nothing are printed beside it: what of
the difference is in the loop.

Ours and the reference in turn, medians of their ratios. Beside each stand the CPU seconds of both, imports included,
and how many cores other programs used meanwhile: more than a twentieth of one, and the ratio says little.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Checked, Dispatch, Done, Durable, Finished, Joined
from hopyard.data.partitions.loader import sizes
from hopyard.engines.local import THREADS
from hopyard.store.journal import read
from hopyard.store.layout import Layout

WORKERS = 2
ALLOWED = {"selection": 0.4, "conv": 1.05}

Configs = list[dict[str, Any]]
Cpu = tuple[float, float]
"""CPU seconds of a piece of work, and how many cores others used meanwhile."""
Costs = dict[tuple[int, int, int], float]
"""(trial, epoch, partition) → seconds."""


@dataclass(frozen=True)
class Job:
    """What both sides train."""

    recipe: Callable[[dict[str, Any]], Any]
    configs: Configs
    epochs: int
    partitions: int
    metric: str


@dataclass(frozen=True)
class Ours:
    """A run, by its journal. `seconds`: from the first worker up to the end; `busy`: of all units together."""

    run: Any
    seconds: float
    startup: float
    preflight: float
    busy: float
    hops: float
    costs: Costs
    """Without the units that traced."""


# -------------------------------------------------------------------- what is trained


def mlp(config: dict[str, Any]) -> Any:
    """A compiled net for rows of 100 numbers and a label of 0 or 1."""
    import keras

    net = keras.Sequential(
        [
            keras.Input((100,)),
            keras.layers.Dense(config["hidden"], activation="relu"),
            keras.layers.Dense(config["hidden"], activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss="binary_crossentropy", metrics=["accuracy"])
    return net


def conv(config: dict[str, Any]) -> Any:
    """A net for images of shape (28, 28, 1) and ten classes, not compiled."""
    import keras

    wide = config["channels"]
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(wide, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(2 * wide, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(config["dense"], activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compiled_conv(config: dict[str, Any]) -> Any:
    """The same as a recipe."""
    import keras

    net = conv(config)
    net.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return net


def counted(recipe: Callable[[dict[str, Any]], Any], log: Path) -> Callable[[dict[str, Any]], Any]:
    """The recipe, and a line in `log` each time that a step is traced: only then the Python of a compiled one runs."""

    def build(config: dict[str, Any]) -> Any:
        import keras

        def watch(name: str) -> None:
            step = getattr(keras.Sequential, name)

            def seen(self: Any, data: Any) -> Any:
                with log.open("a") as out:
                    out.write(f"{os.getpid()} {name}\n")
                return step(self, data)

            setattr(keras.Sequential, name, seen)

        if not hasattr(keras.Sequential, "watched"):
            keras.Sequential.watched = True
            watch("train_step")
            watch("test_step")
        return recipe(config)

    return build


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 rows (count, 100), labels (count,) of 0.0 and 1.0."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 100)).astype(np.float32)
    y = (x @ rng.standard_normal(100) + 3 * rng.standard_normal(count) > 0).astype(np.float32)
    return x, y


def images() -> tuple[np.ndarray, np.ndarray]:
    """float32 images (16173, 28, 28, 1), labels (16173,): scikit-learn's digits, enlarged, each also moved by two
    pixels in eight directions; noise of the same shape where scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        rng = np.random.default_rng(0)
        return rng.random((16173, 28, 28, 1), np.float32), rng.integers(0, 10, 16173)
    digits = load_digits()
    large = np.kron(digits.images / 16, np.ones((4, 4)))[:, 2:30, 2:30].astype(np.float32)
    moved = [np.roll(large, (down, right), (1, 2)) for down in (-2, 0, 2) for right in (-2, 0, 2)]
    return np.concatenate(moved)[..., None], np.tile(digits.target, 9)


# -------------------------------------------------------------------- ours


def run_hopyard(job: Job, data: Any, folder: Path) -> Ours:
    with contextlib.redirect_stdout(io.StringIO()):
        run = hy.select(
            job.recipe,
            None,
            data,
            search=hy.Configs(job.configs),
            epochs=job.epochs,
            metric=job.metric,
            mode="min",
            engine=hy.Local(workers=WORKERS, devices=None),
            directory=folder,
        )
    assert run.status == "completed", run
    lines = list(read(Layout(run.directory).journal, CODEC))
    began = next(line.at for line in lines if isinstance(line, Began))
    up = min(line.at for line in lines if isinstance(line, Joined))
    checked = next(line.at for line in lines if isinstance(line, Checked))
    (end,) = [line.at for line in lines if isinstance(line, Finished)]
    stored = {(line.ref.trial, line.ref.step) for line in lines if isinstance(line, Durable) and line.at <= end}
    assert {(trial, job.epochs * job.partitions) for trial in range(len(job.configs))} <= stored
    done = [line for line in lines if isinstance(line, Done)]
    return Ours(
        run,
        seconds=end - up,
        startup=up - began,
        preflight=checked - up,
        busy=sum(line.seconds for line in done),
        hops=sum(line.hop_seconds for line in done),
        costs=unit_costs(lines),
    )


def unit_costs(lines: list[Any]) -> Costs:
    """Of training units, hops included, spread over their partitions; without the first of each trial in each worker,
    which traces."""
    units = {line.unit.lease: line.unit for line in lines if isinstance(line, Dispatch)}
    seen: set[tuple[int, int]] = set()
    found: Costs = {}
    for line in lines:
        if not isinstance(line, Done) or units[line.lease].kind != "train":
            continue
        unit = units[line.lease]
        if (line.slot, unit.trial) in seen:
            beside = (line.seconds - sum(part.seconds for part in line.parts)) / len(line.parts)
            found |= {(unit.trial, unit.epoch, part.partition): part.seconds + beside for part in line.parts}
        seen.add((line.slot, unit.trial))
    return found


def told(ours: Ours) -> str:
    idle = WORKERS * ours.seconds - ours.busy - ours.preflight
    return (
        f"(start-up until the first worker is there {ours.startup:.2f} s, not counted; preflight "
        f"{ours.preflight:.2f} s; units {ours.busy:.2f} s, of which hops {ours.hops:.2f} s; {WORKERS} workers idle "
        f"{idle:.2f} s)"
    )


# -------------------------------------------------------------------- references, each in processes of their own


def fit_in_turn(folder: Path, asked: dict[str, Any]) -> None:
    """One process: `fit` for each configuration. Prints its seconds."""
    import keras

    x, y, cut = np.load(folder / "x.npy"), np.load(folder / "y.npy"), asked["cut"]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    keras.utils.set_random_seed(0)
    for config in asked["configs"]:
        net = mlp(config)
        net.fit(
            x[:cut],
            y[:cut],
            validation_data=(x[cut:], y[cut:]),
            batch_size=config["batch_size"],
            epochs=asked["epochs"],
            verbose=0,
        )
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


def train_by_hand(folder: Path, asked: dict[str, Any]) -> None:
    """One of two processes: every second configuration, one after the other. Prints its seconds, digests of the
    weights, and seconds of each partition but the first of each configuration."""
    import keras
    import tensorflow as tf

    from hopyard.core.runs import order
    from hopyard.data.assignment import permutation
    from hopyard.data.manifest import Manifest
    from hopyard.data.partitions.mapped import open_partition

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    manifest = Manifest.load(folder / "manifest.json")
    count = len(manifest.train)
    columns = [open_partition(manifest, "train", number) for number in range(count)]
    arrays = [(np.array(part.inputs), np.array(part.targets)) for part in columns]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    data = [(tf.constant(x), tf.constant(y)) for x, y in arrays]
    digests, costs = [], []
    for trial, config in enumerate(asked["configs"]):
        if trial % WORKERS != asked["part"]:
            continue
        random.seed(order.build_seed(0, trial))  # where Keras' initializers take their seeds from
        net = conv(config)
        optimizer = keras.optimizers.Adam(config["lr"])
        optimizer.build(net.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        total = tf.Variable(0.0)

        def step(x: Any, y: Any, index: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(tf.gather(y, index), net(tf.gather(x, index), training=True))  # noqa: B023
            weights = net.trainable_variables  # noqa: B023
            optimizer.apply(tape.gradient(loss, weights), weights)  # noqa: B023
            total.assign_add(loss * tf.cast(tf.size(index), tf.float32))  # noqa: B023

        signature = (
            tf.TensorSpec((None, 28, 28, 1), tf.float32),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None,), tf.int64),
        )
        compiled = tf.function(step, input_signature=signature, autograph=False)
        for k in range(asked["epochs"] * count):
            start = time.perf_counter()
            epoch, p = order.visit(order.spread(count)[trial % count], k, count)
            x, y = data[p]
            visits = tf.constant(permutation(order.shuffle_seed(0, trial, epoch, p), len(x)))
            total.assign(0.0)
            at = 0
            for size in sizes(len(x), config["batch_size"]):
                compiled(x, y, visits[at : at + size])
                at += size
            assert np.isfinite(total.numpy())
            if k:
                costs.append((trial, epoch, p, time.perf_counter() - start))
        digests.append((trial, digest_of(net)))
    print(json.dumps({"seconds": time.perf_counter() - began, "digests": digests, "costs": costs}), flush=True)


REFERENCES = {"fit": fit_in_turn, "hand": train_by_hand}


def run_reference(which: str, folder: Path, asked: list[dict[str, Any]], threads: int | None) -> list[dict[str, Any]]:
    """One process for each of `asked`, started on the mark together once all have their imports and data; what they
    printed. `threads` None: TensorFlow's own choice."""
    names = (*THREADS, "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if threads is not None:
        environment |= dict.fromkeys(names, str(threads))
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--reference", which, str(folder), json.dumps(mine)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mine in asked
    ]
    for job in jobs:
        assert job.stdout and job.stdout.readline() == "ready\n"
    for job in jobs:
        assert job.stdin
        job.stdin.write("go\n")
        job.stdin.flush()
    return [json.loads(job.communicate()[0]) for job in jobs]


# -------------------------------------------------------------------- the two ratios


def watched(work: Callable[[], Any]) -> tuple[Any, Cpu]:
    """What `work` gives, and what it cost; it has waited for its processes by then."""

    def used() -> tuple[float, float, float]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        everybody = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # but idle and waiting for a disk
        return time.perf_counter(), everybody, sum(os.times()[:4])

    before = used()
    made = work()
    wall, everybody, mine = (b - a for a, b in zip(before, used(), strict=True))
    return made, (mine, max(0.0, everybody - mine) / wall)


def spent(plain: Cpu, ours: Cpu) -> str:
    return (
        f"CPU {plain[0]:.1f} and {ours[0]:.1f} s, ratio {ours[0] / plain[0]:.3f}; others used {plain[1]:.2f} and "
        f"{ours[1]:.2f} cores"
    )


def selection(repeats: int, small: bool) -> float:
    space = hy.Space(lr=hy.choice([1e-2, 1e-3]), hidden=hy.choice([32, 64]), batch_size=hy.choice([64, 256]))
    x, y = rows(4_000 if small else 20_000)
    configs = list(space.grid())
    epochs, partitions = (1, 4) if small else (3, 8)
    data = hy.Dataset.numpy(x, y, validation=0.25, partitions=partitions)
    manifest = data.prepare()
    asked = {"configs": configs, "epochs": epochs, "cut": manifest.train_rows}
    print(
        f"selection: {manifest.train_rows} rows, {manifest.validate_rows} to validate on, {len(configs)} configurations"
    )
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        for repeat in range(repeats):
            (plain,), their_cpu = watched(lambda: run_reference("fit", folder, [asked], threads=None))
            log = folder / f"traces-{repeat}"
            job = Job(counted(mlp, log), configs, epochs, partitions, "val_loss")
            ours, our_cpu = watched(lambda: run_hopyard(job, data, folder / f"run-{repeat}"))  # noqa: B023 - called at once
            traces = log.read_text().splitlines()
            ratios.append(ours.seconds / plain["seconds"])
            print(
                f"selection, repeat {repeat}: fit {plain['seconds']:.2f} s, Hopyard {ours.seconds:.2f} s, "
                f"ratio {ratios[-1]:.3f}; {len(traces)} traces in {len({line.split()[0] for line in traces})} workers\n"
                f"  {told(ours)}\n  {spent(their_cpu, our_cpu)}",
                flush=True,
            )
            if repeat == 0:
                agree(ours.run.trials[-1], x, y)
    return statistics.median(ratios)


def agree(trial: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Keras' own evaluation of the model that came out gives the same figures."""
    found = trial.evaluate(hy.Dataset.numpy(x, y))
    known = trial.model().evaluate(x, y, batch_size=trial.config["batch_size"], verbose=0, return_dict=True)
    assert found.keys() == known.keys(), (found, known)
    worst = max(abs(found[name] / known[name] - 1) for name in known)
    assert worst <= 1e-6, f"trial.evaluate gives {found}, model.evaluate {known}"
    print(f"selection: trial.evaluate and model.evaluate agree to {worst:.1e} ({', '.join(known)})", flush=True)


def convolution(repeats: int, small: bool) -> float:
    x, y = images()
    if small:
        x, y = x[::8], y[::8]
    space = hy.Space(channels=hy.choice([8, 12, 16]), dense=hy.choice([64, 128]))
    configs = [config | {"lr": 1e-3, "batch_size": 64} for config in space.grid()]
    if small:
        configs = configs[:2]
    epochs, partitions = (1, 2) if small else (3, 4)
    ratios, units = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = hy.Dataset.numpy(x, y, partitions=partitions)
        manifest = data.prepare()
        manifest.save(folder / "manifest.json")
        steps = len(sizes(manifest.train[0].rows, 64))
        job = Job(compiled_conv, configs, epochs, partitions, "loss")
        asked = [{"configs": configs, "epochs": epochs, "part": part} for part in range(WORKERS)]
        for repeat in range(repeats):
            plain, their_cpu = watched(lambda: run_reference("hand", folder, asked, threads=1))
            ours, our_cpu = watched(lambda: run_hopyard(job, data, folder / f"run-{repeat}"))  # noqa: B023
            limit = sum(process["seconds"] for process in plain) / WORKERS
            known = {trial: digest for process in plain for trial, digest in process["digests"]}
            made = {trial.id: digest_of(trial.model("last")) for trial in ours.run.trials}
            differ = [trial for trial in made if made[trial] != known[trial]]
            assert not differ, f"the weights of trials {differ} differ: not the same work"
            theirs = {tuple(key): seconds for process in plain for *key, seconds in process["costs"]}
            both = ours.costs.keys() & theirs.keys()
            ratios.append(ours.seconds / limit)
            units.append(sum(ours.costs[key] for key in both) / sum(theirs[key] for key in both) if both else math.nan)
            least, most = min(theirs.values()), max(theirs.values())
            print(
                f"conv, repeat {repeat}: plain loop {limit:.2f} s, Hopyard {ours.seconds:.2f} s, ratio "
                f"{ratios[-1]:.3f}; bitwise equal; units alone {units[-1]:.3f}\n  partitions of {least:.2f} to "
                f"{most:.2f} s, steps of {least / steps * 1e3:.0f} ms and more\n  {told(ours)}\n"
                f"  {spent(their_cpu, our_cpu)}",
                flush=True,
            )
    print(f"conv, units that traced nothing ÷ the same partitions of the plain loop: {statistics.median(units):.3f}")
    return statistics.median(ratios)


def digest_of(net: Any) -> str:
    """Of all weights of a Keras model, in their order."""
    from blake3 import blake3

    return blake3(b"".join(array.tobytes() for array in net.get_weights())).hexdigest()


BENCHMARKS = {"selection": selection, "conv": convolution}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=BENCHMARKS)
    parser.add_argument("--small", action="store_true", help="a few seconds, figures that mean nothing")
    parser.add_argument("--reference", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.reference:
        which, folder, what = asked.reference
        REFERENCES[which](Path(folder), json.loads(what))
        return
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    figures = {name: run(asked.repeats, asked.small) for name, run in BENCHMARKS.items() if asked.only in (None, name)}
    for name, ratio in figures.items():
        verdict = "too small to tell" if asked.small else "met" if ratio <= ALLOWED[name] else "MISSED"
        print(f"{name}: {ratio:.3f} (at most {ALLOWED[name]}): {verdict}")


if __name__ == "__main__":
    main()

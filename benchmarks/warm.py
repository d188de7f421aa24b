"""Seconds from a call to its answer, the second time that a notebook makes it: with workers that are new processes,
with forks of a started engine, and with `hy.Inline`. Three answers: the first unit of a selection is done; a recipe
with an error of one line is refused; one fold of a cross-validation is trained.

Each framework has a process of its own, in which each engine has had one run before, which is not counted. Workers are
on this host whatever the engine: hosts are logged in to by a command that plays ssh, Spark has two executors here.

    python benchmarks/warm.py [--engine local|hosts|spark] [--repeats 3] [--frameworks torch tensorflow jax]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Done, Joined
from hopyard.store.journal import read
from hopyard.store.layout import Layout

FRAMEWORKS = ("torch", "tensorflow", "jax")
WIDTH = 20
PLAYED_SSH = """#!/bin/sh
if [ "$1" = -G ]; then echo "hostname 127.0.0.1"; exit 0; fi
while [ $# -gt 2 ]; do shift; done
exec sh -c "$2"
"""
UP_SECONDS = 0.3
"""Seconds within which the forks of the second run must be up."""


def torch_net(config: dict[str, Any]) -> Any:
    import torch

    inner = torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(config.get("wrong", 32), 2)
    net = torch.nn.Sequential(*inner)
    adam = torch.optim.Adam(net.parameters(), lr=config["lr"])
    return hy.torch.Model(net, optimizer=adam, loss=torch.nn.CrossEntropyLoss(), batch_size=64)


def keras_net(config: dict[str, Any]) -> Any:
    import keras

    net = keras.Sequential(
        [keras.Input((config.get("wrong", WIDTH),)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss=loss)
    return hy.keras.Model(net, batch_size=64)


def engines_of(kind: str, folder: Path) -> Callable[[], Any]:
    """Return what makes engines with two workers."""
    if kind == "spark":
        session = hy.spark.session(executors=2, cores=1)
        return lambda: hy.Spark(session, workers=2)
    if kind == "hosts":
        ssh = folder / "ssh"
        ssh.write_text(PLAYED_SSH)
        ssh.chmod(0o700)
        return lambda: hy.Hosts(["a:1", "b:1"], ssh=str(ssh), devices=None)
    return lambda: hy.Local(2, devices=None)


def data(seed: int) -> hy.Dataset:
    x = np.random.default_rng(seed).normal(size=(2000, WIDTH)).astype("float32")
    return hy.Dataset.numpy(x, (x[:, 0] > 0).astype("int64"), partitions=4, validation=0.25)


def select(recipe: Any, engine: Any, folder: Path, **config: Any) -> tuple[float, float, list[str]]:
    """Return the seconds until all workers were up (0.0: there are none), until the first unit was done, digests."""
    began = time.time()
    configs = hy.Configs([{"lr": 0.01, **config}, {"lr": 0.001, **config}])
    run = hy.select(
        recipe, None, data(0), search=configs, epochs=1, metric="val_loss", mode="min", engine=engine, directory=folder
    )
    lines = list(read(Layout(folder).journal, CODEC))
    up = max((line.at - began for line in lines if isinstance(line, Joined)), default=0.0)
    first = next(line.at - began for line in lines if isinstance(line, Done))
    return up, first, [trial.digest for trial in run.trials]


def refused(recipe: Any, engine: Any, folder: Path) -> float:
    """Return the seconds until an error in the recipe is shown."""
    began = time.perf_counter()
    try:
        select(recipe, engine, folder, wrong=7)
    except hy.PreflightError:
        return time.perf_counter() - began
    raise AssertionError("the recipe was not refused")


def fold(recipe: Any, engine: Any, folder: Path, number: int) -> float:
    """Return the seconds that one fold takes."""
    rows = data(number)
    began = time.perf_counter()
    hy.fit(recipe, {"lr": 0.01}, rows, epochs=2, engine=engine, directory=folder)
    return time.perf_counter() - began


def measure(framework: str, repeats: int, kind: str) -> dict[str, dict[str, float]]:
    """Return engine → what was measured → median of seconds."""
    recipe = torch_net if framework == "torch" else keras_net
    results: dict[str, dict[str, float]] = {}
    digests = set()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        new = engines_of(kind, Path(name))
        engines = {"cold": new(), "warm": stack.enter_context(new()), "inline": hy.Inline()}
        for engine_name, engine in engines.items():
            seconds: dict[str, list[float]] = {"up": [], "first unit": [], "refused": [], "fold": []}
            folder = Path(name, engine_name)
            folder.mkdir()
            for n in range(repeats + 1):
                up, first, found = select(recipe, engine, folder / f"select-{n}")
                digests.add(tuple(found))
                if n:
                    seconds["up"].append(up)
                    seconds["first unit"].append(first)
                    seconds["refused"].append(refused(recipe, engine, folder / f"refused-{n}"))
                    seconds["fold"].append(fold(recipe, engine, folder / f"fold-{n}", n))
            results[engine_name] = {what: statistics.median(values) for what, values in seconds.items()}
    assert len(digests) == 1, "the engines differ in their results"
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("local", "hosts", "spark"), default="local")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frameworks", nargs="+", default=FRAMEWORKS, choices=FRAMEWORKS)
    parser.add_argument("--one", choices=FRAMEWORKS, help="measure this one here, and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            results = measure(arguments.one, arguments.repeats, arguments.engine)
        print(json.dumps(results))
        return 0
    code = 0
    for framework in arguments.frameworks:
        more = ["--repeats", str(arguments.repeats), "--engine", arguments.engine]
        command = [sys.executable, __file__, "--one", framework, *more]
        backend = {} if framework == "torch" else {"KERAS_BACKEND": framework}
        output = subprocess.run(command, env={**os.environ, **backend}, capture_output=True, text=True, check=True)
        results = json.loads(output.stdout.splitlines()[-1])
        for engine, seconds in results.items():
            print(f"{framework:<11}{engine:<7}", *(f"{what} {value:.2f} s " for what, value in seconds.items()))
        up = results["warm"]["up"]
        print(f"{framework:<11}forks of the second run are up after {up:.2f} s (at most {UP_SECONDS})", flush=True)
        code = max(code, int(up > UP_SECONDS))
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The job that `chaos.py` disturbs: one selection, described by JSON in the first argument.

It prints `DIGESTS` and a JSON list: the digest of each trial's final State, then the best trial and its epoch. The
States lie in a store that fails on demand (`Shaky`): the file that the environment variable SHAKY names says how.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from fsspec.implementations.local import LocalFileSystem

FEATURES = 20


class Shaky(LocalFileSystem):
    """A local file system that fails, stalls, is slow, or refuses to write, as the file at $SHAKY says now."""

    protocol = "shaky"
    cachable = False

    @staticmethod
    def _mode() -> str:
        try:
            return Path(os.environ["SHAKY"]).read_text()
        except FileNotFoundError:
            return ""

    def _trouble(self, writes: bool) -> None:
        while (mode := self._mode()) == "stall":
            time.sleep(0.05)
        if mode == "slow":
            time.sleep(0.5)
        if mode == "fail":
            raise TimeoutError("the store does not answer")
        if mode == "readonly" and writes:
            raise PermissionError(13, "the store is read-only")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._trouble(True)
        super().pipe_file(path, value, mode=mode, **kwargs)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._trouble(True)
        super().mv(path1, path2, **kwargs)

    def rm_file(self, path: str) -> None:
        self._trouble(True)
        super().rm_file(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self._trouble(False)
        return bytes(super().cat_file(path, start=start, end=end, **kwargs))

    def exists(self, path: str, **kwargs: Any) -> bool:
        self._trouble(False)
        return bool(super().exists(path, **kwargs))


def first(name: str | None) -> bool:
    """Whether this happens for the first time in the whole run, whoever asks."""
    if name is None:
        return False
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hold_the_lock(seconds: float) -> None:
    """A C call that keeps the interpreter's lock: no other thread of this process runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def burn(seconds: float) -> None:
    """Work as a compiler does, once in each process."""
    if os.environ.get("WARM") == str(os.getpid()):
        return
    os.environ["WARM"] = str(os.getpid())
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(10_000))


def torch_recipe(config: dict[str, Any]) -> Any:
    """A small net with dropout and batch normalisation: its State has buffers, its training draws random numbers."""
    import torch

    import hopyard as hy

    trouble = json.loads(os.environ.get("TROUBLE", "{}"))
    if trouble.get("cold"):
        burn(trouble["cold"])
    width = config["width"]
    net = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(width, 2),
    )

    def loss(outputs: Any, targets: Any) -> Any:
        if trouble.get("lock") and torch.is_grad_enabled() and first(trouble["once"]):
            hold_the_lock(trouble["lock"])
        return torch.nn.functional.cross_entropy(outputs, targets)

    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
        loss=loss,
        metrics={"accuracy": hy.torch.accuracy},
        batch_size=config["batch_size"],
    )


def array_recipe(config: dict[str, Any]) -> Any:
    """Needs no framework."""
    from hopyard.frameworks.linear import Linear

    trouble = json.loads(os.environ.get("TROUBLE", "{}"))
    if trouble.get("cold"):
        burn(trouble["cold"])

    class Locked(Linear):
        def train(self, batch: Any) -> Any:
            if trouble.get("lock") and first(trouble["once"]):
                hold_the_lock(trouble["lock"])
            return super().train(batch)

    return Locked(FEATURES, 2, lr=config["lr"], batch_size=config["batch_size"])


RECIPES = {"torch": torch_recipe, "array": array_recipe}


def engine(how: dict[str, Any]) -> Any:
    """Of this run: inline, processes of this host, or executors."""
    import hopyard as hy

    if not how["workers"]:
        return hy.Inline()
    environment = {name: os.environ[name] for name in ("TROUBLE", "SHAKY", "HOPYARD_CHAOS", "PYTHONPATH")}
    if how["engine"] == "local":
        return behind(hy.Local(workers=how["workers"], env=environment))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local-cluster[{how['workers']},1,1024]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": os.environ["TMPDIR"],
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    return behind(hy.Spark(builder.getOrCreate(), workers=how["workers"], env=environment))


def behind(engine: Any) -> Any:
    """The engine, whose network is bad when the file at $NETWORK says so: "swallow" or "hold", seconds."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from faults.proxy import Proxied  # workers, which open the store of this module, need none

    engine = Proxied(engine)
    path = Path(os.environ["NETWORK"])

    def watch() -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):
                what, seconds = path.read_text().split()
                path.unlink()
                {"swallow": engine.swallow, "hold": engine.hold}[what](float(seconds))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    return engine


def main() -> None:
    import hopyard as hy

    how = json.loads(sys.argv[1])
    if how["resume"] and (Path(how["directory"]) / "journal.jsonl").exists():
        run = hy.resume(how["directory"], engine=engine(how), failed=how["failed"])
    else:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((how["rows"], FEATURES)).astype("f4")
        y = (x @ rng.standard_normal(FEATURES) + rng.standard_normal(len(x)) > 0).astype("i8")
        space = hy.Space(lr=hy.loguniform(1e-3, 1e-2), width=hy.choice([16, 64]), batch_size=hy.choice([16, 64]))
        run = hy.select(
            RECIPES[how["framework"]],
            space,
            hy.Dataset.numpy(x, y, validation=0.2, partitions=6),
            search=hy.Random(6),
            epochs=3,
            metric="val_loss",
            mode="min",
            directory=how["directory"],
            parallel=hy.Hopper(group=how["group"]),
            engine=engine(how),
            store=how["store"],
            timeouts=hy.Timeouts(heartbeat_timeout=how["heartbeat_timeout"]),
            resume=how["resume"],
        )
    print("DIGESTS " + json.dumps([trial.digest for trial in run.trials] + [run.best.id, run.best.epoch]))


if __name__ == "__main__":
    main()

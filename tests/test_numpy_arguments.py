"""Numbers, booleans and texts of NumPy, arrays and indexes, and integer names of columns pass wherever Python's do.

`CALLS` has the public functions and constructors, and of each argument Python's value and others that mean the same.
What comes of these must be equal, and of Python's own types: msgspec, which encodes what is sent and journaled, refuses
NumPy's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hopyard as hy
from hopyard.agent.programs.context import ProgramContext
from hopyard.data.partitions.prepare import LocalRows
from hopyard.data.sources.tfrecord import TFRecordFiles
from hopyard.driver.programs.feeds import Feeding
from hopyard.driver.programs.program import Program
from hopyard.driver.runs import api, start
from hopyard.errors import HopyardError
from hopyard.feeds.reader import Feed
from hopyard.search.define import Defined, Suggestions
from hopyard.spark.local import session

Values = tuple[Any, list[Any]]
"""Python's value, and others that mean the same."""
INTEGERS = pd.DataFrame({0: [1.0, 2.0, 3.0, 4.0], 1: [0, 1, 0, 1], 4: [True, False, True, False]})
TABLE = pa.table({"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 2, 3, 4], "c": ["x", "y", "x", "y"], "y": [0, 1, 0, 1]})
FEATURES = {"features": ["a", "b"], "label": "y", "partitions": 1}
ENGINE, DATA = hy.Inline(), hy.Dataset.numpy(np.zeros((8, 2)), np.zeros(8), validation=0.5, partitions=2)


def whole(value: int) -> Values:
    """The integers of these types, and an array of no axis."""
    return value, [np.int64(value), np.uint8(value), np.array(value)]


def real(value: float) -> Values:
    """Of a value that float32 holds."""
    return value, [np.float32(value), np.float64(value), *([np.int64(value)] if value == int(value) else [])]


def flag(value: bool) -> Values:
    return value, [np.bool_(value)]


def text(value: str) -> Values:
    return value, [np.str_(value)]


def column(value: str) -> Values:
    """The name of a column, an integer's."""
    return value, [np.str_(value), int(value), np.int64(value)]


def texts(*values: str) -> Values:
    arrays = [np.array(values), np.array(values, dtype=object), pd.Index(values), pd.Series(values)]
    return list(values), [*arrays, tuple(values), [np.str_(value) for value in values]]


def columns(*values: str) -> Values:
    numbers = [int(value) for value in values]
    return list(values), [*texts(*values)[1], numbers, np.array(numbers), pd.Index(numbers)]


def reals(*values: float) -> Values:
    return list(values), [np.array(values), np.array(values, np.float32), pd.Index(values), tuple(values)]


class Call(NamedTuple):
    """A public function or constructor.

    Attributes:
        build: takes its arguments by keyword; returns what comes of them.
        values: argument → its values.
        others: arguments that take no number, boolean, text or list of these, or whose values are rows.
        of: the function itself, whose arguments these are.
        fixed: what is given beside.
    """

    build: Callable[..., Any]
    values: dict[str, Values]
    others: str = ""
    of: Any = None
    fixed: Mapping[str, Any] = {}


class Seen(Exception):
    """Carries what a function would have started."""


def starting(function: Callable[..., Any], *positional: Any) -> Callable[..., Any]:
    """Return a function that calls one of the functions that start something, and returns what it would start."""

    def call(**named: Any) -> Any:
        try:
            function(*positional, **named)
        except Seen as seen:
            return seen.args
        raise AssertionError("nothing was started")

    return call


def recipe(config: dict[str, Any]) -> Any:
    raise AssertionError("nothing is to be trained here")


def sampler(seed: int) -> Any:
    raise AssertionError("nothing is to be proposed here")


def main(args: Any, ctx: Any) -> None:
    raise AssertionError("nothing is to be started here")


def torch_model(**named: Any) -> Any:
    net = torch.nn.Linear(2, 1)
    made = optimizer_of(net)
    model = hy.torch.Model(net, made, torch.nn.functional.mse_loss, **named)
    names = ("batch_size", "clip_norm", "scheduler_every", "autocast", "metrics")
    return [getattr(model, name) for name in names]


def optimizer_of(net: Any) -> Any:
    made = torch.optim.SGD.__new__(torch.optim.SGD)  # its __init__ imports torch's compiler, for a second
    made.param_groups = [{"params": list(net.parameters())}]
    return made


def suggested(method: str) -> Callable[..., Any]:
    def call(**named: Any) -> Any:
        trial = Suggestions(lambda name, distribution: distribution.at(0.7))
        return getattr(trial, method)(**named), trial._distributions, trial._values

    return call


def dataset(make: Callable[..., Any], *rows: Any) -> Callable[..., Any]:
    def call(**named: Any) -> Any:
        data = make(*rows, **named)
        local = isinstance(data.rows, LocalRows)
        binary = data.rows.source.binary if local and isinstance(data.rows.source, TFRecordFiles) else ()
        return data.rows.options, data.cache_bytes, binary

    return call


def of_context(method: str, rank: int = 0) -> Callable[..., Any]:
    def call(**named: Any) -> Any:
        sent: list[Any] = []
        ctx = object.__new__(ProgramContext)
        ctx.rank, ctx.world_size, ctx.directory, ctx._feeds = rank, 1, Path("/program"), {}
        queue = SimpleNamespace(queue=lambda name: sent.append(name))
        ctx._session = SimpleNamespace(  # type: ignore[assignment]
            slot=0, incarnation=0, pid=os.getpid(), pipe=SimpleNamespace(send=sent.append), feed_server=lambda: queue
        )
        returned = getattr(ctx, method)(**named)
        return sent, None if isinstance(returned, Feed) else returned

    return call


def of_feed(method: str) -> Callable[..., Any]:
    """The generators that give batches begin with what they were told."""

    def call(**named: Any) -> Any:
        asked: list[Any] = []
        feed = object.__new__(Feed)
        feed._batch = lambda *given: asked.extend(given) or []  # type: ignore[method-assign]
        batches = getattr(feed, method)(**named)
        told = dict(inspect.getgeneratorlocals(batches)) if inspect.isgenerator(batches) else {}
        told.pop("self", None)
        for _ in batches:
            pass
        return told, asked

    return call


def of_program(method: str) -> Callable[..., Any]:
    def call(**named: Any) -> Any:
        asked: list[Any] = []

        def wait_for(condition: Any, timeout: Any) -> bool:
            asked.append(timeout)
            return True

        def of_name(method: str, name: Any, uneven: Any) -> Any:
            return SimpleNamespace(
                machine=SimpleNamespace(uneven=uneven),
                feed=lambda source, *given: asked.extend(given),
            )

        feeding = object.__new__(Feeding)
        feeding._session = of_name  # type: ignore[method-assign]
        program = object.__new__(Program)
        status = SimpleNamespace(error=None, status="completed", tasks=(), tensorboard_url="", ended=True)
        program._loop = SimpleNamespace(  # type: ignore[assignment]
            wait_for=wait_for,
            stop=lambda reason, grace: asked.append(grace),
            status=status,
            tensorboard=True,
            spec=SimpleNamespace(wanted={"worker": hy.Role(2)}),
        )
        program._feeding = feeding
        program._printing = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        program._wait_and_print = lambda timeout: wait_for(None, timeout)  # type: ignore[method-assign]
        returned = getattr(program, method)(**named)
        return asked, None if returned is program else returned

    return call


def hosts(*listed: Any, **named: Any) -> Any:
    engine = hy.Hosts(*listed, **named) if listed or "hosts" in named else hy.Hosts(["a"], **named)
    return {name: value for name, value in vars(engine).items() if name != "_standby"}


TRIALS = {"trials": whole(5), "seed": whole(3)}
LEARNED = {**TRIALS, "batch": whole(2)}
NAMES = {"weight": column("4"), "key": columns("0", "1"), "standardize": columns("0")}
OPTIONS = {
    "partitions": whole(2),
    "seed": whole(3),
    "cache_bytes": (1 << 20, [np.int64(1 << 20)]),
    "assign": text("contiguous"),
    "validation": real(0.25),
}
TABLES = {**OPTIONS, "weight": text("b"), "key": texts("a", "b"), "standardize": texts("a", "b"), "label": text("y")}
COMMON = {
    "seed": whole(3),
    "epochs": whole(2),
    "exact": flag(False),
    "wait": flag(False),
    "trust": flag(True),
    "resume": flag(True),
    "encrypt": flag(True),
    "directory": text("run"),
    "store": text("s3://bucket/run"),
}
RUN = {"engine": hy.Local(1), "epochs": 3, "directory": "run"}
SEARCH = {**RUN, "search": hy.Random(4), "metric": "loss", "mode": "min"}
SPACE = hy.Space(lr=hy.uniform(0, 1))

CALLS = {
    "uniform": Call(hy.uniform, {"low": real(0.5), "high": real(2.0), "grid": whole(3)}, fixed={"low": 0, "high": 4}),
    "loguniform": Call(
        hy.loguniform, {"low": real(0.5), "high": real(2.0), "grid": whole(3)}, fixed={"low": 0.25, "high": 4}
    ),
    "quniform": Call(
        hy.quniform,
        {"low": real(0.5), "high": real(2.0), "q": real(0.25), "grid": whole(3)},
        fixed={"low": 0, "high": 4, "q": 0.5},
    ),
    "randint": Call(
        hy.randint,
        {"low": whole(1), "high": whole(9), "grid": whole(3), "step": whole(2), "log": flag(False)},
        fixed={"low": 2, "high": 8},
    ),
    "randint by its logarithm": Call(hy.randint, {"log": flag(True)}, fixed={"low": 2, "high": 8}, of=()),
    "choice": Call(hy.choice, {"values": reals(0.5, 2.0)}),
    "choice of texts": Call(hy.choice, {"values": texts("a", "b")}, of=()),
    "choice of integers": Call(hy.choice, {"values": ([1, 2], [np.array([1, 2]), pd.RangeIndex(1, 3), range(1, 3)])}),
    "choice of booleans": Call(hy.choice, {"values": ([True, False], [np.array([True, False])])}, of=()),
    "Space": Call(
        lambda **values: hy.Space(**values).parameters,
        {"width": whole(3), "rate": real(0.5), "bias": flag(True), "kind": text("adam")},
        of=(),
    ),
    "names of a Space": Call(
        lambda names: hy.Space(**dict.fromkeys(names, 1)).parameters, {"names": texts("a", "b")}, of=()
    ),
    "suggest_float": Call(
        suggested("suggest_float"),
        {"name": text("lr"), "low": real(0.5), "high": real(2.0), "step": real(0.25), "log": flag(False)},
        fixed={"name": "x", "low": 0, "high": 4},
        of=Suggestions.suggest_float,
    ),
    "suggest_float by its logarithm": Call(
        suggested("suggest_float"), {"log": flag(True)}, fixed={"name": "x", "low": 1, "high": 4}, of=()
    ),
    "suggest_int": Call(
        suggested("suggest_int"),
        {"name": text("lr"), "low": whole(1), "high": whole(9), "step": whole(2), "log": flag(False)},
        fixed={"name": "x", "low": 2, "high": 8},
        of=Suggestions.suggest_int,
    ),
    "suggest_int by its logarithm": Call(
        suggested("suggest_int"), {"log": flag(True)}, fixed={"name": "x", "low": 1, "high": 4}, of=()
    ),
    "what the function of a space returns": Call(
        lambda names: Defined(lambda trial: {names[0]: trial.suggest_int(names[1], 1, 4)}).walk(lambda *_: 2),
        {"names": texts("a", "b")},
        of=(),
    ),
    "suggest_categorical": Call(
        suggested("suggest_categorical"),
        {"name": text("lr"), "choices": texts("a", "b")},
        fixed={"name": "x", "choices": ["a"]},
        of=Suggestions.suggest_categorical,
    ),
    "Random": Call(hy.Random, TRIALS, fixed={"trials": 2}),
    "TPE": Call(hy.TPE, LEARNED, fixed={"trials": 2}),
    "GP": Call(hy.GP, LEARNED, fixed={"trials": 2}),
    "CMA": Call(hy.CMA, LEARNED, fixed={"trials": 2}),
    "Optuna": Call(hy.Optuna, LEARNED, "sampler study", fixed={"trials": 2, "sampler": sampler}),
    "Grid": Call(hy.Grid, {}),
    "Configs": Call(
        lambda value: hy.Configs([{"x": value}]).open(None, 0).configs, {"value": real(0.5)}, "configs", of=hy.Configs
    ),
    "names of Configs": Call(
        lambda names: hy.Configs([dict.fromkeys(names, 1)]).open(None, 0).configs, {"names": texts("a", "b")}, of=()
    ),
    "ASHA": Call(
        hy.ASHA,
        {
            "reduction_factor": whole(4),
            "min_epochs": whole(2),
            "min_partitions": whole(3),
            "sync": flag(True),
            "promote": flag(False),
        },
    ),
    "Hyperband": Call(hy.Hyperband, {"reduction_factor": whole(4), "min_epochs": whole(2), "sync": flag(True)}),
    "Median": Call(hy.Median, {"min_epochs": whole(2), "min_trials": whole(4), "sync": flag(True)}),
    "Patience": Call(
        hy.Patience, {"epochs": whole(2), "min_delta": real(0.5), "min_epochs": whole(3)}, fixed={"epochs": 4}
    ),
    "Hopper": Call(hy.Hopper, {"group": whole(2), "gang": whole(2), "copies": whole(2)}),
    "Hopper by text": Call(hy.Hopper, {"group": text("off")}, of=()),
    "TaskParallel": Call(hy.TaskParallel, {}),
    "AllReduce": Call(
        hy.AllReduce,
        {"workers": whole(3), "accumulate": whole(2), "compress": text("fp16"), "min_workers": whole(2)},
    ),
    "Nesterov": Call(hy.Nesterov, {"lr": real(0.5), "momentum": real(0.25)}, fixed={"lr": 1.0, "momentum": 0.0}),
    "LocalSGD": Call(
        hy.LocalSGD,
        {
            "workers": whole(3),
            "every": whole(2),
            "inner": text("average"),
            "compress": text("bf16"),
            "warmup": whole(2),
            "min_workers": whole(2),
        },
        "outer",
    ),
    "Local": Call(
        hy.Local,
        {
            "workers": whole(2),
            "threads": whole(2),
            "devices": ([0, 1], [np.array([0, 1]), pd.Index([0, 1]), (0, 1)]),
            "env": ({"A": "b"}, [{np.str_("A"): np.str_("b")}]),
        },
        fixed={"workers": 2, "devices": None},
    ),
    "Inline": Call(hy.Inline, {"threads": whole(2)}),
    "Spark": Call(
        hy.Spark,
        {
            "workers": whole(3),
            "host": text("driver"),
            "port": whole(77),
            "threads": whole(2),
            "env": ({"A": "b"}, [{np.str_("A"): np.str_("b")}]),
            "start_timeout": real(2.5),
            "driver_workers": whole(1),
            "release_cores": flag(True),
        },
        "session",
        fixed={"session": None, "workers": 2},
    ),
    "Hosts": Call(
        hosts,
        {
            "hosts": texts("a", "b:4"),
            "python": text("python3"),
            "ssh": texts("ssh", "-v"),
            "threads": whole(2),
            "env": ({"A": "b"}, [{np.str_("A"): np.str_("b")}]),
            "devices": text("auto"),
            "address": text("driver"),
            "port": whole(77),
            "start_timeout": real(2.5),
        },
        "join workers",
        of=hy.Hosts,
    ),
    "Timeouts": Call(
        hy.Timeouts,
        {
            "heartbeat_timeout": real(2.5),
            "stall_timeout": real(3.0),
            "unit_timeout": real(4.0),
            "durable_timeout": real(5.0),
        },
    ),
    "Role": Call(hy.Role, {"count": whole(3), "min": whole(2), "gpus": whole(1)}, fixed={"count": 4}),
    "Categories": Call(
        hy.Categories,
        {"kind": text("index"), "values": texts("a", "b"), "handle_unknown": text("other"), "min_frequency": whole(2)},
    ),
    "Dataset.arrow": Call(
        dataset(hy.Dataset.arrow, TABLE),
        {**TABLES, "features": texts("a", "b")},
        "source transform encode impute",
        of=hy.Dataset.arrow,
        fixed=FEATURES,
    ),
    "Dataset.arrow, standardize and encode": Call(
        dataset(hy.Dataset.arrow, TABLE),
        {
            "standardize": flag(True),
            "encode": ({"c": ["x", "y"]}, [{np.str_("c"): np.array(["x", "y"])}]),
            "impute": ({"a": 0.5}, [{np.str_("a"): np.float32(0.5)}]),
        },
        of=(),
        fixed={**FEATURES, "features": ["a", "c"], "encode": {"c": "one-hot"}},
    ),
    "Dataset.pandas": Call(
        dataset(hy.Dataset.pandas, INTEGERS),
        {**OPTIONS, **NAMES, "features": columns("0", "1"), "label": column("1"), "validation": column("4")},
        "frame transform encode impute",
        of=hy.Dataset.pandas,
        fixed={"features": ["0"]},
    ),
    "Dataset.pandas, validation by a share": Call(
        dataset(hy.Dataset.pandas, INTEGERS), {"validation": (0.0, [0, np.int64(0)])}, of=(), fixed={"features": [0]}
    ),
    "Dataset.pandas, encode and impute": Call(
        dataset(hy.Dataset.pandas, INTEGERS),
        {
            "encode": ({"1": [0, 1]}, [{1: np.array([0, 1])}, {np.int64(1): pd.Index([0, 1])}]),
            "impute": ({"0": 0.5}, [{0: np.float32(0.5)}, {np.int64(0): 0.5}]),
            "label": ({"late": "4"}, [{np.str_("late"): 4}]),
        },
        of=(),
        fixed={"features": ["0", "1"]},
    ),
    "Dataset.numpy": Call(
        dataset(hy.Dataset.numpy, np.zeros((8, 2))),
        {**OPTIONS, "standardize": flag(True)},
        "x y weight key transform",
        of=hy.Dataset.numpy,
    ),
    "names of Dataset.numpy": Call(
        lambda names: dataset(hy.Dataset.numpy)(x={name: np.zeros((4, 2)) for name in names}),
        {"names": columns("0", "1")},
        of=(),
    ),
    "Dataset.torch": Call(
        dataset(hy.Dataset.torch, [{"a": 1.0, "b": 2.0, "y": 1}] * 4),
        {**TABLES, "features": texts("a", "b")},
        "items transform encode impute",
        of=hy.Dataset.torch,
        fixed=FEATURES,
    ),
    "Dataset.tfrecord": Call(
        dataset(hy.Dataset.tfrecord),
        {**TABLES, "features": texts("a", "b"), "source": text("a.tfrecord"), "binary_features": texts("a", "c")},
        "transform encode impute",
        of=hy.Dataset.tfrecord,
        fixed={**FEATURES, "source": "a.tfrecord"},
    ),
    "Dataset.parquet": Call(
        dataset(hy.Dataset.parquet),
        {**TABLES, "features": texts("a", "b"), "source": texts("a.parquet", "b.parquet")},
        "transform encode impute",
        of=hy.Dataset.parquet,
        fixed={**FEATURES, "source": "a.parquet"},
    ),
    "launch": Call(
        starting(hy.launch, main),
        {
            "until": text("worker:1"),
            "max_restarts": whole(2),
            "restart_scope": text("task"),
            "max_time": real(2.5),
            "tensorboard": flag(False),
            "directory": text("run"),
            "resume": flag(True),
            "env": ({"A": "b"}, [{np.str_("A"): np.str_("b")}]),
            "tensorflow1": flag(True),
            "transport": text("auto"),
            "grace": real(2.5),
            "start_timeout": real(2.5),
            "heartbeat_timeout": real(2.5),
            "roles": (
                {"worker": 2, "ps": [1, 2]},
                [
                    {np.str_("worker"): np.int64(2), "ps": np.array([1, 2])},
                    {"worker": np.array(2), "ps": (1, np.int8(2))},
                ],
            ),
        },
        "main args engine",
        of=hy.launch,
        fixed={"roles": {"worker": 2}, "directory": "run"},
    ),
    "launch of a script": Call(
        starting(hy.launch),
        {"main": text(__file__), "args": texts("--steps", "100"), "tensorboard": text("/logs")},
        of=(),
        fixed={"main": __file__, "roles": {"worker": 2}, "directory": "run"},
    ),
    "select": Call(
        starting(hy.select, recipe, SPACE, DATA),
        {
            **COMMON,
            "metric": text("loss"),
            "mode": text("max"),
            "max_trials": whole(2),
            "max_time": real(2.5),
            "goal": real(0.5),
            "enqueue": ([{"lr": 0.5}], [[{np.str_("lr"): np.float32(0.5)}], np.array([{"lr": 0.5}])]),
        },
        "recipe space data search stop engine parallel timeouts",
        of=hy.select,
        fixed=SEARCH,
    ),
    "select by several metrics": Call(
        starting(hy.select, recipe, SPACE, DATA),
        {"metric": texts("loss", "seconds")},
        of=(),
        fixed={**SEARCH, "mode": np.array(["min", "min"])},
    ),
    "fit": Call(
        starting(hy.fit, recipe, {"lr": np.float32(0.5)}, DATA),
        {**COMMON, "metric": text("loss"), "mode": text("max")},
        "recipe config data stop engine parallel timeouts",
        of=hy.fit,
        fixed={**RUN, "metric": "loss", "mode": "min"},
    ),
    "resume": Call(
        starting(hy.resume),
        {
            **{name: COMMON[name] for name in ("wait", "trust")},
            "failed": flag(True),
            "directory": text("run"),
        },
        "engine recipe epochs search workers timeouts",
        of=hy.resume,
        fixed={"directory": "run"},
    ),
    "torch.Model": Call(
        torch_model,
        {
            "batch_size": whole(8),
            "clip_norm": real(1.0),
            "scheduler_every": text("batch"),
            "autocast": text("bfloat16"),
            "metrics": ({"m": recipe}, [{np.str_("m"): recipe}]),
        },
        "module optimizer loss scheduler augment",
        of=hy.torch.Model,
    ),
    "torch.AUC": Call(
        hy.torch.AUC, {"bins": whole(9), "from_logits": flag(False), "output": whole(1), "label": text("y")}
    ),
    "torch.F1": Call(hy.torch.F1, {"classes": whole(9), "output": text("z"), "label": text("y")}, fixed={"classes": 2}),
    "torch.TopK": Call(hy.torch.TopK, {"k": whole(2), "output": whole(1), "label": text("y")}, fixed={"k": 1}),
    "spark.session": Call(
        lambda cores=None, executors=None, memory="1g", config=None: (
            session._master(cores, executors, 1024),
            session._megabytes(memory),
            session._check_config(config or {}),
        ),
        {
            "cores": whole(2),
            "executors": whole(3),
            "memory": text("2g"),
            "config": (
                {"spark.a": 1, "spark.b": True, "spark.c": 0.5},
                [{np.str_("spark.a"): np.int64(1), "spark.b": np.True_, "spark.c": np.float32(0.5)}],
            ),
        },
        "name",
        of=hy.spark.session,
    ),
    "ctx.shard": Call(
        of_context("shard"),
        {"data": (["a", "b"], [np.array(["a", "b"]), pd.Index(["a", "b"])])},
        "size",
        of=ProgramContext.shard,
    ),
    "ctx.shard of integers": Call(of_context("shard"), {"data": ([1, 2], [np.array([1, 2]), pd.Index([1, 2])])}, of=()),
    "ctx.report": Call(
        of_context("report"),
        {"values": ({"a": 0.5}, [{np.str_("a"): np.float32(0.5)}]), "step": whole(3)},
        of=ProgramContext.report,
        fixed={"values": {"a": 1}},
    ),
    "ctx.path": Call(of_context("path"), {"uri": text("logs")}, of=ProgramContext.path),
    "ctx.feed": Call(of_context("feed"), {"name": text("valid")}, of=ProgramContext.feed),
    "feed.batches": Call(
        of_feed("batches"),
        {"size": whole(4), "timeout": real(2.5), "columns": columns("0", "1")},
        of=Feed.batches,
        fixed={"size": 2},
    ),
    "feed.rows": Call(of_feed("rows"), {"size": whole(4), "timeout": real(2.5)}, of=Feed.rows, fixed={"size": 2}),
    "program.wait": Call(of_program("wait"), {"timeout": real(2.5), "stream": flag(True)}, of=Program.wait),
    "program.stop": Call(of_program("stop"), {"grace": real(2.5)}, of=Program.stop),
    "program.logs": Call(
        of_program("logs"), {"role": text("worker"), "index": whole(1)}, of=Program.logs, fixed={"role": "worker"}
    ),
    "program.tensorboard_url": Call(of_program("tensorboard_url"), {"timeout": real(2.5)}, of=Program.tensorboard_url),
    "program.feed": Call(
        of_program("feed"),
        {"epochs": whole(2), "uneven": text("min"), "end": flag(False), "timeout": real(2.5), "stream": flag(True)},
        "data name",
        of=Program.feed,
        fixed={"data": [1, 2]},
    ),
}
UNCHECKED = {
    "Dataset", "Batch", "Program", "ProgramContext", "RecipeContext", "Run", "SavedModel", "Trainable", "Trial",
    "__version__", "context", "load", "load_model",
}  # fmt: skip
"""Public names that users do not call with such values, or with a path and a flag alone."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that the table names."""
    folder = tmp_path_factory.mktemp("files")
    for name in "ab":
        pq.write_table(TABLE, folder / f"{name}.parquet")
    (folder / "a.tfrecord").touch()
    return folder


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    """What would start something raises `Seen` with what it was given."""
    resumed: list[Any] = []

    def begin(request: Any, layout: Any, lock: Any, *flags: Any) -> None:
        inputs = request.inputs
        opened = inputs.search.open(inputs.space, request.spec.seed)
        configs = [opened.ask(trial) for trial in range(opened.total)]
        raise Seen(request.spec, request.store, request.encrypt, str(request.directory), configs, resumed[-1], flags)

    def loop(layout: Any, lock: Any, machine: Any, engine: Any, setup: Any, about: Any) -> None:
        raise Seen(machine.spec, setup)

    def go_on(layout: Any, lock: Any, engine: Any, wait: Any, changes: Any, trust: Any) -> None:
        raise Seen(layout, wait, changes, trust)

    monkeypatch.chdir(files)
    monkeypatch.setattr("hopyard.driver.programs.api.ProgramLoop", loop)
    monkeypatch.setattr("hopyard.driver.programs.api.secrets.token_hex", lambda size: "")
    monkeypatch.setattr(start, "_pickled", lambda inputs: b"")
    monkeypatch.setattr(start, "claimed", lambda directory: contextlib.nullcontext((None, None)))
    monkeypatch.setattr(start, "_holds_a_run", lambda layout, lock, resume: resumed.append(resume) or True)
    monkeypatch.setattr(start, "_resume", begin)
    monkeypatch.setattr(api, "go_on", go_on)
    monkeypatch.setattr(api, "find", lambda directory: SimpleNamespace(root=str(directory), lock=None))
    monkeypatch.setattr(api, "room", contextlib.nullcontext)
    monkeypatch.setattr(api, "Lock", lambda path: None)
    monkeypatch.setattr(api, "freed_on_error", contextlib.nullcontext)


def plain(value: Any, place: str = "") -> Any:
    """Return a value as dicts, lists and Python's scalars; AssertionError where a scalar is another library's."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in fields}
    if isinstance(value, SimpleNamespace):
        return plain(vars(value), place)
    if isinstance(value, Mapping):
        return {plain(key, f"{place}, a key"): plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{at}]") for at, item in enumerate(value)]
    assert not isinstance(value, (np.generic, np.ndarray, pd.Index, pd.Series)), f"{place} = {value!r}"
    assert not isinstance(value, str) or type(value) is str, f"{place} = {value!r}"
    return type(value).__name__, value


def cases() -> Iterator[Any]:
    for name, call in CALLS.items():
        for argument, (value, others) in call.values.items():
            yield pytest.param(call, argument, value, others, id=f"{name}-{argument}")


@pytest.mark.parametrize(("call", "argument", "value", "others"), [*cases()])
def test_values_of_other_libraries_are_python_s(call: Call, argument: str, value: Any, others: Sequence[Any]) -> None:
    expected = plain(call.build(**{**call.fixed, argument: value}))
    for other in others:
        try:
            built = call.build(**{**call.fixed, argument: other})
        except HopyardError as error:
            raise AssertionError(f"{argument} = {other!r}, a {type(other).__name__}: {error}") from error
        assert plain(built) == expected, f"{argument} = {other!r}, a {type(other).__name__}"


@pytest.mark.parametrize("name", CALLS)
def test_each_argument_is_in_the_table(name: str) -> None:
    """A new argument is given NumPy's values too."""
    call = CALLS[name]
    if call.of == ():
        return
    known = {*call.values, *call.others.split(), "self", "cls"}
    names = [
        each.name
        for each in inspect.signature(call.of or call.build).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    assert set(names) <= known, "is it a number, a boolean, a text or a list?"


def test_each_public_name_is_in_the_table() -> None:
    errors = {
        name for name in hy.__all__ if isinstance(getattr(hy, name), type) and issubclass(getattr(hy, name), Exception)
    }
    assert set(hy.__all__) - errors - UNCHECKED <= CALLS.keys()


@pytest.mark.parametrize(("call", "argument", "value", "others"), [*cases()])
def test_a_boolean_is_no_number(call: Call, argument: str, value: Any, others: Sequence[Any]) -> None:
    """Neither Python's nor NumPy's."""
    if type(value) not in (int, float) or argument in ("output", "width", "rate", "value", "step"):
        return
    for wrong in (True, np.True_):
        with pytest.raises(HopyardError):
            call.build(**{**call.fixed, argument: wrong})

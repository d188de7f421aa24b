"""Numbers, booleans and texts of NumPy, arrays and indexes, and integer names of columns pass wherever Python's do.

`CALLS` has the public constructors with Python's values for their arguments; each value is also given as other
libraries have it. What comes of them must be equal, and of Python's own types: msgspec, which encodes what is sent and
journaled, refuses NumPy's. A run and a program are given NumPy's values alone, and their journals have Python's.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hopyard as hy
from hopyard.errors import HopyardError
from hopyard.search.define import Defined, Suggestions
from jobs import dataset, linear

INTEGERS = pd.DataFrame({0: [1.0, 2.0, 3.0, 4.0], 1: [0, 1, 0, 1], 4: [True, False, True, False]})
TABLE = pa.table({"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 2, 3, 4], "c": ["x", "y", "x", "y"], "y": [0, 1, 0, 1]})


def others(value: Any) -> list[Any]:
    """The value as other libraries have it. Floats are ones that float32 holds."""
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [np.int64(value), np.array(value), *([np.uint8(value)] if value < 256 else [])]
    if isinstance(value, float):
        return [np.float32(value), np.float64(value), *([np.int64(value)] if value == int(value) else [])]
    if isinstance(value, str):
        return [np.str_(value)]
    if isinstance(value, list):
        arrays = [np.array(value), pd.Index(value), pd.Series(value), tuple(value)]
        return [*arrays, np.array(value, dtype=object), [others(item)[0] for item in value]]
    assert isinstance(value, dict)
    return [{np.str_(key): others(item)[0] for key, item in value.items()}]


def numpys(value: Any) -> Any:
    """The value as NumPy has it."""
    return others(value)[0]


class Call(NamedTuple):
    """A public function or constructor.

    Attributes:
        build: takes its arguments by keyword; returns what comes of them.
        values: Python's values for its arguments.
        fixed: what is given beside, where a value is not tried.
        rest: arguments that take no number, boolean, text or list of these, or whose values are rows.
        of: the function itself, whose arguments these are; None: `build`; False: not all of its arguments are here.
    """

    build: Callable[..., Any]
    values: dict[str, Any]
    fixed: Mapping[str, Any] = {}
    rest: str = ""
    of: Any = None


def suggested(method: str, **named: Any) -> Any:
    space = Defined(lambda trial: {"x": getattr(trial, method)(**named)})
    return space.walk(lambda name, distribution: [name, distribution, distribution.at(0.7)][2])


def suggest(method: str, **values: Any) -> Call:
    return Call(lambda **named: suggested(method, **named), values, of=getattr(Suggestions, method))


def rows(make: Callable[..., Any], *source: Any) -> Callable[..., Any]:
    def call(**named: Any) -> Any:
        data = make(*source, **named)
        return data.rows.options, data.cache_bytes, getattr(data.rows.source, "binary", ())

    return call


def torch_model(**named: Any) -> Any:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD.__new__(torch.optim.SGD)  # its __init__ imports torch's compiler, for a second
    optimizer.param_groups = [{"params": list(net.parameters())}]
    model = hy.torch.Model(net, optimizer, torch.nn.functional.mse_loss, **named)
    return [
        getattr(model, name)
        for name in ("batch_size", "accumulate", "clip_norm", "scheduler_every", "autocast", "metrics", "_patterns")
    ]


def hosts(hosts: Any = ("a",), **named: Any) -> Any:
    return {name: value for name, value in vars(hy.Hosts(hosts, **named)).items() if name != "_standby"}


def pods(**named: Any) -> Any:
    return {name: value for name, value in vars(hy.Kubernetes(**named)).items() if name != "_standby"}


OPTIONS = {"partitions": 2, "seed": 3, "cache_bytes": 1 << 20, "assign": "contiguous", "validation": 0.25}
TABLES = {**OPTIONS, "weight": "b", "standardize": ["a", "b"], "label": "y", "features": ["a", "b"]}
KEYED = {"key": ["a", "b"]}
FEATURES = {"features": ["a", "b"], "label": "y", "partitions": 1}
TRIALS = {"trials": 5, "seed": 3}
BOUNDS = {"low": 0.5, "high": 2.0, "grid": 3}
PLACES = "transform encode impute key ragged max_length"
CALLS = {
    "uniform": Call(hy.uniform, BOUNDS),
    "loguniform": Call(hy.loguniform, BOUNDS),
    "quniform": Call(hy.quniform, {**BOUNDS, "q": 0.25}),
    "randint": Call(hy.randint, {"low": 2, "high": 8, "grid": 3, "step": 2, "log": False}),
    "randint by its logarithm": Call(hy.randint, {"log": True}, {"low": 2, "high": 8}, of=False),
    "choice": Call(hy.choice, {"values": [0.5, 2.0]}),
    "choice of texts": Call(hy.choice, {"values": ["a", "b"]}),
    "choice of booleans": Call(hy.choice, {"values": [True, False]}),
    "Space": Call(
        lambda **values: hy.Space(**values).parameters,
        {"width": 3, "rate": 0.5, "bias": True, "kind": "adam"},
        of=False,
    ),
    "suggest_float": suggest("suggest_float", name="x", low=0.5, high=2.0, step=0.25, log=False),
    "suggest_int": suggest("suggest_int", name="x", low=1, high=9, step=2, log=False),
    "suggest_categorical": suggest("suggest_categorical", name="x", choices=["a", "b"]),
    "Random": Call(hy.Random, TRIALS),
    "TPE": Call(hy.TPE, {**TRIALS, "batch": 2}),
    "GP": Call(hy.GP, {**TRIALS, "batch": 2}),
    "CMA": Call(hy.CMA, {**TRIALS, "batch": 2}),
    "Optuna": Call(hy.Optuna, {**TRIALS, "batch": 2}, {"trials": 2, "sampler": lambda seed: None}, "sampler study"),
    "Grid": Call(hy.Grid, {}),
    "Configs": Call(
        lambda config: hy.Configs([config]).open(None, 0).configs, {"config": {"x": 0.5}}, rest="configs", of=hy.Configs
    ),
    "ASHA": Call(
        hy.ASHA,
        {"reduction_factor": 4, "min_epochs": 2, "min_partitions": 3, "sync": True, "promote": False},
        {"min_epochs": 1},
    ),
    "Hyperband": Call(hy.Hyperband, {"reduction_factor": 4, "min_epochs": 2, "sync": True}),
    "Median": Call(hy.Median, {"min_epochs": 2, "min_trials": 4, "sync": True}),
    "Patience": Call(hy.Patience, {"epochs": 2, "min_delta": 0.5, "min_epochs": 3}),
    "Hopper": Call(hy.Hopper, {"group": 2, "gang": 2, "copies": 2}),
    "Hopper by text": Call(hy.Hopper, {"group": "off"}, of=False),
    "TaskParallel": Call(hy.TaskParallel, {}),
    "AllReduce": Call(hy.AllReduce, {"workers": 3, "accumulate": 2, "compress": "fp16", "min_workers": 2}),
    "Nesterov": Call(hy.Nesterov, {"lr": 0.5, "momentum": 0.25}),
    "LocalSGD": Call(
        hy.LocalSGD,
        {"workers": 3, "every": 2, "inner": "average", "compress": "bf16", "warmup": 2, "min_workers": 2},
        rest="outer",
    ),
    "Local": Call(hy.Local, {"workers": 2, "threads": 2, "env": {"A": "b"}, "devices": [0, 1]}),
    "Inline": Call(hy.Inline, {"threads": 2}),
    "Spark": Call(
        hy.Spark,
        {
            "workers": 3,
            "address": "driver",
            "port": 77,
            "threads": 2,
            "env": {"A": "b"},
            "start_timeout": 2.5,
            "driver_workers": 1,
            "release_cores": True,
        },
        {"session": None, "workers": 2},
        "session",
    ),
    "Hosts": Call(
        hosts,
        {
            "hosts": ["a", "b:4"],
            "python": "python3",
            "ssh": ["ssh", "-v"],
            "threads": 2,
            "env": {"A": "b"},
            "devices": "auto",
            "address": "driver",
            "port": 77,
            "start_timeout": 2.5,
        },
        rest="join workers",
        of=hy.Hosts,
    ),
    "Kubernetes": Call(
        pods,
        {
            "workers": 4,
            "image": "train:1",
            "workers_per_pod": 2,
            "namespace": "ml",
            "context": "lab",
            "address": "driver",
            "port": 77,
            "cpu": 2.5,
            "memory": "8Gi",
            "gpus": 2,
            "shm": "2Gi",
            "threads": 2,
            "env": {"A": "b"},
            "devices": "auto",
            "queue": "research",
            "start_timeout": 2.5,
        },
        {"workers": 4, "image": "train:1"},
        "pod",
        hy.Kubernetes,
    ),
    "Timeouts": Call(
        hy.Timeouts,
        {"heartbeat_timeout": 2.5, "stall_timeout": 3.0, "unit_timeout": 4.0, "durable_timeout": 5.0},
    ),
    "Role": Call(hy.Role, {"count": 3, "min": 2, "gpus": 1}),
    "Categories": Call(hy.Categories, {"kind": "index", "min_frequency": 2, "handle_unknown": "other"}, rest="values"),
    "Categories, values": Call(hy.Categories, {"values": ["a", "b"]}, of=False),
    "Dataset.arrow": Call(rows(hy.Dataset.arrow, TABLE), TABLES, FEATURES, f"source {PLACES}", hy.Dataset.arrow),
    "Dataset.arrow, key": Call(rows(hy.Dataset.arrow, TABLE), KEYED, FEATURES, of=False),
    "Dataset.arrow, encode and impute": Call(
        rows(hy.Dataset.arrow, TABLE),
        {"standardize": True, "encode": {"c": ["x", "y"]}, "impute": {"a": 0.5}},
        {**FEATURES, "features": ["a", "c"], "encode": {"c": "one-hot"}},
        of=False,
    ),
    "Dataset.arrow, ragged": Call(
        rows(hy.Dataset.arrow, pa.table({"ids": [[1], [2, 3]] * 2, "y": [0, 1, 0, 1]})),
        {"ragged": ["ids"], "max_length": 2},
        {"features": "ids", "label": "y", "partitions": 1, "ragged": ["ids"]},
        of=False,
    ),
    "Dataset.pandas": Call(
        rows(hy.Dataset.pandas, TABLE.to_pandas()), TABLES, FEATURES, f"frame {PLACES}", hy.Dataset.pandas
    ),
    "Dataset.numpy": Call(
        rows(hy.Dataset.numpy, np.zeros((8, 2))),
        {**OPTIONS, "standardize": True},
        rest="x y weight key transform",
        of=hy.Dataset.numpy,
    ),
    "Dataset.torch": Call(
        rows(hy.Dataset.torch, [{"a": 1.0, "b": 2.0, "y": 1}] * 4),
        TABLES,
        FEATURES,
        f"items {PLACES}",
        hy.Dataset.torch,
    ),
    "Dataset.tfrecord": Call(
        rows(hy.Dataset.tfrecord),
        {**TABLES, "source": "a.tfrecord", "binary_features": ["a", "c"]},
        {**FEATURES, "source": "a.tfrecord"},
        PLACES,
        hy.Dataset.tfrecord,
    ),
    "Dataset.parquet": Call(
        rows(hy.Dataset.parquet),
        {**TABLES, "source": ["a.parquet", "b.parquet"]},
        {**FEATURES, "source": "a.parquet"},
        PLACES,
        hy.Dataset.parquet,
    ),
    "torch.Model": Call(
        torch_model,
        {
            **{"batch_size": 8, "accumulate": 2, "clip_norm": 1.0, "scheduler_every": "batch"},
            **{"autocast": "bfloat16", "base": ["*.scale"], "state": ["teacher.*"]},
        },
        rest="module optimizer loss scheduler augment metrics",
        of=hy.torch.Model,
    ),
    "torch.AUC": Call(hy.torch.AUC, {"bins": 9, "from_logits": False, "output": 1, "label": "y"}),
    "torch.F1": Call(hy.torch.F1, {"classes": 9, "output": "z", "label": "y"}),
    "torch.TopK": Call(hy.torch.TopK, {"k": 2, "output": 1, "label": "y"}),
}
ELSEWHERE = {
    "Batch", "Dataset", "Program", "ProgramContext", "RecipeContext", "Run", "SavedModel", "Trainable", "Trial",
    "__version__", "context", "fit", "launch", "load", "load_model", "resume", "select", "spark", "torch", "keras",
}  # fmt: skip
"""Public names that users do not call with such values, with a path and a flag alone, or in their own tests."""


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The current folder has the files that the table names."""
    folder = tmp_path_factory.mktemp("files")
    for name in "ab":
        pq.write_table(TABLE, folder / f"{name}.parquet")
    (folder / "a.tfrecord").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def plain(value: Any, place: str = "") -> Any:
    """Return a value as dicts, lists and Python's scalars; AssertionError where a scalar is another library's."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in fields}
    if isinstance(value, Mapping):
        return {plain(key, f"{place}, a key"): plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{at}]") for at, item in enumerate(value)]
    assert not isinstance(value, (np.generic, np.ndarray, pd.Index, pd.Series)), f"{place} = {value!r}"
    assert not isinstance(value, str) or type(value) is str, f"{place} = {value!r}"
    return type(value).__name__, value


CASES = [
    pytest.param(call, name, value, id=f"{key}-{name}")
    for key, call in CALLS.items()
    for name, value in call.values.items()
]


@pytest.mark.parametrize(("call", "name", "value"), CASES)
def test_values_of_other_libraries_are_python_s(call: Call, name: str, value: Any) -> None:
    fixed = {**call.values, **call.fixed} if not call.fixed else dict(call.fixed)
    expected = plain(call.build(**{**fixed, name: value}))
    for other in others(value):
        built = call.build(**{**fixed, name: other})
        assert plain(built) == expected, f"{name} = {other!r}, a {type(other).__name__}"
    if type(value) in (int, float) and name not in ("output", "width", "rate"):
        for wrong in (True, np.True_):  # a boolean is no number
            with pytest.raises(HopyardError):
                call.build(**{**fixed, name: wrong})


@pytest.mark.parametrize("call", [call for call in CALLS.values() if call.of is not False])
def test_each_argument_is_in_the_table(call: Call) -> None:
    """A new argument is given NumPy's values too."""
    parameters = inspect.signature(call.of or call.build).parameters.values()
    names = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    assert names <= {*call.values, *call.rest.split(), "self", "cls"}, "is it a number, a boolean, a text or a list?"


def test_each_public_name_is_in_the_table() -> None:
    values = {name: getattr(hy, name) for name in hy.__all__}
    errors = {name for name, value in values.items() if isinstance(value, type) and issubclass(value, Exception)}
    assert values.keys() - errors - ELSEWHERE <= CALLS.keys()


@pytest.mark.parametrize("kind", [int, np.int64, np.str_])
def test_integers_name_columns(kind: Callable[[int], Any]) -> None:
    def options(zero: Any, one: Any, four: Any, frame: pd.DataFrame) -> Any:
        named: dict[str, Any] = {"features": [zero, one], "label": {"late": four}, "key": [one], "standardize": [zero]}
        named |= {"weight": four, "encode": {one: "index"}, "impute": {zero: 0.5}, "validation": four}
        return plain(hy.Dataset.pandas(frame, **named).rows.options)  # type: ignore[union-attr]

    assert options(kind(0), kind(1), kind(4), INTEGERS) == options("0", "1", "4", INTEGERS)


def test_a_run_of_numpy_s_values(tmp_path: Path) -> None:
    values = {
        "epochs": 2,
        "seed": 3,
        "max_time": 200.0,
        "goal": 0.0,
        "exact": False,
        "metric": "val_loss",
        "mode": "min",
    }
    more = {"max_trials": 2, "wait": True, "trust": False, "resume": False, "encrypt": False}
    places = {"directory": str(tmp_path / "run"), "store": str(tmp_path / "states")}
    named = {name: numpys(value) for name, value in {**values, **more, **places}.items()}
    space, first = hy.Space(lr=hy.uniform(0.01, 0.1)), numpys({"lr": 0.5})
    run = hy.select(linear, space, dataset(2), search=hy.Random(2), enqueue=[first], engine=hy.Inline(), **named)
    spec = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[0])["spec"]
    assert {name: spec[name] for name in values} == values
    assert plain(run.trials[0].config) == plain({"lr": 0.5}) and len(run.trials) == 2
    flags = {"wait": True, "failed": False, "trust": False}
    again = hy.resume(named["directory"], engine=hy.Inline(), **{name: numpys(each) for name, each in flags.items()})
    assert again.best.config == run.best.config
    named = {name: numpys(value) for name, value in {"epochs": 1, "seed": 3, "metric": "loss", "mode": "max"}.items()}
    one = hy.fit(linear, first, dataset(2), engine=hy.Inline(), directory=tmp_path / "one", **named)
    assert plain(one.best.config) == plain({"lr": 0.5})


def takes_numpy(args: Any, ctx: Any) -> None:
    feed, more = ctx.feed(np.str_("valid")), ctx.feed(np.str_("more"))
    batches = feed.batches(np.int64(2), timeout=np.float32(60), columns=np.array(["a"]))
    taken = [batch["a"].tolist() for batch in batches]
    items = list(more.rows(np.int64(1), timeout=np.float32(60)))
    ctx.report({np.str_("rows"): np.int64(len(items))}, step=np.int64(3))
    kind = type(ctx.path(np.str_("there"))).__name__
    print(kind, ctx.shard(np.array([1, 2])), ctx.shard(pd.Index(["a"])), taken, items)


def test_a_program_of_numpy_s_values(tmp_path: Path) -> None:
    values = {"until": "all", "max_restarts": 2, "restart_scope": "task", "max_time": 200.0, "grace": 2.5}
    more = {"tensorboard": False, "tensorflow1": False, "resume": True, "transport": "auto", "env": {"A": "b"}}
    more |= {"start_timeout": 60.0, "heartbeat_timeout": 15.0, "directory": str(tmp_path / "program")}
    named = {name: numpys(value) for name, value in {**values, **more, "roles": {"worker": [1, 1]}}.items()}
    program = hy.launch(takes_numpy, **named)
    how = {"epochs": 2, "end": True, "timeout": 60.0, "stream": False, "uneven": "min"}
    named = {name: numpys(value) for name, value in how.items()}
    program.feed({"a": np.arange(2), "b": np.arange(2)}, name=numpys("valid"), **named)
    program.feed([1], name=numpys("more"), **named)
    program.wait(timeout=numpys(60.0), stream=numpys(True))
    spec = json.loads((tmp_path / "program" / "program.jsonl").read_text().splitlines()[0])["spec"]
    assert {name: spec[name] for name in values} == values and spec["roles"] == {"worker": [1, 1, 0]}
    assert "str [1, 2] ['a'] [[0, 1], [0, 1]] [[1], [1]]" in program.logs(numpys("worker"), numpys(0))
    program.stop(grace=numpys(2.5))


def test_a_spark_session_of_numpy_s_values() -> None:
    """What is wrong is checked last, before a Spark is started."""
    values = {"cores": 2, "memory": "2g", "config": {"spark.a": 0.5, "spark.b": True}}
    with pytest.raises(HopyardError, match="executors must be"):
        hy.spark.session(executors=numpys(0), **{name: numpys(value) for name, value in values.items()})

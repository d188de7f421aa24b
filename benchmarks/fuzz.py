"""Wrong values for the public face: each call succeeds or raises a HopyardError that helps, and one that fails leaves
every directory as it was.

    python benchmarks/fuzz.py [--calls 10000] [--seed 0] [--only select launch …] [--show 3]

A call has valid arguments, of which one to three are replaced by what Hypothesis generates: wrong types, numbers out of
range, text that no terminal or file name takes, arrays, objects whose `__repr__` or `__eq__` raises, containers that
hold themselves. All arguments of all functions take part, found by their signatures. A fault is another exception than
HopyardError, a change in the working directory (runs, saved models, data are in it) by a call that failed, an error
that does not name an argument that was replaced, does not show its value or type, says nothing of what is allowed or to
be done, holds characters that a terminal obeys, or is longer than 6,000 characters, and a call that takes over 60 s.

Not watched: the data cache, where a call that fails later may leave partitions that the next one uses.
"""

from __future__ import annotations

import argparse
import contextlib
import decimal
import hashlib
import inspect
import io
import logging
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import hopyard as hy
import hopyard.spark
from hopyard.checks import scalar
from hopyard.frameworks.linear import Linear
from hopyard.text import escaped, shown

SECONDS = 60
"""A call that takes longer is a fault."""
MANY_EPOCHS = 1_000
"""A call that is to train more is not waited for."""
LONGEST = 6_000
"""Characters of an error's text: a traceback of the user's own code may be in it."""
ADVICE = re.compile(
    r"\b(must|needs?|give|use|try|there (?:are|is)|allowed|at most|at least|install|leave|instead|start|another|known|"
    r"pad|cut|says|names?|restore|copy|free|export|from \d|>=|no such|cannot|did you mean|only|takes|expects?)\b"
)
"""Words of an error that say what is allowed or to be done."""
NUMBERS = re.compile(
    r"\bhas \d|\b\d+ (?:rows|parts|times)|shape \(|(?:first is|no) rows?\b|there are:|cannot fill|has none|"
    r"raised \w+ on"
)
"""What an error says of a large value: how many it has."""
NOWHERE = "nowhere"
"""A path that some calls name even where nothing else is wrong."""
ARRAYS = {"x": "inputs", "y": "targets", "data": "inputs"}
"""Arguments whose columns have other names."""


# ---------------------------------------------------------------------------------------------------- wrong values


class Rude:
    """An object with which nothing can be done."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError("a rude object")

    __repr__ = __str__ = __eq__ = __bool__ = __len__ = __hash__ = __float__ = __int__ = __index__ = _refuse
    __fspath__ = __contains__ = __getitem__ = __lt__ = __array__ = _refuse


class Number(int):
    """An integer of a class of its own."""


class Words(str):
    """Text of a class of its own."""

    __slots__ = ()


class Shy:
    """A class whose objects cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return deep


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> None:
    pass


def _raises(*_: Any, **__: Any) -> Any:
    raise ValueError("the user's own \x1b[31merror\x1b[0m")


ODD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: False,
    lambda: 0,
    lambda: 1,
    lambda: -1,
    lambda: 2**63,
    lambda: 2**64,
    lambda: -(10**400),
    lambda: 10**5000,
    lambda: 0.5,
    lambda: math.nan,
    lambda: math.inf,
    lambda: -math.inf,
    lambda: 1e-320,
    lambda: 1j,
    lambda: decimal.Decimal("NaN"),
    lambda: Fraction(1, 3),
    lambda: "",
    lambda: " x",
    lambda: "x",
    lambda: ".",
    lambda: "nosuch://x",
    lambda: "a\0b",
    lambda: "\x1b[2J\x1b]0;title\x07",
    lambda: "\ud800",
    lambda: "\u202egnp.exe",
    lambda: "[red]markup[/red]<script>",
    lambda: "x" * 100_000,
    lambda: Words("w"),
    lambda: Number(3),
    lambda: b"bytes",
    lambda: bytearray(b"bytes"),
    lambda: [],
    lambda: [None],
    lambda: [[]],
    lambda: ["a", "a"],
    lambda: ("a", 1),
    lambda: {},
    lambda: {"a": 1},
    lambda: {1: 2},
    lambda: {None: None},
    lambda: {"": ""},
    lambda: {"worker": -1},
    lambda: {"a": {"b": object()}},
    lambda: {"a", "b"},
    lambda: range(3),
    lambda: object(),
    lambda: object,
    lambda: int,
    lambda: len,
    lambda: lambda: None,
    lambda: lambda *a, **k: None,
    lambda: _raises,
    lambda: _coroutine,
    _generator,
    lambda: sys,
    lambda: ...,
    lambda: NotImplemented,
    lambda: ValueError("x"),
    lambda: threading.Lock(),
    lambda: io.BytesIO(b"x"),
    lambda: Path("nowhere"),
    lambda: Path("a\0b"),
    lambda: Path("x" * 300),
    lambda: Path("data.parquet"),
    lambda: Path("kept"),
    lambda: np.array([]),
    lambda: np.array([1.0, 2.0]),
    lambda: np.array([[1.0, math.nan]] * 40),
    lambda: np.array(["a", None], dtype=object),
    lambda: np.zeros((0, 3), dtype=np.float32),
    lambda: np.float32("nan"),
    lambda: np.int64(3),
    lambda: np.str_("x"),
    lambda: np.datetime64("2026-01-01"),
    lambda: pd.DataFrame({"a": [1, 2]}),
    lambda: pd.DataFrame({0: [1, 2]}),
    lambda: pd.Series([1, 2]),
    lambda: pd.NA,
    lambda: pa.table({"a": [1, 2]}),
    lambda: pa.table({"a": pa.array([], pa.int64())}),
    lambda: torch.zeros(2, 3),
    lambda: torch.nn.Linear(2, 1),
    lambda: hy.Space(a=hy.choice([1])),
    lambda: hy.Random(1),
    lambda: hy.Hopper(),
    lambda: hy.Role(1),
    lambda: hy.Dataset,
    lambda: Shy(),
    lambda: Rude(),
    lambda: [Rude()],
    lambda: {"a": Rude()},
    lambda: {"a": Shy()},
    _circle,
    _deep,
)


@dataclass(frozen=True)
class Odd:
    """A wrong value that can be made again; its text is its place in the list."""

    number: int

    def make(self) -> Any:
        return ODD[self.number]()


def values() -> st.SearchStrategy[Any]:
    """Return a strategy of wrong values: those of ODD, and what Hypothesis makes of plain types."""
    names = st.text(st.characters(exclude_characters="/\\~"), max_size=12).filter(lambda text: ".." not in text)
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), names, st.binary(max_size=8))
    plain = st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3), st.tuples(inner, inner)
        ),
        max_leaves=5,
    )
    return st.one_of(st.builds(Odd, st.integers(0, len(ODD) - 1)), st.builds(Odd, st.integers(0, len(ODD) - 1)), plain)


# ----------------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class Call:
    """A call of the public face.

    Attributes:
        function: what is called.
        valid: arguments with which it succeeds, made anew for each call.
        close: what to do with what it returns.
        waits: whether it may wait for ever, as it is asked to.
    """

    function: Callable[..., Any]
    valid: Callable[[], dict[str, Any]]
    close: Callable[[Any], Any] = lambda result: None
    waits: bool = False

    @property
    def names(self) -> list[str]:
        """Arguments that may be replaced."""
        kinds = inspect.signature(self.function).parameters.values()
        named = [p.name for p in kinds if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return named or list(self.valid())


def recipe(config: dict[str, Any]) -> Linear:
    return Linear(3, 2, lr=config["lr"], batch_size=16)


def main(args: Any, ctx: Any) -> None:
    pass


def waits(args: Any, ctx: Any) -> None:
    while not ctx.stop_requested:
        time.sleep(0.01)


def arrays() -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def table() -> Any:
    x, y = arrays()
    return pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y, "w": np.ones(60), "k": np.arange(60) % 7})


def dataset() -> hy.Dataset:
    return hy.Dataset.numpy(*arrays(), validation=0.25, partitions=2)


def world() -> None:
    """Make what calls use, in the working directory: data, a run that is over, a saved model, a script."""
    pq.write_table(table(), "data.parquet")
    Path("script.py").write_text("pass\n")
    run = hy.fit(recipe, {"lr": 0.1}, dataset(), epochs=1, engine=hy.Inline(), directory="kept")
    run.best.save("saved")


def _columns(**own: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"features": ["a", "b", "c"], "label": "y", "partitions": 2, **own}


def _training() -> dict[str, Any]:
    return {"recipe": recipe, "data": dataset(), "epochs": 1, "metric": "val_loss", "mode": "min"} | {
        "engine": hy.Inline()
    }


def calls(program: hy.Program, spark: Any) -> dict[str, Call]:
    """Return name → call. `program` runs all the time, and so does the session."""
    df = spark.createDataFrame(table().to_pandas()).cache()
    run = hy.load("kept")
    trial = run.trials[0]
    saved = hy.load_model("saved")

    def module() -> dict[str, Any]:
        net = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return {"module": net, "optimizer": optimizer, "loss": torch.nn.functional.cross_entropy}

    def feed() -> dict[str, Any]:
        return {"data": [{"a": 1.0}], "name": f"f{time.monotonic_ns()}", "timeout": 0.2}

    ended: Callable[[Any], Any] = lambda run: run.wait()  # noqa: E731 - it may have begun with wait=False
    prepared: Callable[[Any], Any] = lambda data: data.prepare()  # noqa: E731
    return {
        "Space": Call(hy.Space, lambda: {"a": hy.choice([1, 2]), "b": hy.uniform(0, 1)}),
        "choice": Call(hy.choice, lambda: {"values": [1, 2]}),
        "uniform": Call(hy.uniform, lambda: {"low": 0, "high": 1}),
        "quniform": Call(hy.quniform, lambda: {"low": 0, "high": 1, "q": 0.5}),
        "loguniform": Call(hy.loguniform, lambda: {"low": 0.1, "high": 1}),
        "randint": Call(hy.randint, lambda: {"low": 0, "high": 9}),
        "Random": Call(hy.Random, lambda: {"trials": 2}),
        "Configs": Call(hy.Configs, lambda: {"configs": [{"lr": 0.1}]}),
        "Hopper": Call(hy.Hopper, dict),
        "Categories": Call(hy.Categories, dict),
        "Role": Call(hy.Role, lambda: {"count": 1}),
        "Local": Call(hy.Local, dict),
        "Inline": Call(hy.Inline, dict),
        "Spark": Call(hy.Spark, lambda: {"session": spark, "workers": 2}),
        "Dataset.numpy": Call(
            hy.Dataset.numpy, lambda: dict(zip("xy", arrays(), strict=True)) | {"partitions": 2}, prepared
        ),
        "Dataset.pandas": Call(hy.Dataset.pandas, _columns(frame=table().to_pandas()), prepared),
        "Dataset.arrow": Call(hy.Dataset.arrow, _columns(source=table()), prepared),
        "Dataset.parquet": Call(hy.Dataset.parquet, _columns(source="data.parquet"), prepared),
        "Dataset.torch": Call(
            hy.Dataset.torch,
            lambda: {"items": torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays()))},
            prepared,
        ),
        "Dataset.tfrecord": Call(hy.Dataset.tfrecord, _columns(source="data.parquet")),
        "Dataset.spark": Call(hy.Dataset.spark, _columns(df=df)),
        "Dataset.open": Call(hy.Dataset.open, lambda: {"url": NOWHERE}),
        "select": Call(hy.select, lambda: {**_training(), "space": hy.Space(lr=0.1), "search": hy.Grid()}, ended),
        "fit": Call(hy.fit, lambda: {**_training(), "config": {"lr": 0.1}}, ended),
        "fit, resume": Call(
            hy.fit,
            lambda: (
                {"recipe": recipe, "config": {"lr": 0.1}, "data": dataset(), "epochs": 1}
                | {"engine": hy.Inline(), "directory": "kept", "resume": True}
            ),
        ),
        "resume": Call(hy.resume, lambda: {"directory": "kept"}, ended),
        "load": Call(hy.load, lambda: {"directory": "kept"}),
        "load_model": Call(hy.load_model, lambda: {"directory": "saved"}),
        "launch": Call(
            hy.launch, lambda: {"main": main, "roles": {"worker": 1}, "grace": 0}, lambda program: program.stop()
        ),
        "launch, script": Call(
            hy.launch, lambda: {"main": "script.py", "roles": {"worker": 1}, "grace": 0}, lambda program: program.stop()
        ),
        "saved.predict": Call(saved.predict, lambda: {"data": arrays()[0]}),
        "saved.evaluate": Call(saved.evaluate, lambda: {"data": dataset()}),
        "run.history": Call(run.history, dict),
        "run.wait": Call(run.wait, dict),
        "run.gantt": Call(run.gantt, dict),
        "run.logs": Call(run.logs, dict),
        "trial.model": Call(trial.model, dict),
        "trial.predict": Call(trial.predict, lambda: {"data": arrays()[0]}),
        "trial.evaluate": Call(trial.evaluate, lambda: {"data": dataset()}),
        "trial.save": Call(trial.save, lambda: {"directory": "again"}),
        "program.wait": Call(program.wait, lambda: {"timeout": 0}, waits=True),
        "program.logs": Call(program.logs, dict),
        "program.feed": Call(program.feed, feed, waits=True),
        "program.infer": Call(program.infer, lambda: {"data": df, "schema": "a double"}),
        "program.end_feed": Call(program.end_feed, lambda: {"name": f"e{time.monotonic_ns()}"}),
        "program.tensorboard_url": Call(program.tensorboard_url, lambda: {"timeout": 0.1}),
        "predict": Call(hy.spark.predict, lambda: {"model": "saved", "df": df.selectExpr("array(a, b, c) AS inputs")}),
        "map_batches": Call(hy.spark.map_batches, lambda: {"fn": dict, "df": df, "schema": "a double"}),
        "HopyardEstimator": Call(
            hopyard.spark.HopyardEstimator, lambda: {"recipe": recipe, "featuresCols": ["a", "b", "c"], "labelCol": "y"}
        ),
        "save_tfrecords": Call(
            hopyard.spark.save_tfrecords, lambda: {"df": df, "path": f"records-{time.monotonic_ns()}"}
        ),
        "load_tfrecords": Call(hopyard.spark.load_tfrecords, lambda: {"spark": spark, "path": NOWHERE}),
        "torch.Model": Call(hy.torch.Model, module),
        "torch.AUC": Call(hy.torch.AUC, dict),
        "torch.F1": Call(hy.torch.F1, dict),
    }


# ---------------------------------------------------------------------------------------------------------- judging


def contents(folder: Path) -> dict[str, str]:
    """Return path → digest of all in a folder. Not the live program's: what it writes is no call's doing."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.relative_to(folder).parts[0] != "live":
            data = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(folder))] = hashlib.blake2b(data).hexdigest() + oct(path.lstat().st_mode)
    return found


def texts_of(value: Any) -> list[str]:
    """Return texts of which an error about this value has one: the beginning of its text, or its type."""
    texts = [type(value).__name__, type(scalar(value)).__name__, "None" if value is None else type(value).__qualname__]
    for text in (repr, str, ascii, shown):
        with contextlib.suppress(Exception):
            beginning = escaped(text(value))[:16].strip()
            texts += [beginning] if len(beginning) > 1 or value in ("", 0, 1) else [beginning or "''"]
    if isinstance(value, (list, tuple, dict)) and value:
        with contextlib.suppress(Exception):
            for inner in [*value, *(value.values() if isinstance(value, dict) else ())]:
                if inner is not value:
                    texts += texts_of(inner)
    return texts


def weaknesses(error: hy.HopyardError, name: str, wrong: dict[str, Any]) -> list[str]:
    """Return what is amiss with an error about these arguments."""
    text = str(error)
    found = []
    if escaped(text) != text:
        found.append("a terminal would obey it")
    if len(text) > LONGEST:
        found.append("too long")
    words = set(re.findall(r"\w+", text))
    shows = NOWHERE in text or any(part in text for value in wrong.values() for part in texts_of(value))
    arguments = {*wrong, *re.findall(r"\w+", name), *(ARRAYS[key] for key in wrong if key in ARRAYS)}
    if not words & arguments and not shows:
        found.append("names neither call, argument nor value")
    if not shows and not NUMBERS.search(text):
        found.append("shows no value")
    if not ADVICE.search(text):
        found.append("no advice")
    return found


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TimeoutError(f"over {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # and again: a view that fails may have taken the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Campaign:
    """Calls, and what came of them."""

    def __init__(self, folder: Path, calls: dict[str, Call]) -> None:
        self.folder = folder
        self.calls = calls
        self.kept = folder.with_name("kept-world")
        shutil.copytree(folder, self.kept, ignore=shutil.ignore_patterns("live"))
        self.before = contents(folder)
        self.outcomes: Counter[str] = Counter()
        self.faults: dict[tuple[str, ...], list[str]] = {}
        self.slowest: tuple[float, str] = (0.0, "")

    def restore(self) -> None:
        """Put the working directory back, for the next call."""
        for path in self.folder.iterdir():
            if path.name != "live":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(self.kept, self.folder, dirs_exist_ok=True)
        self.before = contents(self.folder)

    def fault(self, kind: str, name: str, wrong: dict[str, Any], text: str) -> None:
        """Note a fault. Those of one kind, call and arguments count as one."""
        self.outcomes[kind] += 1
        arguments = ", ".join(f"{key}={safe(value)}" for key, value in wrong.items())
        self.faults.setdefault((kind, name, *sorted(wrong)), []).append(f"{name}({arguments})\n    {text}")

    def call(self, name: str, replaced: dict[str, Any]) -> None:
        """Make one call, and judge it."""
        call = self.calls[name]
        wrong = {key: value.make() if isinstance(value, Odd) else value for key, value in replaced.items()}
        epochs = wrong.get("epochs")
        waits = call.waits or (isinstance(epochs, Integral) and epochs > MANY_EPOCHS)
        began = time.monotonic()
        try:
            with (
                at_most(1 if waits else SECONDS),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                call.close(call.function(**{**call.valid(), **wrong}))
        except hy.HopyardError as error:
            self.outcomes["HopyardError"] += 1
            for weakness in weaknesses(error, name, wrong):
                self.fault(weakness, name, wrong, f"{type(error).__name__}: {escaped(str(error))[:400]}")
            if changed := {path for path, _ in contents(self.folder).items() ^ self.before.items()}:
                ran = isinstance(error, (hy.PreflightError, hy.RunFailed))  # then its run directory has the logs
                if not ran or any(not path.startswith("runs") for path in changed):
                    self.fault("changed a directory", name, wrong, f"{error!s:.200}\n    {sorted(changed)[:4]}")
                self.restore()
        except TimeoutError as error:
            if waits:
                self.outcomes["went on"] += 1
            else:
                self.fault("took too long", name, wrong, str(error))
            if contents(self.folder) != self.before:
                self.restore()
        except BaseException as error:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            at = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
            self.fault("another exception", name, wrong, f"{type(error).__name__}: {safe(error)[:200]} at {at}")
            if contents(self.folder) != self.before:
                self.restore()
        else:
            self.outcomes["success"] += 1
            if contents(self.folder) != self.before:
                self.restore()
        self.slowest = max(self.slowest, (time.monotonic() - began, name))


def safe(value: Any) -> str:
    try:
        return escaped(repr(value))[:80]
    except Exception:
        return f"<{type(value).__name__}>"


def campaign(number: int, seed: int, only: list[str]) -> Campaign:
    """Make so many calls in a folder of their own."""
    at, cache = os.getcwd(), os.environ.get("XDG_CACHE_HOME")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        folder = Path(name, "work")
        folder.mkdir()
        os.chdir(folder)
        try:
            world()
            with (
                hopyard.spark.session(cores=1) as spark,
                hy.launch(waits, roles={"worker": 1}, directory="live", grace=0) as program,
            ):
                known = calls(program, spark)
                names = only or list(known)
                result = Campaign(folder, known)

                wrong_values, any_name = values(), st.sampled_from(names)
                arguments = {
                    name: st.lists(st.sampled_from(known[name].names), min_size=1, max_size=3, unique=True)
                    for name in names
                }

                @seeded(seed)
                @settings(
                    max_examples=number,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(st.data())
                def generated(data: st.DataObject) -> None:
                    name = data.draw(any_name)
                    result.call(name, {argument: data.draw(wrong_values) for argument in data.draw(arguments[name])})

                generated()
        finally:
            os.chdir(at)
            logging.disable(logging.NOTSET)
            if cache is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = cache
    return result


def cli() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--show", type=int, default=1, help="examples of each fault")
    asked = parser.parse_args()
    began = time.monotonic()
    result = campaign(asked.calls, asked.seed, asked.only)
    for (kind, *_), texts in sorted(result.faults.items()):
        print(f"{kind} ({len(texts)}): " + "\n  ".join(texts[: asked.show]))
    seconds, slowest = result.slowest
    print(f"{asked.calls:,} calls in {time.monotonic() - began:.0f} s; the longest took {seconds:.1f} s ({slowest})")
    print(", ".join(f"{count:,} {kind}" for kind, count in result.outcomes.most_common()))
    print(f"{len(result.faults)} faults")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(cli())

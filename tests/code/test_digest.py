"""What a digest of code is of: equal between processes, another for any edit that matters."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from sys import modules
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import hopyard as hy
from hopyard.code.digest import Unseen, digest

Make = Callable[..., ModuleType]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes the user's modules, as a script's folder has them, and imports the first one, anew each time."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def made(**sources: str) -> ModuleType:
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
        importlib.invalidate_caches()
        for name in list(sys.modules):
            if name.partition(".")[0] in {key.partition("/")[0] for key in sources}:
                monkeypatch.delitem(sys.modules, name)
        return importlib.import_module(next(iter(sources)))

    return made


SCRIPT = """
import dataclasses, enum, functools, logging, re, sys
import numpy as np
from hopyard.code.digest import digest

log = logging.getLogger("prep")
WORDS = {"one", "two", "three", "four", "five"}
TABLE = {word: number for number, word in enumerate(sorted(WORDS))}
MEANS = np.arange(12.0).reshape(3, 4)[:, ::2]

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

@dataclasses.dataclass
class Config:
    mode: Mode = Mode.FAST
    names: list = dataclasses.field(default_factory=lambda: ["a"])

class Cleaner:
    __slots__ = ("config",)
    def __init__(self, config): self.config = config
    @property
    def again(self): return self.__call__
    def __call__(self, batch):
        log.info("%s", self.config)
        return batch if batch in {"x", "y", "zz"} else helper(batch, self)

@functools.lru_cache(8)
def helper(batch, other=None):
    return re.sub("a", "b", batch), MEANS, TABLE, WORDS, super

def transform(batch):
    from collections import OrderedDict
    class Inner(Cleaner):
        limit = MEANS
    return [Inner(Config())(one) for one in OrderedDict.fromkeys(batch)]

for one in (transform, Cleaner(Config()), functools.partial(helper, other=1), Cleaner(Config()).again, lambda b: b):
    print(digest(one))
"""


def said(folder: Path, seed: str, *command: str) -> list[str]:
    """What a Python of its own prints."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, cwd=folder, timeout=60, env=environment
    )
    return done.stdout.split()


@pytest.mark.slow
def test_processes_agree(tmp_path: Path) -> None:
    """Whatever the folder, the order of sets, whether compiled before or not, and wherever the lines are."""
    found = []
    for seed, source in (("1", SCRIPT), ("2", SCRIPT), ("3", "# moved\n\n" + SCRIPT)):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "prep.py").write_text(source)
        found += [said(folder, seed, "prep.py"), said(folder, seed, "-c", "import prep")]
    assert found == [found[0]] * len(found)
    assert len(set(found[0])) == 5


SHIPPED = """
import enum, functools, typing
from dataclasses import dataclass, field
import numpy as np
import hopyard as hy
import nets
from hopyard.code.digest import digest
from hopyard.driver.pickling import dump
from nets import norm

TABLE = np.arange(6.0).reshape(2, 3)
NAMES = {"b", "a", "c", "d"}
T = typing.TypeVar("T")

class Mode(enum.Enum):
    FAST = 1
    SLOW = "two"

class Flags(enum.Flag):
    READ = 1
    WRITE = 2

@dataclass(slots=True)
class Options:
    width: int = 3
    extra: dict = field(default_factory=dict)

class Kept(typing.Generic[T]):
    __slots__ = ("kept",)

class Net(hy.Trainable):
    scale = 1.0
    def __init__(self, config, width=4):
        super().__init__()
        self.mode = Mode.FAST
    def train(self, batch):
        return {"loss": (nets.scaled(norm(batch.inputs)) * self.scale + TABLE.sum(), Flags.READ | Flags.WRITE)}
    def evaluate(self, batch):
        return {}
    def state(self):
        return {}
    def load(self, tree):
        pass
    @property
    def wide(self):
        return Options().width > 2, Kept()
    @staticmethod
    def once():
        return recipe

def made(bonus):
    def recipe(config, *, bias=0.5):
        import late
        class Inner(Net):
            depth = TABLE
        return Inner(config), [name for name in sorted(NAMES)], late.shift(bonus), bias, vars(nets)
    return recipe

recipe = functools.partial(made(7))
print(digest(recipe, imports=False))
open("recipe.pkl", "wb").write(dump(recipe, "recipe"))
Net({}).train, Net({}).wide, Options().__reduce_ex__(4), Flags.READ | Flags.WRITE, Mode.__annotations__
print(digest(recipe, imports=False))
"""
NETS = """
import typing
T = typing.TypeVar("T")
def scaled(x: T) -> T:
    return x * 2
def norm(x):
    return x / 3
"""
LOADED = "import pickle; from hopyard.code.digest import digest as d; f = open('recipe.pkl', 'rb'); "
LOADED += "print(d(pickle.load(f), imports=False))"


def test_use_changes_nothing_nor_does_a_pickle(tmp_path: Path) -> None:
    """Elsewhere, where the user's modules are not; and what bodies import need not be there at all."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "nets.py").write_text(NETS)
    (tmp_path / "job" / "job.py").write_text(SHIPPED)
    found = said(tmp_path, "1", "job/job.py")
    assert said(tmp_path, "2", "-c", LOADED) * 2 == found


CELL = """
import functools
import math
OPTIONS = {"a": 1, "b": [2, 3]}
@functools.lru_cache
def helper(x, times=2):
    return math.sqrt(x) * times
class Base:
    width = 4
class Net(Base):
    def go(self):
        return helper(self.width) if OPTIONS else None
def recipe(config):
    return Net().go() + config["lr"]
"""


def of_cell(source: str) -> str:
    """Of what a notebook's cell leaves in `__main__`."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, f"<cell {len(source)}>", "exec"), scope)
    return digest(scope["recipe"])


def test_a_cell_that_is_run_again_is_the_same() -> None:
    assert of_cell(CELL) == of_cell("\n\n# again\n" + CELL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('config["lr"]', 'config["rate"]'),
        ("def recipe(config)", "def recipe(config, ctx)"),
        ("math.sqrt(x)", "math.exp(x)"),
        ("times=2", "times=3"),
        ("[2, 3]", "[3, 2]"),
        ("class Net(Base)", "class Net(Base, list)"),
        ("if OPTIONS", "if not OPTIONS"),
    ],
)
def test_an_edited_cell_is_another(old: str, new: str) -> None:
    assert old in CELL
    assert of_cell(CELL.replace(old, new)) != of_cell(CELL)


BASE = {
    "prep": (
        "import helpers\nfrom helpers import Scaler\nimport pack.deep\nSCALER = Scaler(2)\n"
        "def transform(batch, by=1):\n"
        "    from late import shift\n"
        "    return shift(SCALER(helpers.clean(batch)) * pack.deep.FACTOR) + by\n"
    ),
    "helpers": (
        "LIMIT = 10\ndef _inner(x):\n    return x * LIMIT\ndef clean(x):\n    return _inner(x)\n"
        "class Parent:\n    offset = 0\n"
        "class Scaler(Parent):\n    def __init__(self, by):\n        self.by = by\n"
        "    def __call__(self, x):\n        return x / self.by + self.offset\n"
        "def unused():\n    return 1\n"
    ),
    "pack/__init__": "",
    "pack/deep": "FACTOR = 3\n",
    "late": "def shift(x):\n    return x + 1\n",
}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("prep", "+ by", "- by"),
        ("prep", "by=1", "by=2"),
        ("prep", "Scaler(2)", "Scaler(3)"),
        ("helpers", "LIMIT = 10", "LIMIT = 100"),
        ("helpers", "LIMIT = 10", "LIMIT = 10.0"),
        ("helpers", "x * LIMIT", "x + LIMIT"),
        ("helpers", "offset = 0", "offset = 1"),
        ("helpers", "x / self.by", "x // self.by"),
        ("pack/deep", "FACTOR = 3", "FACTOR = 4"),
        ("late", "x + 1", "x - 1"),
    ],
)
def test_an_edit_anywhere_counts(make: Make, file: str, old: str, new: str) -> None:
    before = digest(make(**BASE).transform)
    assert digest(make(**BASE).transform) == before
    assert old in BASE[file]
    assert digest(make(**{**BASE, file: BASE[file].replace(old, new)}).transform) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("helpers", "def unused():\n    return 1", "def unused():\n    return 2"),
        ("helpers", "def clean(x):\n", "\n# a comment\ndef clean(x):\n"),
        ("prep", "def transform(", "def other(): pass\ndef transform("),
    ],
)
def test_edits_of_what_is_not_reached_do_not(make: Make, file: str, old: str, new: str) -> None:
    before = digest(make(**BASE).transform)
    assert old in BASE[file]
    assert digest(make(**{**BASE, file: BASE[file].replace(old, new)}).transform) == before


def test_a_module_that_is_handed_on_counts_whole(make: Make) -> None:
    source = "import helpers\ndef transform(x):\n    return getattr(helpers, 'clean')(x)\n"
    before = digest(make(prep=source, helpers="def clean(x):\n    return x\n").transform)
    assert digest(make(prep=source, helpers="def clean(x):\n    return -x\n").transform) != before


def test_closures_and_globals_count_with_what_they_hold() -> None:
    def made(array: Any, names: list[str]) -> Any:
        def transform(batch: Any) -> Any:
            return batch * array, names

        return transform

    array = np.arange(2000.0)
    other = array.copy()
    other[1000] += 1e-13  # both print alike
    first = digest(made(array, ["a"]))
    assert digest(made(array.copy(), ["a"])) == first
    assert len({first, digest(made(other, ["a"])), digest(made(array, ["b"])), digest(made(array[:-1], ["a"]))}) == 4


def test_values_count_with_their_types() -> None:
    several = [1, 1.0, True, "1", b"1", (1,), [1], None, {1}, {1: 1}, np.ones(1), np.ones(1, np.float32)]
    several += [{"a": 1, "b": 2}, {"b": 2, "a": 1}, hy.Random(3), hy.Random(4)]
    assert len({digest(value) for value in several}) == len(several)
    assert digest(hy.Random(3)) == digest(hy.Random(3))


def test_tensors_count_with_their_values() -> None:
    import torch

    def of(net: Any) -> str:
        return digest(lambda batch: net(batch))

    torch.manual_seed(0)
    net = torch.nn.Linear(2, 2)
    same = torch.nn.Linear(2, 2)
    same.load_state_dict(net.state_dict())
    assert of(net) == of(same)
    with torch.no_grad():
        same.bias[1] += 1
    assert of(net) != of(same)
    assert digest(torch.ones(2, dtype=torch.bfloat16)) != digest(torch.ones(2, dtype=torch.float16))


def test_callables_of_all_kinds() -> None:
    @dataclasses.dataclass
    class By:
        factor: int

        def __call__(self, batch: Any) -> Any:
            return batch * self.factor

        def twice(self, batch: Any) -> Any:
            return batch * self.factor * 2

    def scaled(batch: Any, by: int = 1) -> Any:
        return batch * by

    several = [
        By(1), By(2), By(1).twice, By(2).twice, scaled, functools.partial(scaled), functools.partial(scaled, by=2),
        lambda batch: batch, lambda batch: -batch, math.sqrt, np.negative, functools.lru_cache(scaled), str.upper,
    ]  # fmt: skip
    assert len({digest(one) for one in several}) == len(several)
    assert digest(By(1)) == digest(By(1))


def cycle(batch: Any) -> Any:
    return other(batch)


def other(batch: Any) -> Any:
    return cycle(batch), LOOP


LOOP: list[Any] = [cycle]
LOOP.append(LOOP)


def test_recursive_code_has_a_digest() -> None:
    assert digest(cycle) == digest(cycle) != digest(other)


def test_equal_parts_need_not_be_one_object() -> None:
    part = [1]
    one: list[Any] = [part, part, [2]]
    two: list[Any] = [[1], [1], [2]]
    for loop in one, two:
        loop[2].append(loop[2])
    assert digest(one) == digest(two)


def test_code_out_of_sight_is_named(make: Make, tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(Unseen, match=r"^lock: a lock, TypeError: cannot pickle"):
        digest(lambda batch: (lock, batch))

    class Locked:
        def __call__(self, batch: Any) -> Any:
            with lock:
                return batch

    with pytest.raises(Unseen, match=r"^Locked.__call__, lock: a lock"):
        digest(Locked())
    with pytest.raises(Unseen, match=r"eval\(\) may reach anything"):
        digest(lambda batch: eval("batch"))
    with pytest.raises(Unseen, match=r"import_module\(\) may reach anything"):
        digest(lambda batch: importlib.import_module("helpers").clean(batch))
    for reach in (
        lambda batch: sys.modules["helpers"].clean(batch),
        lambda batch: modules["helpers"].clean(batch),
    ):
        with pytest.raises(Unseen, match=r"sys\.modules may reach anything"):
            digest(reach)
    with pytest.raises(Unseen, match=r"pyarrow\.compute\.call_function\(\) may reach anything"):
        digest(lambda batch: pc.call_function("mine", [batch]))
    with pytest.raises(Unseen, match=r"pyarrow\.compute\.get_function\(\) may reach anything"):
        digest(lambda batch, found=pc.get_function: found("mine"))
    doubled = np.frompyfunc(lambda value: 2 * value, 1, 1)
    with pytest.raises(Unseen, match=r"^doubled: a ufunc <lambda> \(vectorized\) that no library has"):
        digest(lambda batch: doubled(batch))
    with pytest.raises(Unseen, match=r"helpers.clean, LOCK: a lock"):
        digest(
            make(
                prep="import helpers\ndef transform(x):\n    return helpers.clean(x)\n",
                helpers="import threading\nLOCK = threading.Lock()\ndef clean(x):\n    with LOCK: return x\n",
            ).transform
        )
    with pytest.raises(Unseen, match="import not_there_at_all fails, ModuleNotFoundError"):
        digest(make(prep="def transform(x):\n    import not_there_at_all\n").transform)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(Unseen, match="RecursionError"):
        digest(deep)


def test_compiled_code_of_the_users_cannot_be_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make(fast="class Kind:\n    pass\n")
    monkeypatch.setattr(module, "__file__", "/home/me/fast.cpython-311-x86_64-linux-gnu.so")
    for one in (module, module.Kind, module.Kind()):
        with pytest.raises(Unseen, match="is compiled"):
            digest(one)


def test_a_ufunc_of_a_library_counts_by_its_name() -> None:
    special = pytest.importorskip("scipy.special")
    assert digest(special.expit) == digest(special.expit) != digest(special.logit)
    assert digest(np.add) == digest(np.add) != digest(np.subtract)
    assert digest(lambda batch: pc.add(np.exp(batch), 1)) and digest(lambda batch: sys.version_info)


def test_a_library_counts_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import cloudpickle

    before = digest(cloudpickle.dumps)
    monkeypatch.setattr(cloudpickle, "__version__", "99")
    assert digest(cloudpickle.dumps) != before


@pytest.mark.slow
def test_a_library_is_not_imported_to_be_digested(tmp_path: Path) -> None:
    """`hopyard.keras` is imported when it is asked for; so are the parts of many a library."""
    script = "import sys, hopyard as hy\ndef recipe(config):\n    return hy.keras.Model(None)\n"
    script += "from hopyard.code.digest import digest\ndigest(recipe)\nassert 'keras' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)

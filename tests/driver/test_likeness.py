"""The digest of a recipe: equal for an unedited script in another process, another for whatever was edited."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.driver.likeness import likeness
from hopyard.driver.ship import dump

SCRIPT = """
import enum, functools
from dataclasses import dataclass, field
import numpy as np
import hopyard as hy
import nets
from nets import norm

FACTOR = 2.5
TABLE = np.arange(6.0).reshape(2, 3)
NAMES = {"b", "a", "c", "d"}

class Mode(enum.Enum):
    FAST = 1
    SLOW = "two"

@dataclass
class Options:
    width: int = 3
    extra: dict = field(default_factory=dict)

class Net(hy.Trainable):
    scale = 1.0
    def __init__(self, config, width=4):
        super().__init__()
        self.mode = Mode.FAST
    def train(self, batch):
        return {"loss": (helper(batch.inputs) * self.scale, batch.rows)}
    @property
    def wide(self):
        return Options().width > 2
    @staticmethod
    def once():
        return recipe

def table(n):
    return n in {"x", "y", "z"}

def helper(x):
    return nets.scaled(norm(x)) * FACTOR + TABLE.sum() + len(NAMES)

def made(bonus):
    def recipe(config, *, bias=0.5):
        class Inner(Net):
            depth = FACTOR
        assert table(1) is not None
        try:
            return Inner(config)
        finally:
            print([k for k in sorted(NAMES)], bonus, bias)
    return recipe

recipe = functools.partial(made(7))
space = hy.Space(lr=hy.loguniform(1e-4, 1e-1))
"""
NETS = """
DEPTH = 2
def scaled(x):
    return x * DEPTH
def norm(x):
    return x / 3
def unused(x):
    return x
"""
TELL = """
import sys
from hopyard.driver.likeness import likeness
from hopyard.driver.ship import dump
print(likeness(recipe), likeness(space), likeness([recipe, Options, Mode, Mode.SLOW]))
if len(sys.argv) > 1:
    open(sys.argv[1], "wb").write(dump(recipe, "recipe"))
"""


def told(folder: Path, script: str = SCRIPT, nets: str = NETS, *arguments: str) -> list[str]:
    """The digests, as a process of its own finds them."""
    folder.mkdir(exist_ok=True)
    (folder / "nets.py").write_text(nets)
    (folder / "job.py").write_text(script + TELL)
    environment = {**os.environ, "PYTHONHASHSEED": str(len(folder.name) + 5), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, str(folder / "job.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_an_unedited_script_has_the_same_in_another_process(tmp_path: Path) -> None:
    """Another folder, another hash seed, other line numbers; and its pickle has it too."""
    one = told(tmp_path / "one", SCRIPT, NETS, str(tmp_path / "recipe.pkl"))
    assert all(len(digest) == 32 for digest in one)
    assert told(tmp_path / "another", "# a remark\n\n" + SCRIPT, "\n\n" + NETS) == one
    loaded = (
        "import sys, pickle; from hopyard.driver.likeness import likeness; "
        f"print(likeness(pickle.load(open({str(tmp_path / 'recipe.pkl')!r}, 'rb'))))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == one[:1]


# ------------------------------------------------------------------------------------------ in this process


def module(text: str) -> dict[str, Any]:
    """What a cell of a notebook leaves in `__main__`."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(text), f"<cell {len(text)}>", "exec"), scope)
    return scope


CELL = """
import functools
import math
LIMIT = 10
OPTIONS = {"a": 1, "b": [2, 3]}
@functools.lru_cache
def helper(x, times=2):
    return math.sqrt(x) * times + LIMIT
class Base:
    width = 4
class Net(Base):
    def go(self):
        return helper(self.width) if OPTIONS else None
def recipe(config):
    return Net().go() + config["lr"]
"""


def test_a_cell_that_was_run_again_is_the_same() -> None:
    assert likeness(module(CELL)["recipe"]) == likeness(module("\n\n# again\n" + CELL)["recipe"]) != ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('+ config["lr"]', '- config["lr"]'),
        ('config["lr"]', 'config["rate"]'),
        ("math.sqrt(x)", "math.exp(x)"),
        ("times=2", "times=3"),
        ("LIMIT = 10", "LIMIT = 11"),
        ("width = 4", "width = 5"),
        ("[2, 3]", "[3, 2]"),
        ("class Net(Base)", "class Net(Base, list)"),
        ("if OPTIONS", "if not OPTIONS"),
        ("LIMIT = 10", "LIMIT = 10.0"),
        ("def recipe(config)", "def recipe(config, ctx)"),
    ],
)
def test_an_edited_one_is_another(old: str, new: str) -> None:
    assert old in CELL
    edited = CELL.replace(old, new)
    assert likeness(module(edited)["recipe"]) not in ("", likeness(module(CELL)["recipe"]))


def test_what_a_helper_of_another_module_says_counts_and_what_nobody_uses_does_not(tmp_path: Path) -> None:
    one = told(tmp_path / "a")
    assert told(tmp_path / "b", SCRIPT, NETS.replace("DEPTH = 2", "DEPTH = 3"))[0] != one[0]
    assert told(tmp_path / "c", SCRIPT, NETS.replace("x / 3", "x / 4"))[0] != one[0]
    assert told(tmp_path / "d", SCRIPT, NETS.replace("    return x\n", "    return x + 1\n")) == one


def test_values_by_what_they_are() -> None:
    import numpy as np

    assert likeness({"a": 1, "b": 2}) == likeness({"b": 2, "a": 1})
    assert likeness({"x", "y"}) == likeness({"y", "x"})
    values = [1, 1.0, True, "1", b"1", (1,), [1], None, {1}, {1: 1}, np.ones(1), np.ones(1, np.float32), hy.Random(3)]
    assert len({likeness(value) for value in values}) == len(values)
    assert likeness(hy.Random(3)) == likeness(hy.Random(3)) != likeness(hy.Random(4))
    looped: list[Any] = [1]
    looped.append(looped)
    again: list[Any] = [1]
    again.append(again)
    assert likeness(looped) == likeness(again) != ""


def test_what_cannot_be_digested_says_nothing() -> None:
    lock = threading.Lock()
    assert likeness(lambda config: lock) == ""
    assert dump(likeness, "recipe")

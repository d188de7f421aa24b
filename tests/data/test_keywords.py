"""The constructors of Dataset as people and type checkers see them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hopyard as hy
from hopyard.data.keywords import OPTIONS, takes

LOCAL = {"numpy", "parquet", "tfrecord", "arrow", "pandas", "torch"}
OWN = {
    "numpy": {"x", "y"},
    "parquet": {"source"},
    "tfrecord": {"source", "binary_features"},
    "arrow": {"source"},
    "pandas": {"frame"},
    "torch": {"items"},
    "spark": {"df", "path", "name"},
}


@pytest.mark.parametrize("name", OWN)
def test_signature_and_help_show_each_keyword_with_its_default(name: str) -> None:
    constructor = getattr(hy.Dataset, name)
    shown = dict(inspect.signature(constructor).parameters)
    unnamed = {"features", "label", "encode", "impute", "ragged", "max_length"}
    missing = unnamed if name == "numpy" else {"assign"} if name == "spark" else set()
    assert shown.keys() == OPTIONS.keys() - missing | OWN[name]
    assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in shown.values())
    for keyword, option in OPTIONS.items():
        if keyword in shown and (name, keyword) != ("torch", "features"):
            assert shown[keyword].default == option.default
    text = inspect.getdoc(constructor)
    assert text is not None
    for keyword in shown:
        assert f"\n    {keyword}: " in text.partition("Args:")[2], keyword
    assert max(map(len, text.splitlines())) <= 112


def test_wrong_keywords() -> None:
    with pytest.raises(TypeError, match=r"Dataset\.parquet takes no argument 'featurs'.*'features'"):
        hy.Dataset.parquet("x", featurs=["a"])
    with pytest.raises(TypeError, match=r"Dataset\.pandas: .*'features'"):
        hy.Dataset.pandas(None)
    with pytest.raises(TypeError, match=r"Dataset\.numpy takes no argument 'encode'"):
        hy.Dataset.numpy(np.zeros((3, 1)), encode={})
    with pytest.raises(TypeError, match=r"Dataset\.arrow: too many positional"):
        hy.Dataset.arrow(None, ["a"])


def test_takes_leaves_the_function_its_own_arguments() -> None:
    from typing import TypedDict

    class Some(TypedDict, total=False):
        seed: int
        partitions: int

    @takes(Some)
    def made(a: int, *, b: int = 2, **options: int) -> tuple[int, int, dict[str, int]]:
        """Makes it."""
        return a, b, options

    assert made(1) == (1, 2, {"partitions": 8, "seed": 0})
    assert made(1, b=3, seed=4) == (1, 3, {"partitions": 8, "seed": 4})
    assert str(inspect.signature(made)).startswith(
        "(a: 'int', *, b: 'int' = 2, partitions: 'int' = 8, seed: 'int' = 0)"
    )
    assert inspect.getdoc(made) == (
        f"Makes it.\n\nArgs:\n    partitions: {OPTIONS['partitions'].text}\n    seed: {OPTIONS['seed'].text}"
    )


CALLS = """
import hopyard as hy

hy.Dataset.parquet("a", features=["x"], label="y", validation=0.2, partitions=4, standardize=True)
hy.Dataset.spark(None, features="x", validation=object(), path="p", name="n", encode={"x": "index"})
hy.Dataset.torch([1], assign="contiguous")
hy.Dataset.parquet("a", features="x", partitons=4)
hy.Dataset.parquet("a", label="y")
hy.Dataset.arrow(None, features="x", partitions="4")
hy.Dataset.spark(None, features="x", assign="contiguous")
"""


SETTINGS = """
[mypy]
strict = true
follow_imports = skip

[mypy-hopyard,hopyard.data.dataset,hopyard.data.keywords,hopyard.data.options]
follow_imports = silent
"""
"""Only modules that have to do with keywords are read: to read all that they import takes 20 seconds."""


@pytest.mark.slow
def test_type_checkers_see_each_keyword(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "calls.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line]
    assert not done.stderr and sorted(lines) == [7, 8, 9, 10], done

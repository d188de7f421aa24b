"""The wording of errors: `wording.txt` has what a user may write wrongly, and all that is said of it.

Other tests ask for the class of an error, the name of the argument and its value, so that a sentence is changed in one
place. `python tests/test_wording.py` writes the file anew: read its diff. A line `>>> …` added there is a test.
"""

from __future__ import annotations

import math
import os
import re
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

import hopyard as hy
from hopyard import checks
from hopyard.cli import app

FILE = Path(__file__).with_name("wording.txt")
ENTRY = re.compile(r"^>>> (.+)\n((?:.+\n)*)", re.MULTILINE)
"""An expression, and the lines below it up to an empty one."""

TABLE = pa.table(
    {
        "age": [30.0, 41.0, 52.0, 63.0],
        "kids": [0, 2, 1, 3],
        "city": ["bonn", "oslo", "bonn", "rome"],
        "born": pa.array([0, 1, 2, 3], pa.timestamp("s")),
        "late": [0, 1, 0, 1],
    }
)


def recipe(config: dict[str, Any]) -> Any:
    raise AssertionError("nothing is to be trained here")


def main(args: Any, ctx: Any) -> None:
    raise AssertionError("nothing is to be started here")


def dataset(**options: Any) -> Any:
    return hy.Dataset.arrow(TABLE, **{"features": ["age", "kids"], "label": "late", "partitions": 2, **options})


def select(**more: Any) -> Any:
    arguments = {
        "recipe": recipe, "space": hy.Space(lr=hy.choice([0.1, 0.2])), "data": dataset(), "search": hy.Grid(),
        "epochs": 1, "metric": "loss", "mode": "min", "engine": hy.Inline(), "directory": "run",
    }  # fmt: skip
    return hy.select(**{**arguments, **more})


def fit(**more: Any) -> Any:
    arguments = {
        "recipe": recipe,
        "config": {},
        "data": dataset(),
        "epochs": 1,
        "engine": hy.Inline(),
        "directory": "run",
    }
    return hy.fit(**{**arguments, **more})


def optimizer_of(net: Any) -> Any:
    made = torch.optim.SGD.__new__(torch.optim.SGD)  # its __init__ imports torch's compiler, for a second
    made.param_groups = [{"params": list(net.parameters())}]
    return made


def model(**more: Any) -> Any:
    net = torch.nn.Linear(2, 2)
    arguments = {"module": net, "optimizer": optimizer_of(net), "loss": torch.nn.MSELoss()}
    return hy.torch.Model(**{**arguments, **more})


def launch(main: Any = main, args: Any = None, **more: Any) -> Any:
    return hy.launch(main, args, **{"roles": {"worker": 2}, "directory": "program", **more})


def hopyard(words: str) -> str:
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(app, words.split())
    finally:
        signal.signal(signal.SIGTERM, before)
    return f"exit code {done.exit_code}\n{done.stdout}{done.stderr}"


FUNCTIONS = (
    *(checks.environment, checks.flag, checks.fraction, checks.one_of, checks.path, checks.seconds, checks.whole),
    *(recipe, main, dataset, select, fit, optimizer_of, model, launch, hopyard),
)
NAMES: dict[str, Any] = {
    **{"hy": hy, "math": math, "np": np, "torch": torch, "TABLE": TABLE, "SCRIPT": __file__},
    **{function.__name__: function for function in FUNCTIONS},
}
"""What expressions may use."""


def said(expression: str) -> str:
    """All that is said of an expression: its error, or what the command line shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            value = eval(expression, dict(NAMES))
        except (hy.HopyardError, UserWarning) as error:
            value = f"{type(error).__name__}: {error}"
    assert isinstance(value, str), f"{expression} is no misuse: {value!r}"
    here = os.path.realpath(Path.cwd())
    value = re.sub(r"0x[0-9a-f]+", "0x…", value.replace(here, "/here"))  # where an object lies in memory
    return re.sub(r"\n\s*\n", "\n", value).rstrip()


def entries() -> list[tuple[str, str]]:
    """The expressions of the file, each with the lines below it."""
    return ENTRY.findall(FILE.read_text(encoding="utf-8"))


def written(text: str, answer: Callable[[str], str]) -> str:
    """The text of the file with each answer in the place of the lines that are there."""
    return ENTRY.sub(lambda entry: f">>> {entry[1]}\n{answer(entry[1])}\n", text)


@pytest.mark.parametrize(("expression", "text"), [pytest.param(*entry, id=entry[0]) for entry in entries()])
def test_the_wording_of_errors(expression: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{said(expression)}\n" == text
    assert list(tmp_path.iterdir()) == [], "what is refused leaves nothing behind"


def test_new_lines_are_answered_and_the_rest_stays() -> None:
    text = "About it.\n\n--- One\n\n>>> f(1)\n\n>>> f(2)\nold\nlines\n\n--- Two\n\n>>> f(3)\n"
    answered = "About it.\n\n--- One\n\n>>> f(1)\nnew\n\n>>> f(2)\nnew\n\n--- Two\n\n>>> f(3)\nnew\n"
    assert written(text, lambda expression: "new") == answered
    expressions = [expression for expression, _ in entries()]
    assert len(set(expressions)) == len(expressions) > 200


if __name__ == "__main__":
    text = FILE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = written(text, said)
    FILE.write_text(text, encoding="utf-8")

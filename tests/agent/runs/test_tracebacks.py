"""What is told of an error that a recipe or its model raised."""

import argparse
import json
from bdb import BdbQuit
from typing import Any

import pytest

from hopyard.agent.runs.tracebacks import HEAD, TAIL, summary, trace
from hopyard.code.places import of_function
from hopyard.errors import SpecError


def recipe(config: Any) -> Any:
    return json.loads("{")


def raised(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError


def test_the_error_names_the_users_line() -> None:
    text = summary(raised(recipe, {}), recipe)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert text.endswith(", in recipe)") and "(test_tracebacks.py, line " in text


def test_the_recipe_is_named_where_no_line_is_the_users() -> None:
    error = raised(json.loads, "{")
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # as if a library called it
    assert summary(error, recipe).endswith(f"; the model is from {of_function(recipe)})")
    assert "(decoder.py, line " in summary(error, recipe)
    assert "the model is from" not in summary(error)


def test_an_error_of_hopyard_needs_no_place_in_hopyard() -> None:
    error = SpecError("epochs must be an integer >= 1, got 0")
    assert summary(error, recipe) == "epochs must be an integer >= 1, got 0"


def test_a_debugger_in_a_worker_is_explained() -> None:
    def left() -> None:
        raise BdbQuit

    text = summary(raised(left), recipe)
    assert text.startswith("BdbQuit: ") and "engine=hy.Inline()" in text


def test_argparse_output_is_part_of_the_error() -> None:
    """Bug: "SystemExit: 2" and no more."""

    def parses(*words: str) -> None:
        parser = argparse.ArgumentParser(prog="train.py")
        parser.add_argument("--epochs", type=int, required=True)
        parser.parse_args(words)

    def error(*words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            parses(*words)
        return summary(caught.value, recipe)

    for words, printed in {
        (): "the following arguments are required: --epochs",
        ("--epochs", "many"): "argument --epochs: invalid int value: 'many'",
        ("--epochs", "3", "--join", "x"): "unrecognized arguments: --join x",
    }.items():
        text = error(*words)
        assert text.startswith(f"SystemExit: 2: {printed}; ") and "command line" in text, text
        assert "(test_tracebacks.py, line " in text and text.endswith(", in parses)")
    assert error("--help").startswith("SystemExit: 0 (test_tracebacks.py")


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    def fall(depth: int) -> None:
        if depth % 2:
            return fall(depth - 1)
        if depth:
            return fall(depth - 1)
        raise ValueError("the\x1b[2J ground")

    text = trace(raised(fall, 200))
    assert HEAD + TAIL < len(text) < HEAD + TAIL + 100
    assert text.startswith("Traceback (most recent call last)") and text.endswith("ValueError: the\\x1b[2J ground\n")
    assert "left out here" in text

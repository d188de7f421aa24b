"""Lines of the user's code, among those of libraries."""

import functools
import json
import sys
import traceback

from hopyard.checks import whole
from hopyard.code import places


def parse(text):
    return json.loads(text)


def raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError


def line_of(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.strip() == text)


def test_of_an_error_it_is_the_innermost_line_of_the_users():
    error = raised(lambda: parse("{"))
    assert places.of_error(error) == f"test_places.py, line {line_of('return json.loads(text)')}, in parse"


def test_an_error_without_such_a_line_is_where_its_cause_was():
    """As TensorFlow raises errors anew, and Hopyard itself."""
    inner = raised(parse, "{")
    outer = RuntimeError("no table")
    outer.__cause__ = inner
    assert places.of_error(outer) == f"test_places.py, line {line_of('return json.loads(text)')}, in parse"
    assert places.of_error(RuntimeError("never raised")) == ""


def test_frames_before_hopyard_s_own_are_those_to_the_innermost_user_s_line_and_of_libraries_below_it():
    def names(error):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return [frame.f_code.co_name for frame in frames[: places.before_hopyard(error.__traceback__)]]

    assert names(raised(lambda: whole("n", "1"))) == ["raised", "<lambda>"]
    below = names(raised(lambda: json.loads("{}", object_hook=functools.partial(whole, "n"))))
    assert below[:2] == ["raised", "<lambda>"] and {"loads", "decode"} <= set(below) and "whole" not in below
    assert names(raised(parse, "{")) == ["raised", "parse", "loads", "decode", "raw_decode"]
    assert places.before_hopyard(None) == 0


def test_of_the_stack_it_is_the_innermost_line_below_the_end():
    frames = []

    def inside():
        frames.append(sys._getframe())

    inside()
    found = places.of_stack(frames[0], "hopyard.agent.runs.worker")
    assert found.startswith("test_places.py, line ") and found.endswith(", in inside")
    assert places.of_stack(frames[0], __name__) == ""


def test_of_a_function_it_is_its_first_line():
    class Recipe:
        def __call__(self, config):
            return config

    here = f"test_places.py, line {line_of('def parse(text):')}, in parse"
    assert places.of_function(parse) == places.of_function(functools.partial(parse, "{")) == here
    assert places.of_function(functools.wraps(parse)(lambda *words: None)) == here
    assert places.of_function(Recipe()).endswith(", in __call__")
    assert places.of_function(print) == ""


def test_cells_of_a_notebook_have_no_file():
    assert places.named("/tmp/ipykernel_77/1234.py", 3, "recipe") == "a notebook cell, line 3, in recipe"
    assert places.named("/home/me/train.py", 12, "<module>") == "train.py, line 12"

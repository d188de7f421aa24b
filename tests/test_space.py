"""Spaces: what is drawn, what a grid is, what is refused and how."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.errors import SpecError
from hopyard.search.define import Defined
from hopyard.space import Space, choice, loguniform, plain, quniform, randint, uniform

unit = st.floats(0.0, 1.0, exclude_max=True)
EDGES = [0.0, 5e-324, 0.5, math.nextafter(1.0, 0.0)]


@settings(derandomize=True)
@given(u=unit, low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6))
def test_uniform_stays_in_its_range(u, low, width):
    high = low + width
    assert low <= uniform(low, high).at(u) < high


@settings(derandomize=True)
@given(u=unit, low=st.floats(1e-12, 1e3), factor=st.floats(1.001, 1e9))
def test_loguniform_stays_in_its_range(u, low, factor):
    assert low <= loguniform(low, low * factor).at(u) < low * factor


@settings(derandomize=True)
@given(u=unit, low=st.integers(-(10**9), 10**9), width=st.integers(1, 10**9))
def test_randint_stays_in_its_range(u, low, width):
    value = randint(low, low + width).at(u)
    assert isinstance(value, int) and low <= value < low + width


def test_edges():
    assert uniform(1, 2).at(0.0) == 1.0
    assert [randint(3, 5).at(u) for u in EDGES] == [3, 3, 4, 4]
    assert [choice(["a", "b", "c"]).at(u) for u in EDGES] == ["a", "a", "b", "c"]
    assert loguniform(1e-4, 1e-1).at(0.0) == pytest.approx(1e-4)
    assert {quniform(0, 1, 0.25).at(u / 100) for u in range(100)} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert randint(3, 4).at(0.999) == 3


def test_loguniform_means_values_and_is_uniform_in_the_logarithm():
    """Cerebro took base 10 here and base e there."""
    natural = loguniform(1e-4, 1e-1)
    assert natural.at(1 / 3) == pytest.approx(1e-3)
    assert natural.at(2 / 3) == pytest.approx(1e-2)
    assert loguniform(math.e, math.e**3).at(0.5) == pytest.approx(math.e**2)
    assert loguniform(1e-4, 1e-1, grid=4).points() == pytest.approx((1e-4, 1e-3, 1e-2, 1e-1))


def test_grids_of_ranges():
    assert uniform(0, 1, grid=5).points() == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert uniform(0, 1, grid=1).points() == (0.5,)
    assert loguniform(1, 100, grid=1).points() == pytest.approx((10.0,))
    assert uniform(0, 1, grid=2).points() == (0.0, 1.0)
    assert tuple(quniform(0, 1, 0.5, grid=9).points()) == (0.0, 0.5, 1.0)
    assert list(randint(0, 3).points()) == [0, 1, 2]
    assert randint(0, 100, grid=3).points() == (0, 50, 99)
    assert list(randint(0, 3, grid=50).points()) == [0, 1, 2]
    assert randint(0, 5, grid=1).points() == (2,)


def test_integers_in_steps():
    width = randint(16, 129, step=16)
    values = [16, 32, 48, 64, 80, 96, 112, 128]
    assert list(width.points()) == values == sorted({width.at(u / 100) for u in range(100)})
    assert {type(width.at(u)) for u in EDGES} == {int}
    assert list(randint(0, 10, step=3).points()) == [0, 3, 6, 9] == list(randint(0, 10, 9, step=3).points())
    assert list(randint(0, 9, step=3).points()) == [0, 3, 6]
    assert tuple(randint(16, 129, grid=3, step=16).points()) == (16, 80, 128)
    assert [config["n"] for config in Space(n=randint(2, 7, step=np.int64(2))).grid()] == [2, 4, 6]
    assert randint(3, 4, step=1) == randint(3, 4)


def test_integers_whose_logarithm_is_uniform():
    number = randint(1, 1001, log=True)
    assert [number.at(u) for u in EDGES] == [1, 1, 22, 1000]
    assert randint(1, 1001, grid=4, log=True).points() == (1, 10, 100, 1000)
    assert randint(1, 101, grid=1, log=True).points() == (10,)


def test_a_grid_over_a_range_without_points_says_what_to_write():
    with pytest.raises(SpecError, match=r"loguniform\(0.0001, 0.1, grid=5\), or use hy.Random"):
        list(Space(lr=loguniform(1e-4, 1e-1)).grid())


def test_the_last_parameter_of_a_grid_is_the_fastest():
    space = Space(a=choice([1, 2]), b=choice(["x", "y"]), c=7)
    assert [(p["a"], p["b"], p["c"]) for p in space.grid()] == [(1, "x", 7), (1, "y", 7), (2, "x", 7), (2, "y", 7)]


CONDITIONAL = Space(
    optimizer=choice(["sgd", "adam"]),
    momentum=lambda config: uniform(0, 1, grid=2) if config["optimizer"] == "sgd" else None,
    twice=lambda config: 2 * config.get("momentum", 1.0),
)


def test_a_conditional_space():
    assert list(CONDITIONAL.grid()) == [
        {"optimizer": "sgd", "momentum": 0.0, "twice": 0.0},
        {"optimizer": "sgd", "momentum": 1.0, "twice": 2.0},
        {"optimizer": "adam", "twice": 2.0},
    ]
    asked = []

    def u(name):
        asked.append(name)
        return 0.75

    assert CONDITIONAL.draw(u) == {"optimizer": "adam", "twice": 2.0}
    assert asked == ["optimizer"]


def test_a_condition_cannot_change_the_configuration():
    space = Space(a=choice([1]), b=lambda config: config.clear() or 5)
    assert space.draw(lambda name: 0.0) == {"a": 1, "b": 5}


def test_a_condition_that_fails_names_itself_and_the_configuration():
    space = Space(a=choice([1]), b=lambda config: config["missing"])
    with pytest.raises(SpecError, match=r"Space\(b=…\).*\{'a': 1\}.*KeyError: 'missing'"):
        space.draw(lambda name: 0.0)


def test_none_is_a_value_of_a_choice_and_of_a_constant():
    assert Space(a=choice([None, 1]), b=None).draw(lambda name: 0.0) == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("values", "pair"),
    [
        ([1, 1, 2], "1 and 1"),
        ([1, True, 0], "1 and True"),
        ([False, 0], "False and 0"),
        (["a", 1, 1.0], r"1 and 1\.0"),
        ([[1, 2], [3], [1.0, 2]], r"\[1, 2\] and \[1\.0, 2\]"),
        ([[1, [0]], [True, [False]]], r"\[1, \[0\]\] and \[True, \[False\]\]"),
        ([None, None], "None and None"),
        (["[64, 64]", [64, 64]], r"'\[64, 64\]' and \[64, 64\]"),
        ([np.float32(0.5), 0.5], r"0\.5 and 0\.5"),
    ],
)
def test_values_that_a_search_cannot_tell_apart_are_refused(values, pair):
    """Bug: results of one were learned as the other's, and a study had one category for both."""
    with pytest.raises(SpecError, match=rf"choice\(.*\): {pair} are"):
        choice(values)
    with pytest.raises(SpecError, match=f"{pair} are"):
        Defined(lambda trial: trial.suggest_categorical("x", values)).walk(lambda name, values: None)
    assert choice([1, "1", None, "None", False, [], "", [1], [[1]]]).points()


def test_values_become_plain():
    values = choice([np.float32(0.5), np.int64(3), np.bool_(True), (1, (2, "x"))]).values
    assert values == (0.5, 3, True, [1, [2, "x"]])
    assert [type(value) for value in values] == [float, int, bool, list]


def test_numbers_and_arrays_of_numpy_are_as_python_s():
    assert choice(np.logspace(-3, -1, 3)) == choice(np.logspace(-3, -1, 3).tolist())
    assert choice(pd.Index(["a", "b"])) == choice(["a", "b"]) and choice(range(2)) == choice([0, 1])
    assert choice([np.array([8, 8]), (4,)]).values == ([8, 8], [4])
    assert uniform(np.float32(0.5), np.int64(1)) == uniform(0.5, 1)
    assert loguniform(np.float32(0.25), np.float16(0.5), grid=np.int8(3)) == loguniform(0.25, 0.5, grid=3)
    assert quniform(np.int32(0), np.int32(8), np.float32(0.5)) == quniform(0, 8, 0.5)
    made = randint(np.int64(2), np.uint8(9), grid=np.int64(3))
    assert made == randint(2, 9, grid=3)
    assert {type(value) for value in (made.low, made.high, made.grid, made.at(0.5))} == {int}
    config = Space(a=np.str_("x"), b=np.array([2])).draw(lambda name: 0.0)
    assert config == {"a": "x", "b": [2]} and type(config["a"]) is str


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: uniform(2, 1), r"uniform\(2, 1\): low must be"),
        (lambda: uniform(1, 1), r"uniform\(1, 1\): low must be"),
        (lambda: uniform(-1e308, 1e308), r"uniform\(-1e\+308, 1e\+308\): .*wider"),
        (lambda: uniform("a", 1), r"uniform: low must be .*, got 'a'"),
        (lambda: uniform(0, math.inf), r"uniform: high must be .*, got inf"),
        (lambda: uniform(True, 2), r"uniform: low must be .*, got True"),
        (lambda: uniform(0, 1, grid=0), r"uniform: grid, .* must be .*, got 0"),
        (lambda: uniform(0, 1, grid=2.0), r"uniform: grid, .*got 2\.0"),
        (lambda: loguniform(0, 1), r"loguniform\(0.0, 1.0\): both bounds must be"),
        (lambda: loguniform(-4, -1), r"loguniform\(-4.0, -1.0\): both bounds must be"),
        (lambda: quniform(0, 1, 0), r"quniform\(q=…\) must be .*, got 0"),
        (lambda: quniform(0, 1, 2), r"quniform\(.*, q=2\.0\): .* q <= 1\.0"),
        (lambda: randint(0.5, 3), r"randint\(…\) must be .*, got 0\.5 and 3"),
        (lambda: randint(3, 3), r"randint\(3, 3\): low must be"),
        (lambda: randint(0, 9, step=9), r"randint\(0, 9\): step must .*from 1 to 8, got 9"),
        (lambda: randint(0, 9, step=0.5), r"randint\(0, 9\): step must be .*, got 0.5"),
        (lambda: randint(1, 9, step=2, log=True), r"randint\(1, 9\): step and log = True are given"),
        (lambda: randint(0, 9, log=True), r"randint\(0, 9\): low must be > 0 with log=True, got 0"),
        (lambda: randint(1, 9, log=1), r"randint\(1, 9\): log must be True or False, got 1"),
        (lambda: Space(**{"": 1}), r"Space: .*name of a parameter .* ''"),
        (lambda: choice([]), r"choice\(…\) must be .*, got \[\]"),
        (lambda: choice("abc"), r"choice\(…\) must be .*, got 'abc'"),
        (lambda: choice(np.array([])), r"choice\(…\) must be .*, got array"),
        (lambda: choice(np.zeros((2, 2))), r"choice\(…\) must be .*, got array"),
        (lambda: choice([{"a": 1}]), r"choice\(.*\): {'a': 1} is a dict"),
        (lambda: choice([math.nan]), r"choice\(\[nan\]\): nan is not"),
        (lambda: Space(), r"Space\(\) must have"),
        (lambda: Space(a=object()), r"Space\(a=…\).*is a object"),
        (lambda: Space(a=b"x"), r"Space\(a=…\).*is a bytes"),
    ],
)
def test_refusals_of_spaces(make, words):
    with pytest.raises(SpecError, match=words):
        make()


def test_plain_names_the_place():
    with pytest.raises(SpecError, match=r"here: nan"):
        plain([1, [math.nan]], "here")


def test_a_list_that_is_perhaps_a_choice():
    with pytest.warns(UserWarning, match=r"hy\.choice\(\[0\.1, 0\.01\]\)"):
        assert Space(lr=[0.1, 0.01]).parameters == {"lr": [0.1, 0.01]}
    Space(layers=choice([[64, 64]]), one=[1])


def test_a_notebook_shows_each_parameter():
    space = Space(
        **{"<lr>": loguniform(1e-4, 0.1)},
        momentum=uniform(0, 1),
        act=choice(["relu", "<tanh>"]),
        depth=randint(1, 9),
        width=randint(1, 1001, log=True),
        units=randint(16, 129, step=16),
        dropout=quniform(0, 0.5, 0.1),
        bias=True,
        decay=lambda config: None,
    )
    shown = space._repr_html_()
    assert re.findall(r"<t[hd]>(.*?)</t[hd]>", shown) == [
        *("parameter", "kind", "values"),
        *("&lt;lr&gt;", "loguniform", "0.0001 to 0.1"),
        *("momentum", "uniform", "0 to 1"),
        *("act", "choice", "&#x27;relu&#x27;, &#x27;&lt;tanh&gt;&#x27;"),
        *("depth", "integers", "1 to 8"),
        *("width", "integers, by their logarithm", "1 to 1000"),
        *("units", "steps", "16 to 128 by 16"),
        *("dropout", "steps", "0 to 0.5 by 0.1"),
        *("bias", "constant", "True"),
        *("decay", "function", "of those above"),
    ]

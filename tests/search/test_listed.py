"""Grid, Random and Configs: pure functions of (space, seed, trial)."""

import math
from statistics import correlation

import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.search import listed
from hopyard.search.listed import Configs, Grid, Random
from hopyard.space import Space, choice, loguniform, randint, uniform

SPACE = Space(a=uniform(0, 1), b=uniform(0, 1), c=loguniform(1e-4, 1e-1), d=randint(0, 1000))


def configs(search, space=SPACE, seed=0):
    return search.open(space, seed).configs


def test_no_two_parameters_walk_together():
    """The diagonal of Cerebro: generators of one seed for two parameters gave correlation 1."""
    drawn = configs(Random(2000))
    columns = {name: [config[name] for config in drawn] for name in "abd"}
    columns["c"] = [math.log(config["c"]) for config in drawn]
    for x in "abcd":
        for y in "abcd":
            if x < y:
                assert abs(correlation(columns[x], columns[y])) < 0.08, (x, y)


def test_neither_neighbours_nor_seeds_walk_together():
    drawn = [config["a"] for config in configs(Random(2000))]
    assert abs(correlation(drawn[:-1], drawn[1:])) < 0.08
    other = [config["a"] for config in configs(Random(2000), seed=1)]
    assert abs(correlation(drawn, other)) < 0.08


def test_equal_seeds_give_equal_configurations():
    assert configs(Random(50)) == configs(Random(50))
    assert configs(Random(50)) != configs(Random(50), seed=1)
    assert configs(Random(50, seed=3), seed=1) == configs(Random(50, seed=3), seed=2)


def test_more_trials_begin_with_the_same_and_another_parameter_changes_none():
    assert configs(Random(50))[:20] == configs(Random(20))
    wider = Space(**SPACE.parameters, z=choice([1, 2]))
    assert [{k: v for k, v in c.items() if k != "z"} for c in configs(Random(20), wider)] == configs(Random(20))


def test_draws_fill_the_range():
    drawn = configs(Random(2000))
    logs = [math.log10(config["c"]) for config in drawn]
    assert all(-4 <= value < -1 for value in logs)
    for decade in (-4, -3, -2):
        assert 0.28 < sum(decade <= value < decade + 1 for value in logs) / 2000 < 0.39


def test_a_grid_is_every_point_once():
    found = configs(Grid(), Space(a=choice([1, 2]), b=uniform(0, 1, grid=3)))
    assert found == [{"a": a, "b": b} for a in (1, 2) for b in (0.0, 0.5, 1.0)]


def test_a_grid_over_a_range_is_refused():
    with pytest.raises(SpecError, match="grid=5"):
        configs(Grid())


def test_a_grid_that_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(listed, "LIMIT", 10)
    with pytest.raises(SpecError, match=r"more than 10 points; use hy.Random"):
        configs(Grid(), Space(a=randint(0, 4), b=randint(0, 4)))


def test_a_sampler_gives_copies_and_ends():
    sampler = Configs([{"lr": 1, "layers": (8, 8)}]).open(None, 0)
    first = sampler.ask(0)
    assert first == {"lr": 1, "layers": [8, 8]} and sampler.total == 1
    first["lr"] = 2
    assert sampler.ask(0)["lr"] == 1 and sampler.ask(1) is None


def test_numbers_of_numpy_are_as_python_s():
    assert configs(Random(np.int64(3), seed=np.int64(5)), SPACE) == configs(Random(3, seed=5), SPACE)
    (config,) = configs(Configs([{np.str_("lr"): np.float32(0.5)}]), None)
    assert config == {"lr": 0.5} and [type(name) for name in config] == [str]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Random(10**9), r"Random: trials must .* 1000000, got 1000000000"),
        (lambda: Random(0), r"Random: trials must be .*, got 0"),
        (lambda: Random(True), r"Random: trials must be .*, got True"),
        (lambda: Random(1.5), r"Random: trials .*got 1\.5"),
        (lambda: Random(1, seed=1.5), r"Random: seed must be .*, got 1\.5"),
        (lambda: Configs([]), r"Configs\(…\) must be .*, got \[\]"),
        (lambda: Configs([1]), r"Configs\(…\) must be .*, got \[1\]"),
        (lambda: Configs([{"a": object()}]).open(None, 0), "Configs, a: .* is a object"),
        (lambda: Random(1).open(None, 0), r"space must be .*hy.Random\(…\) .* got None"),
        (lambda: Grid().open({"a": 1}, 0), r"space must be .*hy.Grid\(…\) .* got {'a': 1}"),
    ],
)
def test_refusals_of_configs(make, words):
    with pytest.raises(SpecError, match=words):
        make()

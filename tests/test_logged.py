"""What a recipe logs on a partition: means and histograms that depend on no order, limits, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
import random
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopyard as hy
from hopyard.agent.runs.warned import TEXT
from hopyard.core.runs.events import EDGES, Histogram, LoggedValue, edge
from hopyard.errors import SpecError
from hopyard.logged import (
    BUCKETS,
    HISTOGRAM_BYTES,
    NAME,
    NUMBER_BYTES,
    Collected,
    Collector,
    Tally,
    joined,
    left_out_text,
    merged,
    points_of,
    room,
)
from hopyard.spec import RunSpec

ROOM = 4096


def collected(calls: Sequence[tuple[Any, Any]]) -> Collected:
    collector, found = Collector(), Collected()
    ctx = hy.RecipeContext("cpu", {}, None, 0, 0, _log=collector.log)
    with collector.collecting(found):
        for name, value in calls:
            ctx.log(name, value)
    return found


def points(*calls: tuple[Any, Any]) -> dict[str, LoggedValue]:
    logged, left_out = points_of(collected(calls), ROOM)
    assert not left_out
    return logged


def histogram(*arrays: Any) -> Histogram:
    found = points(*[("h", array) for array in arrays])["h"]
    assert isinstance(found, Histogram)
    return found


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        Fraction(2),
        np.float64(2),
        np.float16(2),
        np.int8(2),
        np.array([[2.0]]),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor([2], dtype=torch.int16),
        torch.tensor(2.0, dtype=torch.bfloat16),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_a_number_of_any_kind(value: Any) -> None:
    assert points(("n", 1.0), ("n", value)) == {"n": 1.5}


def test_the_mean_of_booleans_is_their_share() -> None:
    assert points(("clipped", True), ("clipped", np.bool_(False)), ("clipped", torch.tensor(True))) == {
        "clipped": 2 / 3
    }


def test_a_mean_is_rounded_once_whatever_the_order() -> None:
    values = [1e16, 1.0, -1e16, 0.1] * 5
    exact = float(sum(map(Fraction, values)) / len(values))
    for seed in range(20):
        random.Random(seed).shuffle(values)
        halves = [collected([("n", value) for value in part]) for part in (values[:7], values[7:])]
        (found, _), (again, _) = points_of(joined(halves), ROOM), points_of(joined(halves[::-1]), ROOM)
        assert found == again == points(*[("n", value) for value in values])
        assert found["n"] == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, math.nan], math.nan),
        ([1.0, math.inf], math.inf),
        ([1.0, -math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([1.7e308, 1.7e308], 1.7e308),
    ],
)
def test_a_mean_shows_that_a_number_was_none(values: list[float], mean: float) -> None:
    assert points(*[("n", value) for value in values])["n"] == pytest.approx(mean, nan_ok=True)


# ------------------------------------------------------------------------------------------ arrays


def test_a_histogram_says_what_was_in_the_arrays() -> None:
    arrays = [np.random.default_rng(seed).normal(size=(40, 25)).astype(np.float32) for seed in range(3)]
    found = histogram(*arrays)
    values = np.concatenate(arrays).astype(np.float64).reshape(-1)
    assert (found.min, found.max, found.count) == (values.min(), values.max(), values.size)
    assert found.sum == pytest.approx(values.sum(), abs=1e-9)
    assert found.sum_squares == pytest.approx(np.square(values).sum())
    edges = found.edges()
    assert len(edges) - 1 == len(found.counts) == BUCKETS and edges == sorted(set(edges))
    assert np.histogram(values, edges)[0].tolist() == list(found.counts)
    assert max(found.counts) < values.size / 10, "no bucket has much more than others"


def test_counts_add_up_in_any_order_and_split() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=5000), np.zeros(700), 1e-9 * rng.normal(size=300), [1e20, -0.0]])
    whole = histogram(values)
    assert whole.count == 6002
    for seed in range(5):
        dice = np.random.default_rng(seed)
        parts = np.split(dice.permutation(values), np.sort(dice.integers(0, values.size, 6)))
        calls = [("h", part.reshape(1, -1)) for part in parts]
        members = [collected(calls[:2]), collected(calls[2:5]), collected(calls[5:])]
        for each in (histogram(*parts), *(points_of(joined(m), ROOM)[0]["h"] for m in (members, members[::-1]))):
            assert isinstance(each, Histogram)
            same = msgspec.structs.replace(each, sum=whole.sum, sum_squares=whole.sum_squares)
            assert same == whole and each.sum_squares == pytest.approx(whole.sum_squares)


def test_the_sums_of_the_same_calls_are_equal_to_the_last_bit() -> None:
    calls = [("h", np.random.default_rng(seed).normal(size=100)) for seed in range(9)]
    expected = points(*calls)
    for seed in range(5):
        random.Random(seed).shuffle(calls)
        assert points(*calls) == expected
        assert points_of(joined([collected(calls[:4]), collected(calls[4:])]), ROOM)[0] == expected


@given(st.floats(-1.7e308, 1.7e308))
def test_a_number_is_in_its_fine_bucket(value: float) -> None:
    tally = Tally()
    tally.add(np.array([value]))
    ((bucket, count),) = tally.buckets.items()
    low, high = edge(bucket), edge(bucket + 1)
    assert count == 1 and (low < value <= high if value < 0 else low <= value <= high)
    assert value >= high or high - low <= max(abs(value) / 8, 2.0**-1025)


def test_edges_go_up_to_the_largest_number_and_mirror_each_other() -> None:
    edges = [edge(number) for number in range(-EDGES, EDGES + 1)]
    assert edges == sorted(set(edges)) and edges == [-each for each in reversed(edges)]
    assert edges[-1] == np.finfo(np.float64).max and edge(0) == 0.0 and edge(8 * 1023) == 1.0


def test_merging_keeps_edges_where_many_numbers_or_wide_buckets_are() -> None:
    one = 8 * 1023  # the edge 1.0; buckets above are 0.125 wide
    assert merged({one: 5, one + 1: 7}, 2) == ([one, one + 1, one + 2], [5, 7])
    assert merged({one: 5, one + 1: 1, one + 2: 2}, 2) == ([one, one + 1, one + 3], [5, 3])
    assert merged({one: 1, one + 1: 1, one + 2: 1}, 2) == ([one, one + 2, one + 3], [2, 1]), "the lower of equal ones"
    assert merged({one: 9, one + 3: 9}, 3) == ([one, one + 1, one + 3, one + 4], [9, 0, 9]), "a gap is empty"
    assert merged({0: 1000, one: 1}, 2) == ([0, 1, one + 1], [1000, 1])


def test_the_widest_of_arrays() -> None:
    bits = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, 20_000, dtype=np.int64)
    values = bits.view(np.float64)
    finite = values[np.isfinite(values)]
    found = histogram(values)
    assert (found.count, found.nonfinite, sum(found.counts)) == (finite.size, values.size - finite.size, finite.size)
    assert found.sum_squares == math.inf and len(found.counts) == BUCKETS


def test_what_is_not_finite_is_counted_apart() -> None:
    found = histogram(np.array([1.0, math.nan, 3.0, math.inf, -math.inf]))
    assert (found.min, found.max, found.count, found.sum, found.nonfinite) == (1.0, 3.0, 2, 4.0, 3)
    assert histogram(np.full(3, math.nan)) == Histogram(0.0, 0.0, 0, 0.0, 0.0, nonfinite=3)


def test_numbers_of_a_name_with_arrays_are_in_its_histogram() -> None:
    """The last batch may have one row."""
    found = points(("norms", np.array([1.0, 2.0])), ("norms", np.array([5.0])))["norms"]
    assert found == points(("norms", 5.0), ("norms", np.array([1.0, 2.0])))["norms"]
    assert found == histogram(np.array([1.0, 2.0, 5.0]))


def test_an_array_is_copied_and_an_empty_one_is_ignored() -> None:
    array = np.array([1.0, 2.0])
    collector, found = Collector(), Collected()
    with collector.collecting(found):
        collector.log("h", array)
        array[:] = 9
        collector.log("none", np.zeros((0, 3)))
    (name,) = points_of(found, ROOM)[0]
    assert name == "h" and found.arrays["h"].max == 2.0


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.0, 3.0], requires_grad=True),
        torch.tensor([[1, 3]], dtype=torch.uint8),
        torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
        np.array([1, 3], dtype=np.int64),
        np.array([1, 3], dtype=np.float16)[::-1],
    ],
    ids=lambda value: f"{type(value).__name__} {value.dtype}",
)
def test_arrays_of_any_kind(values: Any) -> None:
    assert histogram(values) == histogram(np.array([1.0, 3.0]))


# ------------------------------------------------------------------------------------------ room


def test_the_room_of_a_partition_follows_from_the_run_alone() -> None:
    assert room(RunSpec(epochs=2, partitions=4, validation=0)) == 4 << 10
    assert room(RunSpec(epochs=32, partitions=32, validation=0)) == 4 << 10
    spec = RunSpec(epochs=100, partitions=100, validation=0)
    assert room(spec) == 419 and room(spec) * spec.steps <= 4 << 20


def test_means_come_first_and_the_rest_is_left_out() -> None:
    array = np.arange(50.0)
    names = [*"fedcba"]
    calls = [*((name, array) for name in names), *((f"n{number}", number) for number in range(3))]
    logged, left_out = points_of(collected(calls), 3 * (NUMBER_BYTES + 4) + 2 * (HISTOGRAM_BYTES + 3) + 5)
    assert [*logged] == ["n0", "n1", "n2", "a", "b"] and left_out == ["c", "d", "e", "f"]
    random.Random(0).shuffle(calls)
    assert [*points_of(collected(calls), ROOM)[0]] == ["n0", "n1", "n2", "a", "b", "c"]


@pytest.mark.parametrize("scale", [1, 10**14])
def test_points_take_no_more_than_their_room(scale: int) -> None:
    """Also with more digits than the size of a point has in mind."""
    wide = np.random.default_rng(0).normal(size=20_000) ** 3 / 3e100
    found = collected([(name * 25, wide) for name in "abcdef"] + [(f'"quoted" {n} é', -1 / 3e-200) for n in range(99)])
    for tally in found.arrays.values():
        tally.buckets = {bucket: count * scale for bucket, count in tally.buckets.items()}
    for limit in (0, 40, 419, 1100, 4096):
        logged, left_out = points_of(found, limit)
        assert len(logged) + len(left_out) == 105
        assert len(msgspec.json.encode(logged)) <= max(limit, 2)
    (histograms, _) = points_of(Collected(arrays=found.arrays), 4096)
    sizes = {len(msgspec.json.encode({name: point})) for name, point in histograms.items()}
    assert len(logged) > 50 and all((size > HISTOGRAM_BYTES + 27) == (scale > 1) for size in sizes)


def test_the_warning_fits_however_long_the_names_are() -> None:
    text = left_out_text(["😀" * NAME] * 1000, 4096)
    assert len(f"UserWarning: {text}") <= TEXT and "and 997 more" in text and "4,096 bytes" in text
    assert "no room for 'a', 'b'. A" in left_out_text(["a", "b"], 419)


# ------------------------------------------------------------------------------------------ refused, ignored


@pytest.mark.parametrize("name", ["", 3, None, "a\nb", "a\0", "x" * 101, "\udce9", ["a"]])
def test_bad_names(name: Any) -> None:
    with pytest.raises(SpecError, match=r"^ctx\.log: a name"):
        collected([(name, 1.0)])
    with pytest.raises(SpecError, match=r"^ctx\.log: a name"):
        collected([("n", 1.0), (name, np.zeros(2))])


class Symbolic:
    """As tensors inside of a compiled step are."""

    shape, dtype = (2, 3), "float32"

    def __array__(self, *arguments: Any) -> Any:
        raise NotImplementedError("Cannot convert a symbolic tensor to a NumPy array")


@pytest.mark.parametrize(
    "value",
    [
        *("1.0", b"1", None, [1.0, 2.0], {"a": 1}, 1j, 10**400, object()),
        *(np.array(["1"]), np.array([1j, 2]), np.array([None, 1]), np.array("2020-01-01", "M8[D]"), np.zeros(2, "V3")),
        *(torch.zeros(2, dtype=torch.complex64), torch.zeros(2, device="meta"), Symbolic()),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_bad_values(value: Any) -> None:
    with pytest.raises(SpecError, match=r"^ctx\.log\('n', …\)"):
        collected([("n", 1.0), ("n", value)])


def test_calls_are_ignored_while_nothing_trains() -> None:
    collector, found = Collector(), Collected()
    collector.log("n", object())
    with collector.collecting(found):
        pass
    collector.log("n", 1.0)
    hy.RecipeContext("cpu", {}, None, 0, 0).log("n", 1.0)
    assert found == Collected()


def test_threads_log_to_the_run_whose_context_they_have() -> None:
    collectors = [Collector() for _ in range(2)]
    found = [Collected() for _ in range(2)]

    def work(number: int) -> None:
        for each in range(500):
            collectors[number].log("n", float(each))
            collectors[number].log("h", np.full(3, float(number)))

    with collectors[0].collecting(found[0]), collectors[1].collecting(found[1]):
        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(2):
        logged, _ = points_of(found[number], ROOM)
        histogram = logged["h"]
        assert isinstance(histogram, Histogram) and (histogram.count, histogram.max) == (3000, number)
        assert len(found[number].numbers["n"]) == 8 * 1000 and logged["n"] == 249.5


def test_copies_of_a_context_log_where_it_does_and_a_pickled_one_does_not() -> None:
    collector, found = Collector(), Collected()
    ctx = hy.RecipeContext("cpu", {}, None, 0, 0, _log=collector.log)
    with collector.collecting(found):
        copy.deepcopy(ctx).log("n", 1.0)
        copy.copy(ctx).log("n", 2.0)
        pickle.loads(pickle.dumps(ctx)).log("n", 9.0)
    assert points_of(found, ROOM)[0] == {"n": 1.5}


def test_the_mean_of_large_numbers_is_finite() -> None:
    assert points(("big", 1e308), ("big", 1.6e308)) == {"big": pytest.approx(1.3e308)}
    assert points(("big", 1e308), ("big", math.inf)) == {"big": math.inf}

"""Frozen values are validated when they are made; a message names field, value, what is allowed."""

import math

import numpy as np
import pytest

from hopyard.data.partitions.loader import sizes
from hopyard.errors import SpecError
from hopyard.parallel import Hopper
from hopyard.spec import RecipeContext, Ref, RunSpec, Timeouts, Unit, better

GOOD = {"epochs": 1, "partitions": 1, "validation": 0}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("epochs", 0, ">= 1"),
        ("epochs", 1.5, "must be an integer"),
        ("epochs", True, "must be an integer"),
        ("partitions", -1, ">= 1"),
        ("validation", -1, ">= 0"),
        ("group", "auto", "must be an integer"),
        ("strikes", 0, ">= 1"),
        ("seed", 1.0, "must be an integer"),
        ("mode", "best", '"min" or "max"'),
        ("exact", "no", 'True, False or "warn"'),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(field, value, allowed):
    with pytest.raises(SpecError) as caught:
        RunSpec(**{**GOOD, field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} must be ") and allowed in message and message.endswith(f", got {value!r}")
    assert caught.value.exit_code == 2 and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [0, -1.0, "long", True, math.inf, math.nan])
@pytest.mark.parametrize("field", ["heartbeat_timeout", "stall_timeout", "unit_timeout", "durable_timeout"])
def test_a_bad_timeout_is_named_with_its_value_and_what_is_allowed(field, value):
    with pytest.raises(SpecError) as caught:
        Timeouts(**{field: value})
    assert str(caught.value).startswith(f"{field} must be ") and str(caught.value).endswith(f", got {value!r}")
    assert ("None" in str(caught.value)) == (field == "unit_timeout"), "what is allowed"


def test_only_a_unit_may_take_as_long_as_it_likes():
    assert Timeouts().unit_timeout is None
    for field in ("heartbeat_timeout", "stall_timeout"):
        with pytest.raises(SpecError, match=f"{field} must be .*, got None"):
            Timeouts(**{field: None})


def test_steps_and_names():
    assert RunSpec(epochs=3, partitions=4, validation=0).steps == 12
    assert str(Ref(1, 2, 3)) == "1-2-3"
    assert Unit(1, 0, "train", 0, (0,), None).step == 0
    assert Unit(1, 0, "train", 0, (0,), Ref(0, 5, 1)).step == 5


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        RunSpec(**GOOD).epochs = 2
    with pytest.raises(AttributeError):
        Ref(0, 0, 0).step = 1


@pytest.mark.parametrize("group", [0, -1, True, 1.0, "on", None])
def test_hopper_refuses(group):
    with pytest.raises(SpecError, match="Hopper"):
        Hopper(group=group)
    assert Hopper(group="off").group == "off" and Hopper(3).group == 3 and Hopper().group == "auto"


def test_better_is_strict_and_what_is_not_finite_is_worst():
    assert better("min", 1.0, 2.0) and not better("min", 2.0, 1.0) and not better("min", 1.0, 1.0)
    assert better("max", 2.0, 1.0) and not better("max", 1.0, 2.0)
    for mode in ("min", "max"):
        for worst in (math.nan, math.inf, -math.inf, None):
            assert better(mode, 0.0, worst) and not better(mode, worst, 0.0) and not better(mode, worst, worst)


@pytest.mark.parametrize("name", ["heartbeat_timeout", "stall_timeout", "unit_timeout", "durable_timeout"])
def test_seconds_of_any_kind(name: str) -> None:
    assert getattr(Timeouts(**{name: np.int64(20)}), name) == 20.0
    assert type(getattr(Timeouts(**{name: np.float64(0.5)}), name)) is float
    for bad in (10**400, True, "1", 0, math.nan, math.inf):
        with pytest.raises(SpecError, match=name):
            Timeouts(**{name: bad})


@pytest.mark.parametrize("rows", range(1, 13))
def test_the_batches_of_an_epoch_are_those_that_the_loader_yields(rows):
    """Bug: a partition of one row counted twice with batch_size 1, and a schedule of that length never ended."""
    context = RecipeContext("cpu", {}, None, 0, 0, (rows, 7))
    for size in range(1, 7):
        assert context.batches(size) == len(sizes(rows, size)) + len(sizes(7, size)), size

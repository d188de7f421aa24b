"""The journal's words: what is written is read back, for ever."""

import math
import random
import struct

import msgspec
import pytest

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.codec import _Dispatch, _JournalUnit, decode, encode
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Closed,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Finished,
    Granted,
    Histogram,
    Interrupted,
    Joined,
    Paused,
    Proposed,
    Resumed,
    Stopped,
)
from hopyard.errors import JournalError
from hopyard.spec import Array, ModelInfo, Part, Ref, RunSpec, Unit, Warned

SPEC = RunSpec(epochs=2, partitions=3, validation=1, trials=4, metric="loss", exact=True)
WARNED = (Warned("UserWarning: NaN", "train.py, line 3, in loss"),)
UNIT = Unit(3, 1, "validate", 0, (0, 2), Ref(1, 3, 2))
UNIT_OF_FOLD = Unit(3, 1, "fold", 0, (0, 2), Ref(1, 3, 2))
PART = Part(2, {"loss": (0.1, 7.0), "bins": (Array.of([1.0, 2.5]), 7.0)}, 0.25)
HISTOGRAM = Histogram(-1.0, 3e300, 4, 3e300, math.inf, -8185, (1, 16375), (1, 3), 2)
LINES = [
    Began(at=1.5, spec=SPEC, fingerprint={"torch": "2.9", "threads": 1}),
    Proposed(at=2.0, trial=1, config={}, count=3, attributes={"a": [1]}, offset=7),
    Proposed(at=2.0, trial=0, config={"lr": 1e-5, "name": "NaN", "deep": [1, None, True, [0.5]]}),
    Exhausted(at=2.0),
    Joined(at=2.0, slot=3, host="h", pid=77),
    Joined(at=2.0, slot=4, host="h", pid=78),
    Checked(at=2.0, slot=3, trial=0, faults=("no label",), names=("loss",), trace="Traceback", warnings=WARNED),
    Check(at=2.0, slot=3, trial=0),
    Dispatch(at=2.0, slot=3, unit=UNIT),
    Dispatch(at=2.0, slot=3, unit=Unit(4, 1, "fold", 0, (), None)),
    Done(at=3.0, slot=3, lease=3, parts=(PART,), seconds=1.0, hop_bytes=5, values={"auc": 0.5}),
    Done(at=3.0, slot=3, lease=3, parts=(), seconds=1.0, model=ModelInfo("", 8, True)),
    Done(at=3.0, slot=3, lease=3, parts=(), seconds=1.0, fetched_bytes=1, exchanged_bytes=2, others=((3, 4), (0, 5))),
    Done(
        at=3.0,
        slot=3,
        lease=3,
        parts=(),
        seconds=1.0,
        logged={7: {"norm": 1.0, "NaN": math.inf, "h": HISTOGRAM}, 8: {}},
    ),
    Checked(at=2.0, slot=3, trial=0, faults=(), names=("loss",), fetched_bytes=1, peak_bytes=2),
    Done(at=3.0, slot=3, lease=3, parts=(), seconds=1.0, values={"c": math.inf}, warnings=WARNED),
    Durable(at=3.0, slot=3, ref=Ref(1, 3, 2), digest="ab", bytes=10),
    Failed(at=3.0, slot=3, lease=3, fault="data", error="é “quoted”\n", trace="…", warnings=WARNED),
    Lost(at=3.0, slot=3, reason="killed"),
    Paused(at=3.0, trial=1, reason="rung 1: 2nd of 3, top 1/3 goes on"),
    Granted(at=3.0, trial=1, target=6, reason="rung 1: 1st of 3, top 1/3 goes on"),
    Granted(at=3.0, trial=1, target=6, reason="stop= raised", warnings=WARNED),
    Stopped(at=3.0, trial=1, reason="the search is over"),
    Closed(at=3.0, reason="max_time=1 seconds are over"),
    Exhausted(at=3.0, reason="the search raised ValueError"),
    Tick(at=4.0),
    Resumed(at=5.0, fingerprint={"torch": "2.9"}),
    Interrupted(at=6.0, reason="INT"),
    Finished(at=7.0, status="partial"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: type(line).__name__)
def test_round_trip(line):
    text = encode(line)
    assert b"\n" not in text and decode(text) == line
    assert msgspec.json.decode(text)["type"] == type(line).__name__


def test_floats_keep_every_bit():
    at = 1_700_000_000.123_456_7
    assert decode(encode(Tick(at=at))).at == at
    assert decode(encode(Proposed(at=0.0, trial=0, config={"x": 0.1 + 0.2, "y": 5e-324}))).config == {
        "x": 0.1 + 0.2,
        "y": 5e-324,
    }


def test_nan_and_infinities_of_metrics():
    sums = {"a": (math.inf, 1.0), "b": (Array.of([-math.inf, math.nan, 1.0]), 2.0), "c": (1.0, -math.inf)}
    logged = {3: {"n": math.nan, "i": -math.inf}, 4: {"h": HISTOGRAM}}
    done = Done(
        at=0.0, slot=0, lease=1, parts=(Part(0, sums, 0.5),), seconds=0.5, values={"c": math.nan}, logged=logged
    )
    text = encode(done)
    assert b'"Infinity"' in text and b'"-Infinity"' in text and b'"NaN"' in text and b"null" not in text
    back = decode(text)
    assert isinstance(back, Done)
    assert back.parts[0].sums["a"] == (math.inf, 1.0)
    assert back.parts[0].sums["c"] == (1.0, -math.inf)
    low, nan, one = back.parts[0].sums["b"][0].numbers()
    assert (low, one) == (-math.inf, 1.0) and math.isnan(nan) and math.isnan(back.values["c"])
    assert math.isnan(back.logged[3]["n"]) and back.logged[3]["i"] == -math.inf and back.logged[4] == logged[4]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"type":"Unheard","at":1.0}',
        b'{"at":1.0}',
        b'{"type":"Tick"}',
        b'{"type":"Tick","at":"soon"}',
        b'{"type":"Lost","at":1.0,"slot":"NaN","reason":"x"}',
        b'{"type":"Done","at":1.0,"slot":0,"lease":1,"parts":[],"seconds":"Infinit"}',
        b'{"type":"Failed","at":1.0,"slot":0,"lease":1,"fault":"weather","error":""}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_fact_is_refused(text):
    with pytest.raises(JournalError, match="no fact of format 1"):
        decode(text)


def test_newer_fields_are_ignored_and_newer_formats_refused():
    line = decode(b'{"type":"Tick","at":1.0,"moon":"full"}')
    assert line == Tick(at=1.0)
    newer = decode(encode(Began(at=0.0, spec=SPEC, format=2)))
    assert isinstance(newer, Began) and newer.format == 2  # store.journal refuses it


def test_a_line_leaves_out_what_no_later_driver_can_use():
    totals = {"auc": (Array.of([1.0, math.inf]), 2.0)}
    full = Unit(3, 1, "fold", 0, (0, 2), Ref(1, 3, 2), "shm-1", "ab", totals)
    assert decode(encode(Dispatch(at=2.0, slot=3, unit=full))) == Dispatch(at=2.0, slot=3, unit=UNIT_OF_FOLD)
    done = Done(at=3.0, slot=3, lease=3, parts=(PART,), seconds=1.0, memory_key="m")
    assert decode(encode(done)) == msgspec.structs.replace(done, memory_key="")


def test_every_other_field_is_in_the_journal():
    """A field that is added to a unit is written, or is one of those that are left out on purpose."""
    assert set(Unit.__struct_fields__) == {*_JournalUnit.__struct_fields__, "memory_key", "digest", "totals", "model"}
    assert set(Dispatch.__struct_fields__) == set(_Dispatch.__struct_fields__)


def test_three_lines_of_a_unit_are_short():
    """Of a run of 10,000 trials, ten epochs and eight partitions, late in it."""
    at = 1_760_000_000.123456
    sums = {"loss": (107.49139528992097, 4096.0), "accuracy": (3412.0, 4096.0)}
    unit = Unit(823456, 5234, "train", 7, (3,), Ref(5234, 59, 399999), "17-1a2b3c4d-17.36", "a1" * 32)
    lines = [
        Dispatch(at=at, slot=17, unit=unit),
        Done(
            at=at,
            slot=17,
            lease=823456,
            parts=(Part(3, sums, 1.012345),),
            seconds=1.034567,
            memory_key="17-1a2b3c4d-17.36",
            hop_seconds=0.012345,
            hop_bytes=1234567,
        ),
        Durable(at=at, slot=17, ref=Ref(5234, 60, 423456), digest="a1" * 32, bytes=1234567),
    ]
    assert sum(len(encode(line)) + 1 for line in lines) <= 500


def unit_bytes(lease, partition, **costs):
    """What a unit adds to the journal of a run of 16 trials on 8 workers."""
    at, sums = 1_760_000_000.123456, {"loss": (107.49139528992097, 4096.0), "accuracy": (3412.0, 4096.0)}
    start = Ref(15, 59, lease - 1)
    lines = [
        Dispatch(at=at, slot=7, unit=Unit(lease, 15, "train", 7, (partition,), start)),
        Done(
            at=at,
            slot=7,
            lease=lease,
            parts=(Part(partition, sums, 1.012345),),
            seconds=1.034567,
            hop_seconds=0.012345,
            hop_bytes=1234567,
            **costs,
        ),
        Durable(at=at, slot=7, ref=Ref(15, 60, lease), digest="a1" * 32, bytes=1234567),
    ]
    return sum(len(encode(line)) + 1 for line in lines)


def test_the_costs_of_a_unit_are_short():
    """A gang exchanges in each unit; a worker fetches each partition once, and its memory grows at first."""
    assert unit_bytes(1279, 3, exchanged_bytes=123_456_789) <= 500
    peak = {"peak_bytes": 1_234_567_890, "others": ((234_567_890, 1_234_567_890),) * 3}
    first = [unit_bytes(1279, n, fetched_bytes=234_567_890, **(peak if n < 2 else {})) for n in range(8)]
    later = [unit_bytes(1279, n) for n in range(8)] * 9  # epochs
    assert sum(first + later) / len(first + later) <= 500


@pytest.mark.parametrize("kind", ["noise", "counts", "zeros", "few"])
def test_arrays_keep_every_bit_in_little_space(kind):
    dice = random.Random(0)
    numbers = {
        "noise": [dice.gauss(0, 1) for _ in range(1000)],
        "counts": [float(dice.randrange(4096)) for _ in range(1000)],
        "zeros": [0.0] * 100_000,
        "few": [-0.0, math.nan, math.inf, 5e-324, *map(float, range(16))],
    }[kind]
    array = Array.of(numbers)
    sums = {"loss": (1.0, 2.0), "bins": (array, 7.0)}
    text = encode(Done(at=0.0, slot=0, lease=1, parts=(Part(0, sums, 0.5),), seconds=0.5))
    back = decode(text).parts[0].sums["bins"][0]
    assert [struct.pack("<d", x) for x in back.numbers()] == [struct.pack("<d", x) for x in numbers]
    without = encode(Done(at=0.0, slot=0, lease=1, parts=(Part(0, {"loss": (1.0, 2.0)}, 0.5),), seconds=0.5))
    assert len(text) - len(without) - len(',"bins":[,7.0]') <= 1.4 * 8 * len(numbers)
    assert len(array.data) <= 8 * len(numbers)

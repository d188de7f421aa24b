"""The journal's words: what is written is read back, for ever."""

import math

import msgspec
import pytest

from hopyard.core.events import (
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Finished,
    Interrupted,
    Joined,
    Lost,
    Proposed,
    Resumed,
    Tick,
    decode,
    encode,
)
from hopyard.errors import JournalError
from hopyard.spec import Part, Ref, RunSpec, Unit

SPEC = RunSpec(epochs=2, partitions=3, validation=1, trials=4, metric="loss", exact=True)
UNIT = Unit(3, 1, "validate", 0, (0, 2), Ref(1, 3, 2), "shm-1", "ab")
PART = Part(2, {"loss": (0.1, 7.0), "bins": ([1.0, 2.5], 7.0)}, 0.25)
LINES = [
    Began(at=1.5, spec=SPEC, fingerprint={"torch": "2.9", "threads": 1}),
    Proposed(at=2.0, trial=0, config={"lr": 1e-5, "name": "NaN", "deep": [1, None, True, [0.5]]}),
    Exhausted(at=2.0),
    Joined(at=2.0, slot=3, host="h", pid=77, holds=(0, 1)),
    Joined(at=2.0, slot=4, host="h", pid=78),
    Checked(at=2.0, slot=3, trial=0, faults=("no label",), names=("loss",)),
    Check(at=2.0, slot=3, trial=0),
    Dispatch(at=2.0, slot=3, unit=UNIT),
    Dispatch(at=2.0, slot=3, unit=Unit(4, 1, "fold", 0, (), None, totals={"auc": ([1.0, 0.0], 3.0)})),
    Done(at=3.0, slot=3, lease=3, parts=(PART,), seconds=1.0, where="m", hop_bytes=5, values={"auc": 0.5}),
    Durable(at=3.0, slot=3, ref=Ref(1, 3, 2), digest="ab", bytes=10),
    Failed(at=3.0, slot=3, lease=3, fault="data", error="é “quoted”\n", trace="…"),
    Lost(at=3.0, slot=3, reason="killed"),
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
    sums = {"a": (math.inf, 1.0), "b": ([-math.inf, math.nan, 1.0], 2.0)}
    done = Done(at=0.0, slot=0, lease=1, parts=(Part(0, sums, 0.5),), seconds=0.5, values={"c": math.nan})
    text = encode(done)
    assert b'"Infinity"' in text and b'"-Infinity"' in text and b'"NaN"' in text and b"null" not in text
    back = decode(text)
    assert isinstance(back, Done)
    assert back.parts[0].sums["a"] == (math.inf, 1.0)
    low, nan, one = back.parts[0].sums["b"][0]
    assert (low, one) == (-math.inf, 1.0) and math.isnan(nan) and math.isnan(back.values["c"])


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
def test_what_is_no_fact_is_refused_in_words(text):
    with pytest.raises(JournalError, match="no fact of format 1"):
        decode(text)


def test_a_newer_version_may_add_fields_and_is_told_by_its_format():
    line = decode(b'{"type":"Tick","at":1.0,"moon":"full"}')
    assert line == Tick(at=1.0)
    newer = decode(encode(Began(at=0.0, spec=SPEC, format=2)))
    assert isinstance(newer, Began) and newer.format == 2  # store.journal refuses it


def test_nan_and_infinities_in_the_totals_of_a_fold():
    totals = {"auc": ([1.0, math.inf, math.nan], 2.0)}
    unit = Unit(3, 0, "fold", 1, (), None, totals=totals)
    text = encode(Dispatch(at=1.0, slot=0, unit=unit))
    assert b"null" not in text.replace(b'"start":null', b"")
    values, rows = decode(text).unit.totals["auc"]
    assert values[:2] == [1.0, math.inf] and math.isnan(values[2]) and rows == 2.0
    done = Done(at=0.0, slot=0, lease=1, parts=(Part(0, {"loss": (1.0, math.nan)}, 0.5),), seconds=0.5)
    assert math.isnan(decode(encode(done)).parts[0].sums["loss"][1])

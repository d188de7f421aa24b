"""What each host holds and has moved, from lines written by hand."""

import json

import msgspec
import pytest

from hopyard.core.facts import Lost
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Failed,
    Formed,
    Joined,
    Left,
    Placed,
    Proposed,
    Resumed,
    Yielded,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.spec import Part, PartitionRange, Ref, RunSpec, Unit
from hopyard.views.hosts import plain, table
from hopyard.views.report import facts, report
from hopyard.views.timeline import chart

SIZES = {"train": [100, 200, 300, 400], "validate": [10, 20]}
SPEC = RunSpec(epochs=1, partitions=4, validation=2)


def dispatch(slot, lease, *partitions, kind="train"):
    return Dispatch(at=0, slot=slot, unit=Unit(lease, 0, kind, 0, partitions, None))


def done(slot, lease, *partitions, **more):
    parts = tuple(Part(p, {"loss": (1.0, 2.0)}, 1.0) for p in partitions)
    return Done(at=0, slot=slot, lease=lease, parts=parts, seconds=1.0, **more)


def joined(slot, host, *rows):
    return Joined(at=0, slot=slot, host=host, pid=1, rows=rows)


def records(*lines, sizes=SIZES):
    return plain(chart(lines).hosts, sizes)


def only(record, **expected):
    return {name: value for name, value in record.items() if value} == expected


def test_rows_are_stored_where_workers_went_over_them():
    found = records(
        joined(0, "a"),
        joined(1, "a"),
        joined(2, "b", PartitionRange("train", 2, 4), PartitionRange("validate", 0, 1)),
        Check(at=0, slot=0, trial=0, partitions=(1, 1)),
        Checked(at=0, slot=0, trial=0, faults=(), names=("loss", "val_loss"), fetched_bytes=220, peak_bytes=7),
        Placed(at=0, host="a", partitions=PartitionRange("train", 0, 2)),  # it is not there yet
        dispatch(1, 1, 0, 1),
        dispatch(2, 2, 2, 3),
        done(2, 2, 2, 3, hop_bytes=5),
        done(1, 1, 0, 1, fetched_bytes=100, peak_bytes=9),  # the other worker has brought partition 1
        dispatch(1, 3, 1, kind="validate"),
        done(1, 3, 1),
        dispatch(0, 4, kind="fold"),
        done(0, 4, peak_bytes=8),
        Durable(at=0, slot=2, ref=Ref(0, 2, 2), digest="ab", bytes=50),
    )
    assert only(found["a"], workers=2, partitions=3, rows_bytes=320, fetched_bytes=320, peak_bytes=9)
    assert only(found["b"], workers=1, partitions=3, rows_bytes=710, hop_bytes=5, states=1, state_bytes=50)


def test_sizes_may_be_unknown():
    (record,) = records(joined(0, "a"), dispatch(0, 1, 3), done(0, 1, 3), sizes={}).values()
    assert (record["partitions"], record["rows_bytes"]) == (1, None)


def test_all_members_of_a_gang_count_on_their_hosts():
    gang = [joined(0, "a"), joined(1, "a"), joined(2, "b"), Formed(at=0, slot=0, members=(0, 1, 2))]
    one = done(0, 1, 0, exchanged_bytes=40, fetched_bytes=100, peak_bytes=5, others=((0, 6), (100, 7)))
    found = records(
        *gang,
        dispatch(0, 1, 0),
        one,
        dispatch(0, 2, 1, kind="validate"),  # the first member alone
        done(0, 2, 1),
        dispatch(0, 3, 1),
        done(0, 3, 1, exchanged_bytes=40),
    )
    assert only(
        found["a"], workers=2, partitions=3, rows_bytes=320, fetched_bytes=100, exchanged_bytes=160, peak_bytes=6
    )
    assert only(
        found["b"], workers=1, partitions=2, rows_bytes=300, fetched_bytes=100, exchanged_bytes=80, peak_bytes=7
    )


@pytest.mark.parametrize(
    "end",
    [
        Lost(at=0, slot=2, reason="killed"),
        Left(at=0, slot=2, reason="idle"),
        Yielded(at=0, slots=(2,), until=1),
    ],
)
def test_a_gang_whose_member_is_gone_is_none(end):
    gang = [joined(0, "a"), joined(2, "b"), Formed(at=0, slot=0, members=(0, 2))]
    found = records(*gang, dispatch(0, 1, 0), end, done(0, 1, 0), dispatch(0, 2, 1), done(0, 2, 1, exchanged_bytes=3))
    assert only(found["a"], workers=1, partitions=1, rows_bytes=200, exchanged_bytes=3)
    assert only(found["b"], workers=1)


def test_bytes_of_an_answer_that_comes_late_were_moved_all_the_same():
    found = records(
        joined(0, "a"),
        dispatch(0, 1, 0),
        Failed(at=0, slot=0, lease=1, fault="system", error="no"),
        dispatch(0, 2, 1),
        Lost(at=0, slot=0, reason="silent"),
        done(0, 2, 1, fetched_bytes=300),
        Durable(at=0, slot=0, ref=Ref(0, 1, 2), digest="ab", bytes=50),
    )
    assert only(found["a"], workers=1, fetched_bytes=300, states=1, state_bytes=50)


def test_rows_on_a_host_stay_without_a_driver():
    found = records(
        joined(0, "a"),
        dispatch(0, 1, 0),
        done(0, 1, 0, fetched_bytes=100),
        dispatch(0, 2, 1),
        Resumed(at=9),
        joined(1, "a"),
        dispatch(1, 3, 2),
        done(1, 3, 2, fetched_bytes=300),
    )
    assert only(found["a"], workers=1, partitions=2, rows_bytes=400, fetched_bytes=400)


@pytest.mark.parametrize(("seconds", "helps"), [(8, True), (100, False)])
def test_the_report_says_how_long_slots_idled_for_homes(seconds, helps):
    """One of two slots, for a second of so many."""
    spec = msgspec.structs.replace(SPEC, validation=0, copies=1)
    lines = [
        Began(at=0, spec=spec, workers=2),
        joined(0, "a"),
        joined(1, "b"),
        *[Proposed(at=0, trial=trial, config={}) for trial in range(2)],
        Check(at=0, slot=0, trial=0),
        Checked(at=0, slot=0, trial=0, faults=(), names=("loss",)),
        dispatch(0, 1, 0),
        Dispatch(at=1, slot=1, unit=Unit(2, 1, "train", 0, (1,), None)),
        msgspec.structs.replace(done(0, 1, 0), at=seconds),
        msgspec.structs.replace(done(1, 2, 1), at=seconds),
    ]
    text = report(lines, fold(lines), {}, "running")
    share = f"{1 / (2 * seconds):.1%}"
    assert f"\n  idle for homes 1.0 s, {share} of the slots' time, in which trials waited for hosts that" in text
    assert ("parallel=hy.Hopper(copies=2)" in text) == helps
    assert facts(lines, fold(lines), "running")["home_idle_seconds"] == 1
    assert "idle for homes" not in report(LINES, Machine(SPEC), {}, "running")


LINES = [
    Began(at=0, spec=SPEC),
    joined(0, "a"),
    joined(1, "b"),
    dispatch(0, 1, 0, 1),
    done(0, 1, 0, 1, fetched_bytes=300, hop_bytes=1500),
    dispatch(1, 2, 2, 3),
    done(1, 2, 2, 3, fetched_bytes=700),
]


def test_a_table_has_the_columns_that_have_numbers():
    hosts = chart(LINES).hosts
    assert table(hosts, SIZES) == [
        "host  workers  partitions   rows  moved  hopped",
        "a           1           2  300 B  300 B  1.5 kB",
        "b           1           2  700 B  700 B       –",
    ]
    assert table(hosts, {}, 1) == [
        "host  workers  partitions  moved  hopped",
        "a           1           2  300 B  1.5 kB",
        "and 1 more host",
    ]


def test_the_report_shows_hosts_where_they_are_several():
    machine = Machine(SPEC)
    text = report(LINES, machine, {}, "running", SIZES)
    assert "\nHosts (partitions and rows: in its cache; " in text
    assert "\n  b           1           2  700 B  700 B       –\n" in text
    assert "The table has 1.03 kB; hosts store 0.97 times as much, and 0.97 times as much was moved\n" in text
    found = facts(LINES, machine, "running", SIZES)
    assert json.loads(msgspec.json.encode(found))["hosts"]["a"]["rows_bytes"] == 300
    assert (found["fetched_bytes"], found["exchanged_bytes"], found["hop_bytes"]) == (1000, 0, 1500)
    here = [Began(at=0, spec=SPEC), joined(0, "a"), dispatch(0, 1, 0), done(0, 1, 0, peak_bytes=2_000_000)]
    text = report(here, machine, {}, "running", SIZES)
    assert "Hosts" not in text and "\n  workers       up to 2 MB of memory each\n" in text

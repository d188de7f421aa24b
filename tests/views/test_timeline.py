import pytest

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Deferred,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Formed,
    Granted,
    Joined,
    Paused,
    Proposed,
    Resumed,
    Stopped,
)
from hopyard.core.runs.machine import fold
from hopyard.sim.world import Host, World, lengths
from hopyard.spec import Part, Ref, RunSpec, Unit
from hopyard.stopping import ASHA
from hopyard.views.timeline import chart


def unit(lease, trial=0, partitions=(0,), epoch=0, kind="train"):
    return Unit(lease, trial, kind, epoch, partitions, None)


def done(at, slot, lease, *partitions, hop=0.0):
    parts = tuple(Part(p, {"loss": (1.0, 2.0)}, 1.0) for p in partitions)
    return Done(at=at, slot=slot, lease=lease, parts=parts, seconds=1.0, hop_seconds=hop, hop_bytes=10)


def joined(at, slot, host="a"):
    return Joined(at=at, slot=slot, host=host, pid=1)


def spans(lines):
    """(the chart, its spans in the order in which they began)"""
    ended = []
    found = chart(lines, ended.append)
    return found, sorted([*ended, *found.open.values()], key=lambda span: span.start)


SPEC = RunSpec(epochs=1, partitions=4, validation=0)


def test_idle_share_runs_from_the_first_unit_to_the_last():
    found = chart(
        [
            Began(at=0, spec=SPEC),
            joined(1, 0),
            joined(2, 1),
            Dispatch(at=10, slot=0, unit=unit(1)),
            Dispatch(at=15, slot=1, unit=unit(2, trial=1, partitions=(1, 2))),
            done(20, 0, 1, 0),
            done(30, 1, 2, 1, 2, hop=0.5),
            Durable(at=99, slot=1, ref=Ref(1, 2, 2), digest="ab", bytes=7),
        ]
    )
    assert found.idle() == pytest.approx(1 - 25 / 40)
    assert found.idle_of(0) == pytest.approx(0.5)
    assert found.idle_of(1) == pytest.approx(0.25)
    assert (found.units, found.parts, found.hop_seconds, found.hop_bytes) == (2, 3, 0.5, 20)
    assert (found.stored, found.stored_bytes) == (1, 7)


def test_a_running_unit_counts_up_to_now():
    found, there = spans([Began(at=0, spec=SPEC), joined(1, 0), joined(1, 1), Dispatch(at=10, slot=0, unit=unit(1))])
    assert found.idle(now=20) == pytest.approx(0.5)
    assert there[0].end is None


def test_a_replacement_takes_the_lane_of_its_host():
    found, there = spans(
        [
            Began(at=0, spec=SPEC),
            joined(1, 0, "a"),
            joined(1, 1, "b"),
            Dispatch(at=2, slot=0, unit=unit(1)),
            Lost(at=5, slot=0, reason="signal 9"),
            joined(6, 2, "b"),
            joined(7, 3, "a"),
            Dispatch(at=8, slot=3, unit=unit(2)),
            done(9, 3, 2, 0),
            done(9, 0, 1, 0),  # too late: nobody
        ]
    )
    assert [(worker.slot, worker.lane) for worker in found.workers] == [(0, 0), (1, 1), (2, 2), (3, 0)]
    assert [(span.outcome, span.lane, span.end) for span in there] == [("lost", 0, 5), ("done", 0, 9)]
    assert found.redone == 1
    assert [mark.text for mark in found.lost] == ["worker 0 on a lost: signal 9"]
    assert found.units == 1


def test_the_time_without_a_driver_is_nobodys():
    found, there = spans(
        [
            Began(at=0, spec=SPEC),
            joined(0, 0),
            Dispatch(at=0, slot=0, unit=unit(1)),
            done(10, 0, 1, 0),
            Dispatch(at=10, slot=0, unit=unit(2, partitions=(1,))),
            Resumed(at=1000),
            joined(1001, 0),
            Dispatch(at=1001, slot=0, unit=unit(3, partitions=(1,))),
            done(1011, 0, 3, 1),
        ]
    )
    assert found.elapsed(1011) == pytest.approx(21)
    assert found.elapsed(500) == pytest.approx(10)
    assert found.idle() == pytest.approx(0.0)
    assert [span.outcome for span in there] == ["done", "lost", "done"]
    assert found.lost == []
    assert len(found.lanes) == 1


def test_a_slot_that_a_deadline_ended_is_gone():
    spec = RunSpec(epochs=1, partitions=2, validation=0, trials=1)
    lines = [Began(at=0, spec=spec), Proposed(at=0, trial=0, config={}), Exhausted(at=0), joined(0, 0)]
    lines += [Check(at=0, slot=0, trial=0), Checked(at=1, slot=0, trial=0, faults=(), names=("loss",))]
    lines += [Dispatch(at=1, slot=0, unit=unit(1)), Tick(at=9)]
    lines += [Lost(at=9, slot=0, reason="its unit took longer than its deadline")]  # as the loop says of each Replace
    lines += [joined(10, 1), Dispatch(at=10, slot=1, unit=unit(2))]
    found, there = spans(lines)
    assert [(span.kind, span.outcome, span.end) for span in there] == [
        ("check", "done", 1),
        ("train", "lost", 9),
        ("train", "running", None),
    ]
    assert "deadline" in found.lost[0].text


def test_spans_are_not_kept():
    world = World(RunSpec(epochs=2, partitions=4, validation=2, trials=20), 3, lengths(20, 0.5, 0.1, 0), keep=True)
    world.run()
    found = chart(world.journal)
    kept = [value for value in vars(found).values() if hasattr(value, "__len__") and not isinstance(value, str)]
    assert found.units > 100 and max(map(len, kept)) <= 2 * 2 * 20  # kinds × epochs × trials


def test_the_timeline_agrees_with_the_simulated_world():
    spec = RunSpec(epochs=2, partitions=4, validation=2, trials=5)
    world = World(spec, 3, lengths(5, 0.5, 0.1, 0), keep=True)
    makespan = world.run()
    found = chart(world.journal)
    assert found.busy() == pytest.approx(sum(world.busy.values()))
    assert found.parts == world.units
    assert found.idle() == pytest.approx(1 - sum(world.busy.values()) / (3 * makespan))
    assert found.redone == 0


@pytest.mark.parametrize(("copies", "idles"), [(1, True), (None, False)])
def test_hosts_agree_with_the_simulated_world(copies, idles):
    """Eight partitions do not divide by three hosts."""
    spec = RunSpec(epochs=2, partitions=8, validation=2, trials=9, copies=copies)
    world = World(spec, 3, lengths(9, 0.1, 0.1, 0), keep=True, hosts=(Host(),) * 3)
    world.run()
    found = chart(world.journal)
    assert sum(host.partitions for host in found.hosts.values()) == world.fetched
    assert len(found.hosts) == 3
    idle = found.slot_seconds() - found.busy()
    waited = fold(world.journal).scheduler.home_idle
    assert 0.5 * idle < waited <= idle if idles else waited == 0


def test_everything_ends_well_after_everything_happened(rough):
    found = chart(rough)
    assert fold(rough).status == "partial"
    assert not found.open
    assert found.redone > 0
    assert {mark.what for mark in found.marks} == {"lost", "failed", "interrupted", "resumed", "finished"}
    assert len(found.lanes) == 3


def test_all_members_of_a_gang_are_busy_with_its_unit():
    lines = [
        Began(at=0, spec=SPEC),
        joined(0, 0),
        joined(0, 1),
        Formed(at=0, slot=0, members=(0, 1)),
        Dispatch(at=0, slot=0, unit=unit(1)),
        done(10, 0, 1, 0),
        Dispatch(at=10, slot=0, unit=unit(2, kind="validate")),
        done(20, 0, 2, 0),
    ]
    assert chart(lines).idle() == pytest.approx(1 - 30 / 40)
    lines += [Dispatch(at=20, slot=0, unit=unit(3)), Failed(at=30, slot=1, lease=3, fault="user", error="no")]
    found, ended = spans(lines)
    assert found.idle() == pytest.approx(1 - 50 / 60)
    assert ended[-1].outcome == "failed"
    assert found.marks[-1].text == "trial 0 failed on worker 1 (user): no"


def test_a_lost_member_ends_the_unit_of_its_gang():
    lines = [Began(at=0, spec=SPEC), joined(0, 0), joined(0, 1), Formed(at=0, slot=0, members=(0, 1))]
    lines += [Dispatch(at=0, slot=0, unit=unit(1)), Lost(at=5, slot=1, reason="killed")]
    found, ended = spans(lines)
    assert [(span.outcome, span.end) for span in ended] == [("lost", 5)]
    assert not found.open
    found.see(Dispatch(at=6, slot=0, unit=unit(2, kind="validate")))
    assert found.open[0].members == ()


HOMES = RunSpec(epochs=2, partitions=2, validation=0, copies=1)


def waited(*lines, spec=HOMES, workers=3):
    """Slot-seconds that three slots idled for homes while two trials trained one after the other."""
    began = [Began(at=0, spec=spec, workers=workers), *[joined(0, slot) for slot in range(3)]]
    began += [Proposed(at=0, trial=trial, config={}) for trial in range(2)]
    began += [Check(at=0, slot=0, trial=0), Checked(at=10, slot=0, trial=0, faults=(), names=("loss",))]
    return fold([*began, *lines]).scheduler.home_idle


def trained(at, slot, lease, trial, step):
    """One partition in a second."""
    epoch, partition = divmod(step, 2)
    start = Ref(trial, step, lease - 1) if step else None
    return [
        Dispatch(at=at, slot=slot, unit=Unit(lease, trial, "train", epoch, (partition,), start)),
        done(at + 1, slot, lease, partition),
    ]


def test_slots_idle_for_homes_while_trials_wait():
    """Two slots are idle at a time, so one waits for the other trial, until a worker is lost."""
    first = [*trained(10, 0, 1, 0, 0), *trained(11, 0, 2, 0, 1), *trained(12, 0, 3, 0, 2), *trained(13, 0, 4, 0, 3)]
    assert waited(*first) == 4
    assert waited(*first, *trained(20, 1, 5, 1, 0)) == 4 + 6  # trial 1 waits between, with three idle slots
    assert waited(*first, workers=0) == waited(*first, spec=RunSpec(epochs=2, partitions=2, validation=0)) == 0
    assert waited(first[0], *[Lost(at=10, slot=slot, reason="gone") for slot in (1, 2)], *first[1:]) == 0
    assert waited(*first[:4], Resumed(at=50, workers=2)) == 2  # nobody was there


def test_a_trial_that_waits_after_a_fault_does_not_wait_for_homes():
    line = Deferred(at=10, trial=1, until=99.0, fault="system", reason="no")
    assert waited(line, *trained(10, 0, 1, 0, 0)) == 0


def test_a_trial_at_its_rung_waits_for_a_decision():
    spec = RunSpec(epochs=2, partitions=2, validation=0, copies=1, trials=2, metric="loss", stop=ASHA(min_epochs=1))
    lines = [*trained(10, 0, 1, 0, 0), *trained(11, 0, 2, 0, 1), Tick(at=15)]
    stopped = Stopped(at=10, trial=1, reason="")
    assert waited(lines[0], stopped, *lines[1:], spec=spec) == 0
    granted = Granted(at=15, trial=0, target=4, reason="1st of 2")
    assert waited(lines[0], stopped, *lines[1:], granted, *trained(18, 1, 3, 0, 2), spec=spec) == 3


def test_time_with_fewer_trials_than_workers_is_reported():
    spec = RunSpec(epochs=2, partitions=1, validation=0)
    one, two = Ref(0, 1, 1), Ref(0, 2, 3)
    lines = [
        Began(at=0, spec=spec),
        joined(1, 0),
        joined(1, 1),
        Proposed(at=2, trial=0, config={}),
        Proposed(at=2, trial=1, config={}),
        Dispatch(at=10, slot=0, unit=unit(1)),
        Dispatch(at=10, slot=1, unit=unit(2, trial=1)),
        done(20, 0, 1, 0),
        Paused(at=20, trial=0, reason="it waits"),
        done(23, 1, 2, 0),  # one trial for two workers, for 3 s
        Stopped(at=23, trial=1, reason="2nd of 2"),
        Granted(at=30, trial=0, target=2, reason="1st of 2"),  # for 7 s none, as a decision was awaited
        Dispatch(at=30, slot=0, unit=Unit(3, 0, "train", 1, (0,), one)),
        done(35, 0, 3, 0),  # and 5 s
        Durable(at=50, slot=0, ref=two, digest="ab", bytes=7),
    ]
    assert chart(lines).thin == 8

"""Homes of partitions: who gets which block, and when."""

import pytest

from hopyard.core.runs.events import Placed
from hopyard.core.runs.order import spread, start
from hopyard.core.runs.scheduling.homes import GRACE, Homes
from hopyard.spec import Gang, PartitionRange, RunSpec
from snapshots import homes


def spec(partitions=8, copies=1, validation=0, members=1):
    gang = Gang(members) if members > 1 else None
    return RunSpec(epochs=1, partitions=partitions, validation=validation, copies=copies, gang=gang)


def places_of(workers, partitions=8, copies=1, hosts=(), **more):
    """The places of a run on so many workers, of which one is there on each of these hosts."""
    places = Homes(spec(partitions, copies, **more))
    places.begin(workers, spec(partitions, copies, **more))
    for host in hosts:
        join(places, host)
    return places


def join(places, host, rows=()):
    places.join("validate", host, rows)
    places.join("train", host)


def leave(places, host, at=0.0):
    places.leave("validate", host, at)
    places.leave("train", host, at)


def visit(places, host, partition, at=0.0, kind="train"):
    """Give out a unit over a partition; which partitions it brings home."""
    places.start(at)
    if (line := places.claim(host, kind, partition, at)) is None:
        return None
    places.place(line)
    return line.partitions.first, line.partitions.end


def blocks(places, host):
    """Return the first partitions of the blocks that a host may work on, tier by tier."""
    bounds = homes(places)["homes"]["train"][0]
    return [[bounds[block] for block in tier] for tier in places.tiers(host, "train")]


def test_a_block_gets_its_home_with_the_first_unit_over_it():
    places = places_of(4, hosts="abcd")
    assert visit(places, "a", 5) == (4, 6)
    assert visit(places, "a", 4) is None, "it is at home already"
    assert places.at_home("a", "train", 5) and not places.at_home("a", "train", 6)
    assert not places.at_home("b", "train", 5)


def test_a_host_takes_as_many_blocks_as_it_has_workers():
    places = places_of(5, 10, hosts=["a", "b", "b", "b", "b"])
    assert visit(places, "a", 0) == (0, 2)
    assert visit(places, "a", 2) is None, "the others are for b"
    assert [visit(places, "b", partition) for partition in (2, 4, 6, 8)] == [(2, 4), (4, 6), (6, 8), (8, 10)]


def test_blocks_of_a_host_lie_beside_each_other_where_they_can():
    places = places_of(4, hosts=["a", "a", "b", "b"])
    visit(places, "a", 2)
    assert blocks(places, "a")[:2] == [[2, 0, 4], [6]]


def test_there_are_no_homes_on_one_host_and_where_rows_go_everywhere():
    for places in (places_of(0), places_of(4, copies=None)):
        join(places, "a")
        assert places.at_home("a", "train", 7) and places.claim("a", "train", 7, 0.0) is None
        assert places.tiers("a", "train") == ((0,),) and places.run_length("a", 6, 5) == 5


def test_a_block_has_as_many_homes_as_there_are_copies():
    places = places_of(2, 4, copies=2, hosts="ab")
    for host in "ab":
        assert visit(places, host, 0) == (0, 2) and visit(places, host, 2) == (2, 4)
    assert places.homes("train", 0) == ["a", "b"]


def test_hosts_beyond_the_number_of_partitions_are_second_homes():
    places = places_of(4, 2, hosts="abcd")
    assert [visit(places, host, number % 2) for number, host in enumerate("abcd")] == [(0, 1), (1, 2)] * 2


def test_a_lost_host_keeps_its_partitions_for_a_while():
    places = places_of(2, 8, hosts="ab")
    visit(places, "a", 0), visit(places, "b", 4)
    leave(places, "b", at=10.0)
    assert places.earliest() == 10.0 + GRACE and not places.tick(10.0 + GRACE - 1)
    assert visit(places, "a", 4, at=39.0) is None
    join(places, "b")
    assert places.earliest() is None and places.at_home("b", "train", 4)


def test_the_partitions_of_a_lost_host_go_to_a_new_host_at_once():
    places = places_of(2, 8, hosts="ab")
    visit(places, "a", 0), visit(places, "b", 4)
    leave(places, "b", at=10.0)
    join(places, "c")
    assert visit(places, "c", 5, at=10.5) == (4, 8)
    join(places, "b")
    assert not places.at_home("b", "train", 4), "another host is its home by now"


def test_the_others_divide_the_partitions_of_a_lost_host_after_a_while():
    places = places_of(3, 12, hosts="abc")
    for host, partition in zip("abc", (0, 4, 8), strict=True):
        visit(places, host, partition)
    leave(places, "c", at=10.0)
    assert places.tick(10.0 + GRACE)
    assert visit(places, "a", 8, at=41.0) == (8, 10)
    assert visit(places, "b", 11, at=41.0) == (11, 12) and visit(places, "b", 10, at=42.0) == (10, 11)
    join(places, "c")
    assert not any(places.at_home("c", "train", partition) for partition in range(12))
    assert blocks(places, "c")[2], "it becomes another home"


def test_a_returning_host_keeps_what_nobody_took():
    places = places_of(3, 12, hosts="abc")
    for host, partition in zip("abc", (0, 4, 8), strict=True):
        visit(places, host, partition)
    leave(places, "c", at=10.0)
    places.tick(10.0 + GRACE)
    visit(places, "a", 9, at=41.0)
    join(places, "c")
    assert [places.at_home("c", "train", partition) for partition in (8, 9, 10, 11)] == [True, False, False, True]


def test_a_host_with_rows_is_home_to_them_up_to_its_share():
    places = places_of(2, 8)
    join(places, "a", (PartitionRange("train", 2, 8),))
    line = places.adopt("a", 0.0)
    assert line == Placed(at=0.0, host="a", partitions=PartitionRange("train", 4, 8))
    places.place(line)
    assert places.adopt("a", 0.0) is None, "it has part of the other block only"
    join(places, "b", (PartitionRange("train", 0, 8),))
    assert places.adopt("b", 0.0) is None, "whichever it visits first, it has"


def test_the_check_reads_what_is_at_home():
    places = places_of(2, 8, validation=8)
    join(places, "a", (PartitionRange("train", 4, 8),))
    places.place(places.adopt("a", 0.0))
    assert (places.first("a", "train"), places.first("a", "validate")) == (4, 0)
    assert places_of(0).first("a", "train") == 0


def test_a_unit_ends_where_its_home_does():
    places = places_of(2, 8, hosts="ab")
    visit(places, "b", 4)
    assert places.run_length("a", 1, 8) == 3 and places.run_length("b", 5, 8) == 3
    assert places.run_length(None, 1, 8) == 8
    visit(places, "a", 0)
    assert places.run_length("a", 0, 4) == 4


def test_a_unit_of_validation_has_partitions_that_are_at_home():
    places = places_of(2, 8, validation=4, hosts="ab")
    assert places.together("a", "validate", [1, 2, 3]) == [1]
    visit(places, "a", 2, kind="validate")
    assert places.together("a", "validate", [1, 2, 3]) == [2, 3]


@pytest.mark.parametrize(("then", "now", "kept"), [(2, 4, True), (4, 2, True), (4, 3, True), (2, 3, False)])
def test_homes_stay_when_another_driver_has_more_or_fewer_workers(then, now, kept):
    places = places_of(then, 12, hosts="abcd"[:then])
    for number in range(then):
        visit(places, "abcd"[number], number * 12 // then)
    before = [[host for host in "abcd" if places.at_home(host, "train", n)] for n in range(12)]
    places.begin(now, spec(12))
    after = [[host for host in "abcd" if places.at_home(host, "train", n)] for n in range(12)]
    assert (before == after) == kept
    if not kept:  # the middle block has partitions of both
        assert after == [["a"]] * 4 + [[]] * 4 + [["b"]] * 4


def test_a_gang_over_several_hosts_works_on_all_partitions():
    places = places_of(4, members=2, hosts="ab")
    assert places.rank(None, "train", 1) == 0 and places.claim(None, "train", 7, 0.0) is None


def test_hosts_without_a_gang_do_not_keep_partitions_from_being_trained():
    places = places_of(4, 8, members=2)
    for host in "aabb":
        places.join("validate", host)
    for host in "ab":
        places.join("train", host)
    assert visit(places, "a", 0) == (0, 4) and visit(places, "b", 4) == (4, 8)
    places.leave("train", "b", 5.0)
    assert places.homes("train", 1) == [] and places.earliest() == 5.0 + GRACE


def test_workers_of_several_hosts_train_together_once_all_are_there_or_time_has_passed():
    places = places_of(4, members=2)
    places.join("validate", "a"), places.start(1.0)
    assert not places.settled and places.earliest() == 1.0 + GRACE
    for host in "abb":
        places.join("validate", host)
    assert places.settled
    places.leave("validate", "b", 9.0)
    assert not places.settled and places.earliest() is not None
    assert places.tick(9.0 + GRACE) and places.settled


def test_needed_are_the_homes_of_what_is_ahead():
    places = places_of(2, 8, hosts="ab")
    visit(places, "a", 0), visit(places, "b", 4)
    assert places.needed({PartitionRange("train", 5, 6)}) == {"b"}


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8, 12, 32, 100])
def test_starts_are_a_permutation_whose_beginnings_are_spread(partitions):
    order = spread(partitions)
    assert sorted(order) == list(range(partitions))
    for count in range(1, partitions + 1):
        for hosts in (2, 4, 8):
            if count % hosts == 0 and partitions % hosts == 0 and hosts & (hosts - 1) == 0:
                on = [order[n] * hosts // partitions for n in range(count)]
                assert max(map(on.count, range(hosts))) - min(map(on.count, range(hosts))) <= 1


def test_trials_begin_spread_over_the_partitions():
    assert [start(trial, 8) for trial in range(10)] == [*spread(8), *spread(8)[:2]]

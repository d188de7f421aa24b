"""A worker as a member of gangs: it says once that it is out of a unit, whenever it is told to give it up."""

import threading

import pytest

from hopyard.agent.runs.gang import GangMember
from hopyard.agent.runs.members import short_rounds
from hopyard.core.messages import Broken, GiveUpUnit, Membership, Publish, Published
from hopyard.exchange.board import Board, GangBroken
from hopyard.spec import Gang


@pytest.fixture
def sent():
    return []


@pytest.fixture
def member(sent):
    return GangMember(3, Gang(2), sent.append, lambda here: "127.0.0.1")


def place(group, rank=1):
    return Membership(rank, 2, group, True)


def test_a_unit_that_was_given_up_is_not_begun(member, sent):
    member.give_up(GiveUpUnit(5, 5))
    assert sent == []  # it is on its way
    with pytest.raises(GangBroken, match="given up"):
        member.enter(place(5), 5)
    member.leave(5, well=False, reported=True)
    assert sent == []


def test_a_member_that_left_is_reported(member, sent):
    member.enter(place(5), 5)
    member.leave(5, well=True)
    assert sent == []
    member.give_up(GiveUpUnit(5, 5))
    assert sent == [Broken(3, 5)]


def test_a_member_that_ends_meanwhile_is_reported(member, sent):
    member.enter(place(5), 5)
    member.give_up(GiveUpUnit(5, 5))
    member.leave(5, well=True)
    assert sent == [Broken(3, 5)]


def test_waiting_for_a_peer_is_woken(member, sent):
    exchange = member.enter(place(7), 7)
    errors = []

    def connect():
        try:
            exchange.connect()
        except GangBroken as error:
            errors.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    member.give_up(GiveUpUnit(7, 7))
    thread.join(60)
    assert errors == ["the gang's unit was given up before its members met"]
    assert sent[0] == Publish(3, 7, "here/1", b"")


def test_a_group_serves_unit_after_unit_and_not_after_it_broke(member):
    first = member.enter(place(4), 4)
    member.leave(4, well=True)
    assert member.enter(place(4), 5) is first
    member.leave(5, well=False, reported=True)
    with pytest.raises(GangBroken, match="earlier unit"):
        member.enter(place(4), 6)
    member.leave(6, well=False, reported=True)
    assert member.enter(place(7), 7) is not first


def test_addresses_published_before_the_unit_are_available(member):
    member.published(Published(9, "here/0", b"x"))
    assert member._board.get(9, "here/0") == b"x"


def test_values_of_a_closed_group_are_dropped():
    board = Board(lambda group, key, value: None)
    board.close(3)
    board.add(3, "a", b"")
    board.add(4, "a", b"b")
    assert board.get(4, "a") == b"b"
    with pytest.raises(GangBroken):
        board.get(3, "a")


@pytest.mark.parametrize(("gang", "most"), [(Gang(2, "parameters", every=7), 6), (Gang(3, "parameters", every=5), 4)])
def test_rounds_longer_than_partitions_are_reported(gang, most):
    assert f"the largest has {most} batches of {gang.size} × 8 rows" in short_rounds(gang, 8, [20, 90])


@pytest.mark.parametrize("gang", [Gang(2, "parameters", every=6), Gang(2), Gang(1, "parameters", every=99)])
def test_other_rounds_need_no_word(gang):
    assert short_rounds(gang, 8, [20, 90]) == ""

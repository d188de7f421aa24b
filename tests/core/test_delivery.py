"""Delivery over a channel that loses, doubles and reorders: everything arrives once and in order, and what waits is
bounded."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hopyard.core.delivery import BYTES, LONGEST, MESSAGES, SPEED, Delivery, Header, Inbox, Outbox, Unconfirmed

PATIENCE = 5.0
ENDS = st.sampled_from([0, 1])


class Channel(RuleBasedStateMachine):
    """Two ends and what is on its way between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ends = [Delivery(PATIENCE), Delivery(PATIENCE)]
        self.way: list[list[tuple[Header, bytes]]] = [[], []]
        """To each end."""
        self.sent: list[list[bytes]] = [[], []]
        self.got: list[list[bytes]] = [[], []]

    def frame(self, to: int, head: Header, body: bytes) -> None:
        for each in self.ends[to].receive(head, body):
            self.got[to].append(each)

    @rule(end=ENDS)
    def send(self, end: int) -> None:
        body = b"%d" % len(self.sent[end])
        self.sent[end].append(body)
        self.way[1 - end].append((self.ends[end].send(body, self.now), body))

    @rule(to=ENDS, which=st.integers(0, 10**6))
    def arrive(self, to: int, which: int) -> None:
        if self.way[to]:
            self.frame(to, *self.way[to].pop(which % len(self.way[to])))

    @rule(to=ENDS, which=st.integers(0, 10**6))
    def arrive_twice(self, to: int, which: int) -> None:
        if self.way[to]:
            self.frame(to, *self.way[to][which % len(self.way[to])])

    @rule(to=ENDS)
    def reset(self, to: int) -> None:
        """The connection is closed, and what was in its buffers is gone."""
        self.way[to].clear()

    @rule(to=ENDS, which=st.integers(0, 10**6))
    def lose(self, to: int, which: int) -> None:
        if self.way[to]:
            self.way[to].pop(which % len(self.way[to]))

    @rule(end=ENDS)
    def confirm(self, end: int) -> None:
        self.ends[end].confirm()

    @rule(end=ENDS)
    def tell(self, end: int) -> None:
        if self.ends[end].unsent_confirmations:
            self.way[1 - end].append((self.ends[end].confirmation(), b""))

    @rule(end=ENDS)
    def beat(self, end: int) -> None:
        """A message without a number carries the confirmation as well."""
        self.ends[1 - end].outbox.confirm(self.ends[end].confirmed)

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for end in (0, 1):
            self.way[1 - end] += self.ends[end].overdue(self.now)

    @invariant()
    def once_and_in_order(self) -> None:
        for end in (0, 1):
            assert self.got[end] == self.sent[1 - end][: len(self.got[end])]
            assert self.ends[end].confirmed <= len(self.got[end])
            waiting = len(self.ends[1 - end].outbox)
            assert len(self.sent[1 - end]) - len(self.got[end]) <= waiting <= len(self.sent[1 - end])

    def teardown(self) -> None:
        """The channel is kind from now on: all arrives, and nothing waits."""
        for _ in range(6):
            self.now += 2 * LONGEST + 1
            for end in (0, 1):
                self.way[1 - end] += self.ends[end].overdue(self.now)
            for to in (0, 1):
                frames, self.way[to] = self.way[to], []
                for frame in frames:
                    self.frame(to, *frame)
                self.ends[to].confirm()
                if self.ends[to].unsent_confirmations:
                    self.way[1 - to].append((self.ends[to].confirmation(), b""))
        assert self.got == [self.sent[1], self.sent[0]]
        assert [len(end.outbox) for end in self.ends] == [0, 0]


class Overfull(RuleBasedStateMachine):
    """A sender that nobody confirms, and a receiver that misses its first message."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(PATIENCE, messages=5, size=100)
        self.inbox = Inbox(messages=5, size=100)
        self.waiting: list[int] = []

    @rule(size=st.integers(0, 150))
    def add(self, size: int) -> None:
        fits = not self.waiting or (len(self.waiting) < 5 and sum(self.waiting) + size <= 100)
        try:
            number = self.outbox.add(bytes(size), 0.0)
        except Unconfirmed:
            assert not fits
            return
        assert fits
        self.waiting.append(size)
        if number > 1:
            assert self.inbox.take(number, bytes(size)) == []

    @invariant()
    def bounded(self) -> None:
        assert len(self.outbox) == len(self.waiting) <= 5
        assert sum(map(len, self.inbox._early.values())) <= 100
        assert (self.outbox.share <= 1.0) or len(self.waiting) == 1


TestChannel = Channel.TestCase
TestChannel.settings = settings(max_examples=60, stateful_step_count=60)
TestOverfull = Overfull.TestCase
TestOverfull.settings = settings(max_examples=30, stateful_step_count=12)


def test_unconfirmed_messages_are_resent_with_backoff() -> None:
    outbox = Outbox(PATIENCE)
    outbox.add(b"one", 100.0)
    due = [second for second in range(100, 400) if outbox.overdue(float(second))]
    assert due[:4] == [106, 117, 138, 179]  # 5, 10, 20, 40 seconds, and the part of a second that three bytes need
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert max(gaps) <= LONGEST + 1


def test_a_large_message_has_time_for_its_way() -> None:
    outbox = Outbox(PATIENCE)
    outbox.add(bytes(10 * SPEED), 0.0)
    outbox.add(b"small", 0.0)
    assert [number for number, _ in outbox.overdue(6.0)] == [2]
    assert [number for number, _ in outbox.overdue(15.5)] == [1]


def test_the_bounds_are_those_that_are_written() -> None:
    outbox = Outbox(PATIENCE)
    outbox.add(bytes(BYTES + 1), 0.0)  # alone it may wait, however large
    with pytest.raises(Unconfirmed, match=r"1 messages of 67,108,865 bytes .* 1,000 messages and 67,108,864 bytes"):
        outbox.add(b"", 0.0)
    outbox.confirm(1)
    for _ in range(MESSAGES):
        outbox.add(b"", 0.0)
    assert outbox.share == 1.0
    with pytest.raises(Unconfirmed):
        outbox.add(b"", 0.0)


def test_a_number_that_was_never_sent_confirms_nothing() -> None:
    outbox = Outbox(PATIENCE)
    outbox.add(b"one", 0.0)
    outbox.confirm(2)
    assert len(outbox) == 1


def test_a_number_far_ahead_is_not_kept() -> None:
    inbox = Inbox(messages=5)
    assert inbox.take(7, b"seven") == [] and inbox.take(6, b"six") == [] and inbox.take(5, b"five") == []
    assert [inbox.take(number, b"%d" % number) for number in (1, 2, 3)] == [[b"1"], [b"2"], [b"3"]]
    assert inbox.take(4, b"4") == [b"4", b"five"]
    assert inbox.delivered == 5


def test_a_lost_confirmation_is_sent_again() -> None:
    one, other = Delivery(PATIENCE), Delivery(PATIENCE)
    head = one.send(b"one", 0.0)
    assert other.receive(head, b"one") == [b"one"]
    assert other.unsent_confirmations == 0
    other.confirm()
    assert other.unsent_confirmations == 1
    other.confirmation()  # lost
    assert other.unsent_confirmations == 0
    ((head, body),) = one.overdue(6.0)
    assert other.receive(head, body) == []
    assert other.unsent_confirmations == 1
    one.receive(other.confirmation(), b"")
    assert len(one.outbox) == 0


def test_early_messages_are_held_until_their_turn() -> None:
    inbox = Inbox(size=100)
    for number in range(1, 40, 2):
        assert inbox.take(number + 1, bytes(40)) == []
        assert inbox.take(number + 1, bytes(40)) == []  # once more, before its turn
        assert inbox.take(number, b"") == [b"", bytes(40)]
    assert inbox.take(42, bytes(100)) == []
    assert inbox.take(41, b"") == [b"", bytes(100)]


def test_since_when_something_waits_for_its_confirmation() -> None:
    outbox = Outbox(PATIENCE)
    assert outbox.since == math.inf
    outbox.add(b"one", 10.0)
    outbox.add(b"x" * SPEED, 20.0)
    outbox.overdue(1000.0)
    assert outbox.since == pytest.approx(10.0, abs=0.01)
    outbox.confirm(1)
    assert outbox.since == 21.0  # its bytes need a second
    outbox.confirm(2)
    assert outbox.since == math.inf

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.core.programs.exactly_once import DeliveryLedger
from hopyard.errors import DataError


def send(ledger: DeliveryLedger, partition: int, number: int, digest: bytes) -> bool:
    """Whether the block was new."""
    if ledger.is_duplicate(partition, number, digest):
        return False
    ledger.record(partition, digest)
    return True


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 8))
def test_any_mixture_of_attempts_takes_each_block_once(turns: list[int], blocks: int) -> None:
    ledger = DeliveryLedger("train")
    at = [0] * 4
    taken = []
    for attempt in [*turns, *[n for n in range(4) for _ in range(blocks)]]:
        number = at[attempt]
        if number < blocks:
            at[attempt] += 1
            if send(ledger, 7, number, b"%d" % number):
                taken.append(number)
            if at[attempt] == blocks:
                ledger.end_partition(7, blocks)
    assert taken == list(range(blocks))


@pytest.mark.parametrize("again", [[b"a", b"x"], [b"b", b"a"], [b"a"], [b"a", b"b", b"c"]])
def test_another_attempt_with_other_blocks_is_reported(again: list[bytes]) -> None:
    ledger = DeliveryLedger("train")
    for number, digest in enumerate([b"a", b"b"]):
        send(ledger, 3, number, digest)
    ledger.end_partition(3, 2)
    with pytest.raises(DataError, match="'train': partition 3 was computed twice"):
        for number, digest in enumerate(again):
            send(ledger, 3, number, digest)
        ledger.end_partition(3, len(again))


def test_an_attempt_that_broke_off_is_continued() -> None:
    ledger = DeliveryLedger("train")
    assert send(ledger, 0, 0, b"a")
    assert not send(ledger, 0, 0, b"a")
    assert send(ledger, 0, 1, b"b")
    ledger.end_partition(0, 2)


def test_the_first_claim_counts_for_its_epoch() -> None:
    ledger = DeliveryLedger("train")
    assert ledger.advance_to(0)
    assert (ledger.claim(5, 1), ledger.claim(5, 0), ledger.claim(6, 0)) == (1, 1, 0)
    assert ledger.advance_to(1) and not ledger.advance_to(0)
    assert ledger.claim(5, 0) == 0

"""The seals of bodies that go in clear."""

from __future__ import annotations

import pytest

from hopyard.store.bulk.connection import Credentials, Seals

BODY = bytes(range(256)) * 100


def seal(seals: Seals, body: bytes, piece: int = 1000) -> bytes:
    seals.begin()
    for at in range(0, len(body), piece):
        seals.update(memoryview(body)[at : at + piece])
    return seals.end()


def test_both_ends_have_the_same_seals_however_the_bytes_are_cut() -> None:
    one, other = (Credentials("token").seals(b"client", b"a" * 16, b"b" * 16) for _ in range(2))
    for body in (BODY, BODY, b""):
        assert seal(one, body, 7) == seal(other, body, 999)


def changed(at: int) -> bytes:
    body = bytearray(BODY)
    body[at] ^= 1
    return bytes(body)


@pytest.mark.parametrize("body", [changed(0), changed(12_345), BODY[:-1], BODY + b"x", BODY[16:32] + BODY[:16]])
def test_other_bytes_have_another_seal(body: bytes) -> None:
    assert seal(Seals(bytes(32)), BODY) != seal(Seals(bytes(32)), body)


def test_each_body_direction_connection_and_run_has_its_own() -> None:
    credentials = Credentials("token")
    seals = [
        credentials.seals(b"client", b"a" * 16, b"b" * 16),
        credentials.seals(b"server", b"a" * 16, b"b" * 16),
        credentials.seals(b"client", b"c" * 16, b"b" * 16),
        Credentials("another").seals(b"client", b"a" * 16, b"b" * 16),
    ]
    assert len({seal(each, BODY) for each in seals for _ in range(2)}) == 8

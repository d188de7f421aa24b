"""The limit of open files, which is played: that of this process stays as it is."""

from __future__ import annotations

import os
import resource

import pytest

from hopyard.system import limits


@pytest.mark.parametrize(
    ("soft", "hard", "count", "after", "allowed"),
    [
        (1024, 4096, 500, 1024, 1014),  # enough: nothing changes
        (1024, 4096, 2000, 2010, 2000),
        (1024, 4096, 9000, 4096, 4086),  # as far as it may
        (1024, resource.RLIM_INFINITY, 9000, 9010, 9000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9000, resource.RLIM_INFINITY, 9000),
    ],
)
def test_the_limit_is_raised_as_far_as_is_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, count: int, after: int, allowed: int
) -> None:
    limit = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda what, values: limit.__setitem__(slice(None), values))
    monkeypatch.setattr(os, "listdir", lambda folder: [str(number) for number in range(10)])
    assert limits.allow_files(count) == allowed
    assert limit == [after, hard]


def test_a_system_that_refuses_leaves_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(what: int, values: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 1 << 40))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(os, "listdir", lambda folder: ["0", "1"])
    assert limits.allow_files(1000) == 254
    limits.allow_all_files()

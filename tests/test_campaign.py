"""A short form of `benchmarks/chaos.py`: a run under each of some troubles; in a campaign, under all that need
neither root nor minutes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parent.parent / "benchmarks" / "chaos.py"
SHORT = ("driver", "pause", "messages-lost")
LONGER = ("kill", "store-fails", "memory", *SHORT)


@pytest.mark.long
@pytest.mark.parametrize("troubles", [SHORT, pytest.param(LONGER, marks=pytest.mark.campaign)])
def test_a_short_campaign(troubles: tuple[str, ...]) -> None:
    campaign = subprocess.run(
        [sys.executable, CAMPAIGN, "--runs", str(len(troubles)), "--framework", "array", "--only", *troubles],
        capture_output=True,
        text=True,
        check=False,
    )
    assert campaign.returncode == 0, campaign.stdout + campaign.stderr
    assert len(re.findall(r"^run .* good \(", campaign.stdout, re.MULTILINE)) == len(troubles)


def test_a_run_that_is_not_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(CAMPAIGN.parent)
    from chaos import Outcome

    assert Outcome(["a"], 0, 3, [], 1).faults(["a"]) == []
    assert Outcome(None, 0, 0, [], 0).faults(["a"]) == ["no result"]
    assert Outcome(["b"], 2, 2, ["process 7"], 0).faults(["a"]) == [
        "OTHER DIGESTS",
        "2 partitions done again that were durable",
        "left: process 7",
    ]

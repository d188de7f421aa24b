"""How long places that are too few are held, and left to others."""

import pytest

from hopyard.core.contention import MOST_TURNS, hold_seconds, pause_seconds


@pytest.mark.parametrize("seconds", [hold_seconds, pause_seconds])
def test_times_grow_up_to_a_limit_and_differ(seconds):
    least = [min(seconds(str(key), turn) for key in range(200)) for turn in range(MOST_TURNS + 3)]
    assert least == sorted(least) and least[MOST_TURNS] > 8 * least[0]
    assert max(seconds(str(key), 1000) for key in range(200)) < 2.1 * least[MOST_TURNS]
    assert len({seconds(str(key), 0) for key in range(200)}) == 200

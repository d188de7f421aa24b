"""How long places that are too few are held, and left to others."""

import pytest

from hopyard.core.contention import HOLD_SECONDS, MOST_TURNS, hold_seconds, pause_seconds

KEYS = [str(number) for number in range(200)]


@pytest.mark.parametrize("seconds", [hold_seconds, pause_seconds])
def test_times_differ_from_key_to_key_and_from_turn_to_turn(seconds):
    assert len({seconds(key, 0) for key in KEYS}) == 200
    assert len({seconds("a", turn) / 1.5**turn for turn in range(10)}) == 10


def test_pauses_grow_up_to_a_limit_and_holds_do_not():
    pauses = [min(pause_seconds(key, turn) for key in KEYS) for turn in range(MOST_TURNS + 3)]
    assert pauses[: MOST_TURNS + 1] == sorted(pauses[: MOST_TURNS + 1]) and pauses[MOST_TURNS] > 4 * pauses[0]
    assert max(pause_seconds(key, 1000) for key in KEYS) < 2.1 * pauses[MOST_TURNS]
    assert all(HOLD_SECONDS <= hold_seconds(key, turn) < 2 * HOLD_SECONDS for key in KEYS for turn in (0, 9, 1000))

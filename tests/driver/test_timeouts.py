"""Who is stalled, as heartbeats say."""

from __future__ import annotations

import time

from hopyard.core.liveness import SHOWN, Sample
from hopyard.driver.timeouts import SlotTimers


def test_stalls_follow_each_heartbeat_and_earlier_answers_stay_as_they_were() -> None:
    timeouts = SlotTimers(60.0, 600.0)
    for slot in range(3):
        timeouts.start(slot)
    now = float(int(time.monotonic()))  # so that differences are exact

    def beat(slot: int, seconds: float, advanced: int = 1) -> None:
        timeouts.advanced(slot, Sample(now + seconds, advanced, "train", 0.0))

    for slot in range(3):
        beat(slot, 1.0)
    none = timeouts.stalls()
    assert none == {}
    beat(0, 1.0 + SHOWN)
    one = timeouts.stalls()
    assert (none, one) == ({}, {0: ("train", SHOWN)})
    beat(1, 2.0 + SHOWN)
    beat(0, 3.0 + SHOWN)
    assert timeouts.stalls() == {0: ("train", SHOWN + 2.0), 1: ("train", SHOWN + 1.0)}
    beat(0, 4.0 + SHOWN, advanced=2)
    assert timeouts.stalls().keys() == {1}
    assert one == {0: ("train", SHOWN)}
    timeouts.forget(1)
    assert timeouts.stalls() == {}
    beat(2, 5.0 + SHOWN)
    timeouts.excuse(now + 6.0 + SHOWN)
    assert timeouts.stalls() == {}

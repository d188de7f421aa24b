"""What the tests of the wire share: an engine without processes, whose agents the test plays."""

from __future__ import annotations

import json

from hopyard.core.messages import Card
from hopyard.ports.engines import LaunchInfo


class Cards:
    """An engine that starts nobody, and keeps the cards for the test."""

    name, workers, threads, apart, workers_by_host = "cards", 2, 1, False, (2,)
    endpoint, start_timeout, driver_workers, in_process = ("127.0.0.1", 0), 120.0, 0, False
    shared_places = False

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        self.cards: dict[int, Card] = {}
        self.waiting: set[int] = set()
        self.ended: list[int] = []

    def open(self, launch: LaunchInfo) -> Cards:
        self._launch = launch
        return self

    def start(self, slot: int) -> None:
        self.cards[slot] = Card(**json.loads(self._launch.card(slot)))

    def end(self, slot: int) -> None:
        self.ended.append(slot)

    def lost(self) -> list[tuple[int, str]]:
        return []

    def watch(self) -> list[int]:
        return []

    def waits(self, slot: int) -> bool:
        return slot in self.waiting

    def device(self, slot: int) -> str:
        return "cuda" if slot == 1 else "cpu"

    def close(self) -> None:
        pass

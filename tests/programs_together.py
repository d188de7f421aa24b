"""Programs that fit alone on the places of a cluster, and not together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopyard as hy
import programs
from hopyard.core.programs.events import CODEC, ProgramLine, Reserved, Yielded
from hopyard.store.journal import read
from jobs import until

EngineOf = Callable[[int], Any]
"""Number of workers → an engine."""


def lines(directory: Path, kind: type[ProgramLine]) -> list[Any]:
    """Return the lines of this kind in the journal of a program."""
    return [line for line in read(directory / "program.jsonl", CODEC) if isinstance(line, kind)]


def one_leaves_its_places_to_another(engine_of: EngineOf, directory: Path, places: int) -> None:
    """One program runs on half of the places. A larger one gets the other half, which is too few for it, so a smaller
    one, which comes later, runs there; the larger one runs after them."""
    half = places // 2

    def launch(name: str, workers: int, main: Any) -> hy.Program:
        engine = engine_of(workers)
        return hy.launch(main, 0.5, roles={"worker": workers}, engine=engine, directory=directory / name)

    first = launch("first", half, programs.serve_until_stopped)
    try:
        until(lambda: len(first.summary()["tasks"]) == half)
        large = launch("large", half + 1, programs.works)
        until(lambda: len(lines(directory / "large", Reserved)) >= half)
        small = launch("small", half, programs.works)
        assert small.wait(60).status == "completed" and not first.done and not large.done
        assert len(lines(directory / "large", Yielded)) >= 1
    finally:
        first.stop()
    assert large.wait(60).status == "completed"


def two_complete(engine_of: EngineOf, directory: Path) -> tuple[float, int]:
    """Run two programs of three workers, begun at once, on four places; return the seconds and how often one has given
    its places back."""
    began, start, ended = time.monotonic(), threading.Barrier(2), []

    def run(name: str) -> None:
        engine = engine_of(3)
        start.wait()
        how: dict[str, Any] = {"roles": {"worker": 3}, "engine": engine, "directory": directory / name}
        ended.append(hy.launch(programs.works, 2.0, **how).wait(120).status)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ["completed", "completed"]
    return time.monotonic() - began, sum(len(lines(directory / name, Yielded)) for name in ("one", "other"))

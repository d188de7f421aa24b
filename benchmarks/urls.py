"""A run whose directory is at a URL ÷ the same one with a local directory: time from first fact to last, in turns.

    python benchmarks/urls.py [--repeats 5] [--delay 0.05] [--synchronous]

The store is the shaky one of the tests, which answers each request after `--delay` seconds; States are there in both.
`--synchronous` also takes a journal each append of which waits for its segment, as `docs/log.md` compares.

Goals: 1.03 with units of 1 s, equal digests. What a run takes longer from call to return is printed too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
RATIO = 1.03
WORKERS, PARTITIONS = 2, 4
CASES = {1.0: (4, 2), 0.02: (16, 8)}
"""Seconds of a unit → trials and epochs."""


def known_to_workers(folder: Path) -> None:
    """Register the protocol of the store in all processes that start from now on."""
    entries = folder / "shaky-1.0.dist-info"
    entries.mkdir()
    (entries / "METADATA").write_text("Metadata-Version: 2.1\nName: shaky\nVersion: 1.0\n")
    (entries / "entry_points.txt").write_text("[fsspec.specs]\nshaky = shaky:Shaky\n")
    sys.path += [str(TESTS), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(folder), os.environ.get("PYTHONPATH", "")])


def measure(directory: str, store: str, seconds: float) -> tuple[float, float, list[str]]:
    """Return the seconds from first fact to last, those of the call, and the digests of the final States."""
    import hopyard as hy
    from hopyard.frameworks.linear import Linear
    from jobs import WIDTH, dataset

    trials, epochs = CASES[seconds]

    def recipe(config: dict[str, Any]) -> Any:
        class Slow(Linear):
            def train(self, batch: Any) -> Any:
                time.sleep(config["seconds"])
                return super().train(batch)

        return Slow(WIDTH, 2, lr=config["lr"], batch_size=1000)

    configs = [{"lr": 0.1 / (1 + trial), "seconds": seconds} for trial in range(trials)]
    began = time.monotonic()
    run = hy.select(
        recipe, None, dataset(partitions=PARTITIONS, validation=0.0), search=hy.Configs(configs), epochs=epochs,
        metric="loss", mode="min", engine=hy.Local(workers=WORKERS), directory=directory, store=store, exact=False,
    )  # fmt: skip
    call = time.monotonic() - began
    return run.summary()["wall_seconds"], call, [trial.digest for trial in run.trials]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--synchronous", action="store_true")
    given = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known_to_workers(folder)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "bucket").mkdir()
        import shaky
        from hopyard.store.journal import Journal

        shaky.faults(folder / "bucket", delay=given.delay)
        append = Journal.append

        def waiting(journal: Any, lines: Any) -> None:
            append(journal, lines)
            journal.shared(journal.size, 3600.0)

        kinds = ["local", "url", *(["synchronous"] if given.synchronous else [])]
        for seconds in CASES:
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            calls: dict[str, list[float]] = {kind: [] for kind in kinds}
            digests = set()
            for number in range(given.repeats):
                for turn in range(len(kinds)):
                    kind = kinds[(number + turn) % len(kinds)]
                    if kind == "synchronous":
                        from hopyard.store.urls import mirror

                        pace, mirror.pace = mirror.pace, lambda number: 0.0
                        Journal.append = waiting  # type: ignore[method-assign]
                    place = f"{kind}-{seconds}-{number}"
                    directory = str(folder / place) if kind == "local" else f"shaky://{folder}/bucket/{place}"
                    wall, call, final = measure(directory, f"shaky://{folder}/bucket/states", seconds)
                    if kind == "synchronous":
                        mirror.pace = pace
                        Journal.append = append  # type: ignore[method-assign]
                    times[kind].append(wall)
                    calls[kind].append(call)
                    digests.add(tuple(final))
            assert len(digests) == 1, "the digests differ"
            for kind in kinds[1:]:
                ratios = [a / b for a, b in zip(times[kind], times["local"], strict=True)]
                more = statistics.median(calls[kind]) - statistics.median(calls["local"])
                print(
                    f"units of {seconds:g} s, {given.delay * 1000:.0f} ms a request, {kind} ÷ local: "
                    f"{statistics.median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f}); the call takes "
                    f"{more:.1f} s longer; local: {statistics.median(times['local']):.1f} s",
                    flush=True,
                )
                if kind == "url" and seconds == 1.0:
                    worst = statistics.median(ratios)
    return int(worst > RATIO)


if __name__ == "__main__":
    sys.exit(main())

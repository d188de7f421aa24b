"""What it costs to be told what to do next: from the `Done` of a no-op unit to its agent's next unit.

    python benchmarks/control.py [--units 2000]

One slot, one partition a unit, the durable journal and the encrypted wire included: the agent notes when it said `Done`
and when it has the next unit in hand. Beside it, in the same folder right after, the median `fdatasync` of a line of
the same length. The goal is at most 1 ms plus one median fdatasync.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from nothing import Nothing, rows

PARTITIONS = 100


def recipe(config: dict[str, Any]) -> Any:
    from hopyard.agent.connection import DriverConnection
    from hopyard.core.runs.events import Done

    if not hasattr(DriverConnection, "noted"):  # once an agent: note the times at its own end of the wire
        DriverConnection.noted = Path(config["notes"]).open("ab", buffering=0)
        send, receive, said = DriverConnection.send, DriverConnection.receive, []

        def note_send(self: Any, message: Any, patient: bool = False) -> None:
            send(self, message, patient)
            if isinstance(message, Done):
                said.append(time.perf_counter())

        def note_receive(self: Any, idle: Any = None) -> Any:
            message = receive(self, idle)
            if said:
                DriverConnection.noted.write(np.float64(time.perf_counter() - said.pop()).tobytes())
            return message

        DriverConnection.send, DriverConnection.receive = note_send, note_receive
    return Nothing()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        notes = folder / "notes"
        with contextlib.redirect_stdout(io.StringIO()):
            run = hy.fit(
                recipe,
                {"notes": str(notes.absolute())},
                rows(PARTITIONS),
                epochs=max(1, asked.units // PARTITIONS),
                engine=hy.Local(workers=1),
                parallel=hy.Hopper(group="off"),
                directory=folder / "run",
            )
        waits = np.fromfile(notes)
        journal = run.directory / "journal.jsonl"
        line = bytes(2 * journal.stat().st_size // len(journal.read_bytes().splitlines()))
        file = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        syncs = []
        for _ in range(500):
            os.write(file, line)
            began = time.perf_counter()
            os.fdatasync(file)
            syncs.append(time.perf_counter() - began)
        wait, sync = statistics.median(waits) * 1e3, statistics.median(syncs) * 1e3
        print(f"{len(waits)} units; fdatasync of {len(line)} bytes: {sync:.3f} ms")
        print(f"Done to next unit in hand: median {wait:.3f} ms, 90 % within {np.quantile(waits, 0.9) * 1e3:.3f} ms")
        print(f"control cost beyond one fdatasync: {wait - sync:.3f} ms (at most 1)")


if __name__ == "__main__":
    main()

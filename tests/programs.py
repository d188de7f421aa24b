"""Programs of the tests: plain Python, so that what is tested is the hosting. Sent by value, imported by no agent."""

from __future__ import annotations

import time
from typing import Any


def values(program: Any, name: str) -> list[float]:
    """What each task of the program has reported last under this name; 0 of who has reported none."""
    return [task["values"].get(name, 0) for task in program.summary()["tasks"]]


def note(ctx: Any, word: str, text: str = "") -> None:
    """Leave a note in the program's directory."""
    path = ctx.directory / "notes"
    path.mkdir(exist_ok=True)
    (path / f"{ctx.role}-{ctx.index}-{ctx.restart}-{word}").write_text(text)


def who(args: Any, ctx: Any) -> None:
    import os

    note(ctx, "pid", str(os.getpid()))
    ctx.report({"rank": ctx.rank, "world": ctx.world_size}, step=1)


def serves(args: Any, ctx: Any) -> None:
    """Parameter servers and evaluators never end; others work for a moment."""
    import os

    note(ctx, "pid", str(os.getpid()))
    if ctx.role in ("ps", "evaluator"):
        time.sleep(1000)
    time.sleep(float((args or {}).get("work", 0.0)))


def idle(args: Any, ctx: Any) -> None:
    import os

    note(ctx, "pid", str(os.getpid()))
    time.sleep(1000)


def summarizes(logs: str, ctx: Any) -> None:
    """The first task writes summaries, by TensorBoard's own writer."""
    import sys
    from types import ModuleType

    if ctx.rank == 0:
        sys.modules["tensorboard.compat.notf"] = ModuleType(
            "notf"
        )  # else it imports TensorFlow where that is installed
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(logs)
        for step in (1, 2, 3):
            value = Summary.Value(tag="loss", simple_value=1 / 2**step)
            writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
        writer.close()
    time.sleep(1000)


SUMMARIES = [(1, 0.5), (2, 0.25), (3, 0.125)]
"""What `summarizes` writes: (step, loss)."""


def page_of(program: Any) -> tuple[str, list[tuple[int, float]]]:
    """Return the host in the URL of a program's TensorBoard, and what its page shows, read from there."""
    import json
    from urllib.parse import urlsplit
    from urllib.request import urlopen

    url, end = program.tensorboard_url(300), time.monotonic() + 120
    assert url, program.logs()
    while True:
        try:
            with urlopen(f"{url}data/plugin/scalars/scalars?run=.&tag=loss", timeout=60) as answer:
                return str(urlsplit(url).hostname), [(step, value) for _, step, value in json.load(answer)]
        except OSError:  # nothing is loaded yet
            assert time.monotonic() < end
            time.sleep(0.2)


def misbehaves(args: dict[str, Any], ctx: Any) -> None:
    """One task does what `args` says, in its first `times` lives; the others wait for it."""
    import os
    import signal
    import sys

    note(ctx, "pid", str(os.getpid()))
    if (ctx.role, ctx.index) != tuple(args["who"]) or ctx.restart >= args.get("times", 99):
        time.sleep(args.get("others", 1000) if ctx.restart < args.get("times", 99) else 0.1)
        return
    time.sleep(0.2)
    match args["how"]:
        case "raise":
            raise ValueError("the third wheel came off")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "agent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        case "segfault":
            import ctypes

            ctypes.string_at(0)
        case "exit 3":
            os._exit(3)
        case "exit 0":
            os._exit(0)
        case "sys.exit":
            sys.exit("no more")
        case "import":
            import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def collects(args: Any, ctx: Any) -> None:
    """Takes its feed, and says what came."""
    total = rows = batches = 0
    for batch in ctx.feed().batches(100):
        column = batch["a"] if "a" in batch else batch["_1"]
        rows, batches, total = rows + len(column), batches + 1, total + int(column.sum())
        if args and args.get("fail_at") and rows >= args["fail_at"]:
            raise ValueError("row of the wrong kind")
        if args and args.get("enough") and rows >= args["enough"]:
            ctx.feed().terminate()
    ctx.report({"rows": rows, "batches": batches, "total": total})


def works(seconds: float, ctx: Any) -> None:
    """Writes nothing: its host may share no folder with the driver."""
    time.sleep(seconds)
    ctx.report({"rank": ctx.rank})


def serve_until_stopped(seconds: float, ctx: Any) -> None:
    """The same, until it is stopped."""
    time.sleep(1000)

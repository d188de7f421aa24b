"""What the tests of feeds share: a server in this process, and threads that send to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.feeds.receiver import FeedServer

TOKEN = "a token"


@contextmanager
def feed_server(folder: Path, index: int = 0, **more: Any) -> Iterator[FeedServer]:
    made = FeedServer(folder, "127.0.0.1", TOKEN, index, more.pop("apart", False), **more)
    try:
        yield made
    finally:
        made.close()


def later(function: Callable[..., Any], *args: Any, **named: Any) -> Future[Any]:
    """Runs in a thread of its own; the result can be waited for."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function(*args, **named))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def numbers(start: int, rows: int, width: int = 3) -> Any:
    """Rows whose `y` is the number of the row, and whose `x` is a list of it and what follows."""
    y = np.arange(start, start + rows)
    x = (y[:, None] + np.arange(width)).astype(np.float32)
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.record_batch(
        [pa.ListArray.from_arrays(pa.array(offsets), pa.array(x.reshape(-1))), pa.array(y)], ["x", "y"]
    )

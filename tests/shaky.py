"""A folder of this host at URLs `shaky://…`, for any number of processes: a store that lags, fails and loses answers.

Its faults are files beside the folder, so that tests turn them on and off while drivers are at work.
"""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

FAULTS = "faults.json"


class Shaky(LocalFileSystem):
    """Faults are read before each request from the nearest `faults.json` above its path: {"away": true} refuses all,
    "hold" lets them wait until it is gone, "delay" is in seconds, "fail" and "lose" are the shares of requests that are
    not done, and that are done with their answers lost."""

    protocol = ("shaky",)
    cachable = False
    requests = 0
    dice = random.Random(0)
    inside = threading.local()
    """Whether a thread is in a request, which may call other methods: a store lists a folder by one request."""

    def _faults(self, path: str) -> dict[str, Any]:
        for folder in Path(path).parents:
            try:
                return json.loads((folder / FAULTS).read_text())
            except (FileNotFoundError, ValueError):  # ValueError: it is being written
                continue
        return {}


def _request(name: str) -> Any:
    """A method of the file system, as a request of a store."""
    method = getattr(LocalFileSystem, name)

    def request(self: Shaky, path: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.inside, "request", False):
            return method(self, path, *args, **kwargs)
        Shaky.requests += 1
        while (faults := self._faults(self._strip_protocol(path))).get("hold"):
            time.sleep(0.01)
        time.sleep(faults.get("delay", 0.0))
        if faults.get("away") or Shaky.dice.random() < faults.get("fail", 0.0):
            raise ConnectionError(f"{name} of {path}: 503 Slow Down")
        self.inside.request = True
        try:
            answer = method(self, path, *args, **kwargs)
        finally:
            self.inside.request = False
        if Shaky.dice.random() < faults.get("lose", 0.0):
            raise TimeoutError(f"{name} of {path}: no answer")
        return answer

    return request


for each in ("pipe_file", "cat_file", "link", "ls", "info", "rm_file", "makedirs"):
    setattr(Shaky, each, _request(each))

fsspec.register_implementation("shaky", Shaky, clobber=True)


def faults(folder: Path, **faults: Any) -> None:
    """Set the faults of the store in this folder, none by default."""
    part = folder / f".{FAULTS}"
    part.write_text(json.dumps(faults))
    part.replace(folder / FAULTS)

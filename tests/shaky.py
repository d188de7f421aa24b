"""A folder of this host at URLs `shaky://…`, for any number of processes: a store that lags, fails, loses answers and
lies. At `bucket://…` it has the operations of an object store: uploads that are seen whole, and conditions.

Its faults are files beside the folder, so that tests turn them on and off while drivers are at work.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

FAULTS = "faults.json"


class Shaky(LocalFileSystem):
    """Faults are read before each request from the nearest `faults.json` above its path: {"away": true} refuses all,
    "hold" lets them wait until it is gone, "delay" is in seconds, "fail" and "lose" are the shares of requests that are
    not done, and that are done with their answers lost. With {"lie": true} a file that must not be there is
    overwritten, and the answer is that it was not."""

    protocol: tuple[str, ...] = ("shaky",)
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


def _link(system: Shaky, source: str, target: str) -> None:
    (os.replace if system._faults(target).get("lie") else os.link)(source, target)


def _upload(system: Shaky, path: str, value: bytes, mode: str = "overwrite") -> None:
    part = Path(tempfile.gettempdir(), uuid.uuid4().hex)
    part.write_bytes(value)
    try:
        path = system._strip_protocol(path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # object stores have no folders
        (os.link if mode == "create" and not system._faults(path).get("lie") else os.replace)(part, path)
    finally:
        part.unlink(missing_ok=True)


def _request(name: str, method: Any) -> Any:
    """A method of the file system, as a request of a store."""

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


for each in ("pipe_file", "cat_file", "open", "mv", "ls", "info", "rm_file", "makedirs"):
    setattr(Shaky, each, _request(each, getattr(LocalFileSystem, each)))
Shaky.link = _request("link", _link)


class Bucket(Shaky):
    """The same as an object store. Such stores are known by their protocols, of which it has one more."""

    protocol = ("bucket", "s3")
    pipe_file = _request("pipe_file", _upload)


for system in (Shaky, Bucket):
    fsspec.register_implementation(system.protocol[0], system, clobber=True)


def faults(folder: Path, **faults: Any) -> None:
    """Set the faults of the store in this folder, none by default."""
    part = folder / f".{FAULTS}"
    part.write_text(json.dumps(faults))
    part.replace(folder / FAULTS)

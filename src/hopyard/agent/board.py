"""TensorBoard beside a program's first task."""

from __future__ import annotations

import os
import re
import subprocess
import sys

_URL = re.compile(rb"https?://\S+?:\d+/")


class Board:
    """A TensorBoard process. Ended with the agent, as it is in its group.

    Args:
        directory: of the event files.
        address: to listen on.
    """

    def __init__(self, directory: str, address: str) -> None:
        arguments = ["--logdir", directory, "--host", address, "--port", "0", "--load_fast=false"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._said = b""
        self._told = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def found(self) -> str:
        """Its URL, once, as soon as it is known; else empty. When it cannot run, "" and a line in the log."""
        if self._process.stderr is None:
            return ""
        more = self._process.stderr.read()
        if self._told:
            return ""
        if more:
            self._said += more
            match = _URL.search(self._said)
            if match:
                self._told = True
                return match.group().decode()
        if self._process.poll() is not None:
            self._told = True
            print(f"TensorBoard did not start: {self._said.decode(errors='replace')[-2000:]}", flush=True)  # noqa: T201
        return ""

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

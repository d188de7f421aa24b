"""TensorBoard beside the first task of a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys

_URL = re.compile(rb"https?://\S+?:\d+/")


class TensorBoard:
    """A TensorBoard process. It ends with the agent, as it is in the agent's group.

    Args:
        directory: of the event files.
        address: to listen on.
    """

    def __init__(self, directory: str, address: str) -> None:
        arguments = ["--logdir", directory, "--host", address, "--port", "0", "--load_fast=false"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tensorboard.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._output = b""
        self._reported = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> tuple[str, str] | None:
        """Return (URL, reason why there is none), one of them empty, once it is known; None before and after that."""
        assert self._process.stderr is not None
        more = self._process.stderr.read()
        if self._reported:
            return None
        self._output += more or b""
        if match := _URL.search(self._output):
            self._reported = True
            return match.group().decode(), ""
        if self._process.poll() is not None:
            self._reported = True
            return "", self._output.decode(errors="replace").strip()[-2000:] or f"exit code {self._process.returncode}"
        return None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

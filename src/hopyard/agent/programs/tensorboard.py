"""TensorBoard beside a program's first task."""

from __future__ import annotations

import os
import re
import subprocess
import sys

_URL = re.compile(rb"https?://\S+?:\d+/")


class TensorBoard:
    """A TensorBoard process. Ended with the agent, as it is in its group.

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
        self._said = b""
        self._reported = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def found(self) -> tuple[str, str] | None:
        """Its URL, or why it has none, once, as soon as that is known."""
        assert self._process.stderr is not None
        more = self._process.stderr.read()
        if self._reported:
            return None
        self._said += more or b""
        if match := _URL.search(self._said):
            self._reported = True
            return match.group().decode(), ""
        if self._process.poll() is not None:
            self._reported = True
            return "", self._said.decode(errors="replace").strip()[-2000:] or f"exit code {self._process.returncode}"
        return None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

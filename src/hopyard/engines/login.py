"""A login to a host that lasts as long as a run: one process there, started by ssh, and again when it ends."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence

from hopyard.engines.processes import kill_group
from hopyard.engines.ssh import Target, explained, remote
from hopyard.engines.supervisors.host import UNREACHED_CODE
from hopyard.engines.supervisors.ticket import Ticket, line_of
from hopyard.text import escaped

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Time before the first new login to a host whose login ended; it doubles with each."""
MOST_SECONDS = 60.0
"""The longest time between two logins."""
STEADY_SECONDS = 60.0
"""A login that lasted so long was no failure: the next one comes soon."""
KILL_SECONDS = 2.0
"""How long the end of a login that is cut may take."""
LINES = 20
"""Lines of a host's errors that are kept."""


class Login:
    """Owner of the ssh process, and of the thread that starts it.

    Args:
        ssh: the command that logs in.
        target: the host.
        python: the Python that runs there.
        slots: how many supervisors it has.
        devices: "auto" or "none", see `supervisors.host.shares`.
        ticket: goes to the host on standard input.
    """

    def __init__(
        self, ssh: Sequence[str], target: Target, python: str, slots: int, devices: str, ticket: Ticket
    ) -> None:
        self._ssh, self._target, self._python, self._ticket = ssh, target, python, ticket
        words = [python, "-P", "-m", "hopyard.engines.supervisors", str(slots), devices]
        self._command = remote(ssh, target, words)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.closing = threading.Event()
        """Set when the login is not to be renewed."""
        self.fault = ""
        """Why the last login ended; empty: it has not."""
        self._thread = threading.Thread(target=self._run, name=f"hopyard-login-{target.host}", daemon=True)

    def begin(self) -> None:
        """Log in, and again when the login ends, until `closing` is set."""
        self._thread.start()

    def close(self, deadline: float) -> None:
        """End the login; it may end by itself until the deadline."""
        self.closing.set()
        if not self._thread.ident:
            return
        self._thread.join(max(0.0, (deadline - time.monotonic()) / 2))
        with self._lock:
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # its host process ends all when it sees that
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if process is not None and self._thread.is_alive():
            log.warning("%s does not end its processes; the login is cut", self._target.host)
            kill_group(process.pid)  # ssh may be a wrapper, whose child holds standard error
            self._thread.join(KILL_SECONDS)

    def _run(self) -> None:
        pause = AGAIN_SECONDS
        while not self.closing.is_set():
            began = time.monotonic()
            code, errors = self._login()
            if self.closing.is_set():
                return
            self.fault = self._explained(code, errors)
            if time.monotonic() - began > STEADY_SECONDS:
                pause = AGAIN_SECONDS
            log.warning("%s; it is logged in to again in %.0f s", self.fault, pause)
            self.closing.wait(pause)
            pause = min(2 * pause, MOST_SECONDS)

    def _login(self) -> tuple[int, str]:
        """Stay logged in for as long as the host's process lives; return ssh's exit code and the last errors."""
        try:
            with self._lock:
                if self.closing.is_set():  # `close` may have looked for a process already
                    return 0, ""
                process = self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C in the driver's terminal is the driver's
                )
        except OSError as error:
            return 255, f"{self._command[0]} cannot be run: {error.strerror}"
        with process:
            assert process.stdin is not None and process.stderr is not None
            with contextlib.suppress(OSError):  # it has ended; its errors say why
                process.stdin.write(line_of(self._ticket))
                process.stdin.flush()
            lines: deque[str] = deque(maxlen=LINES)
            for line in process.stderr:
                lines.append(line.decode(errors="replace"))
            code = process.wait()
            with self._lock:
                self._process = None
            with contextlib.suppress(OSError):
                process.stdin.close()
        return code, "".join(lines)

    def _explained(self, code: int, errors: str) -> str:
        if code == UNREACHED_CODE:
            last = escaped((errors.strip().splitlines() or ["it cannot reach this process"])[-1])
            return (
                f"{self._target.host}: {last}: give hy.Hosts(address=…) an address of this host that it can dial, and "
                "port=… where a firewall lets three ports in a row through"
            )
        if code == 0:
            return f"{self._target.host}: its processes ended, as their connections to this one did"
        return explained(self._ssh, self._target, self._python, code, errors)

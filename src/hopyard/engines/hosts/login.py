"""Logins to hosts: one process on each, started by ssh, and again when it ends; and the supervisors that they bring."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence

from hopyard.engines.hosts.ssh import SshTarget, explained, remote
from hopyard.engines.processes import kill_group
from hopyard.engines.supervised import Placement
from hopyard.engines.supervisors.host import UNFIT_CODE, UNREACHED_CODE
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket, line_of
from hopyard.ports.engines import LaunchInfo
from hopyard.system.network import joined
from hopyard.text import escaped, shell_command

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Time before the first new login to a host whose login ended; it doubles with each."""
MOST_SECONDS = 60.0
"""The longest time between two logins."""
STEADY_SECONDS = 60.0
"""A login that lasted so long was no failure: the next one comes soon."""
KILL_SECONDS = 2.0
"""How long the end of a login that is cut may take."""
END_SECONDS = 5.0
"""How long hosts may take to end what runs there."""
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
        self, ssh: Sequence[str], target: SshTarget, python: str, slots: int, devices: str, ticket: Ticket
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
            if code == UNFIT_CODE:  # of which the driver has warned, and which nobody mends in a second
                pause = MOST_SECONDS
            else:
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
        if code == UNFIT_CODE:
            return escaped((errors.strip().splitlines() or [f"{self._target.host} cannot work for this process"])[-1])
        if code == 0:
            return f"{self._target.host}: its processes ended, as their connections to this one did"
        return explained(self._ssh, self._target, self._python, code, errors)


class Logins(Placement):
    """Owner of the logins to all hosts; where hosts join by themselves there are none.

    Args:
        logins: none has begun yet.
        supervisors: those that the hosts have.
        ticket: of these.
        join: the path of the ticket by which hosts join; None: they are logged in to.
    """

    def __init__(self, logins: Sequence[Login], supervisors: Supervisors, ticket: Ticket, join: str | None) -> None:
        self.supervisors, self._logins, self._join = supervisors, logins, join
        self._address = joined(ticket.host, ticket.port)
        self._begun = False

    def begin(self, launch: LaunchInfo) -> None:
        """Begin a run, of which no login has ended yet."""
        for login in self._logins:
            login.fault = ""

    def place(self) -> None:
        """Log in to all hosts, once; give up when all logins have ended, and no supervisor came."""
        faults = [login.fault for login in self._logins]
        if not self._begun:
            self._begun = True
            for login in self._logins:
                login.begin()
        elif faults and all(faults) and not self.supervisors.admitted_count:
            self.supervisors.give_up("; ".join(faults))

    def absence(self, when: str) -> str:
        """Return the sentence that no host has a supervisor here."""
        if self._join is not None:
            join = shell_command("agent --join", self._join)
            return f"no host has joined {when}: run `{join}` on each; they dial {self._address}"
        faults = "; ".join(login.fault for login in self._logins if login.fault)
        return f"no host has dialled {self._address} {when}{': ' if faults else ''}{faults}"

    def close(self) -> None:
        """End all agents, and what runs on the hosts."""
        for login in self._logins:
            login.closing.set()
        self.supervisors.close()
        deadline = time.monotonic() + END_SECONDS
        for login in self._logins:
            login.close(deadline)

"""Processes on other hosts by the system's OpenSSH, with its keys, agent, settings and jump hosts."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hopyard import __version__
from hopyard.checks import names, sequence
from hopyard.core.facts import UNREADABLE
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.engines.survey import ASK, MARK, HostAnswer, one_line, read_answer
from hopyard.errors import ResourceError, SpecError
from hopyard.system.network import address_towards
from hopyard.text import escaped, shown

OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""No terminal; no questions; ten seconds for a host that does not answer; no process that stays behind to be used
again; only errors are printed; a connection to a host that vanished ends within 20 s."""
ASK_SECONDS = 60.0
"""How long a host may take to say what it has."""
FAILED = 255
"""Exit code of ssh itself; others are those of what it runs."""
_TARGET = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:@\[\]]+)|(?P<bare>[^\s@\[\]]*:[^\s@\[\]]*:[^\s@\[\]]*))"
    r"(?::(?P<slots>\d+))?"
)


@dataclass(frozen=True, slots=True)
class SshTarget:
    """One host as the user names it: "a", "b:4", "user@c", "[2001:db8::1]:4"."""

    destination: str
    """What ssh is given."""
    slots: int | None
    """How many agents; None: the host is asked."""

    @property
    def host(self) -> str:
        """The name or address without the user's."""
        return self.destination.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A host that has what is needed."""

    target: SshTarget
    slots: int
    cores: int
    gpus: tuple[str, ...]
    frameworks: tuple[str, ...]
    name: str
    """As the host calls itself."""
    clock: float
    """By how many seconds its clock is ahead of this host's, at most."""


def targets(name: str, hosts: object) -> tuple[SshTarget, ...]:
    """Return the hosts that the argument `name` lists.

    Raises:
        SpecError: it is no list of hosts, or one stands there twice.
    """
    texts = names(hosts)
    if not texts:
        raise SpecError(f'{name} must be a list of hosts such as ["a", "b:4", "user@c"], got {shown(hosts)}')
    result: list[SshTarget] = []
    for text in texts:
        match = _TARGET.fullmatch(text)
        if match is None or "@-" in f"@{text}" or not text.isprintable() or match["slots"] == "0":
            raise SpecError(
                f'{name} must be a list of hosts such as ["a", "b:4", "user@c", "[2001:db8::1]:4"], the number behind '
                f"the colon being that of its workers, >= 1; got {shown(text)}"
            )
        host = match["six"] or match["host"] or match["bare"]
        target = SshTarget(f"{match['user']}@{host}" if match["user"] else host, int(match["slots"] or 0) or None)
        if any(other.destination == target.destination for other in result):
            raise SpecError(f"{name}: {target.destination!r} appears twice; {target.destination}:4 are four workers")
        result.append(target)
    return tuple(result)


def command_of(name: str, value: object) -> tuple[str, ...]:
    """Return the argument `name`, a command with options as text or list, as its words.

    Raises:
        SpecError: it is no command.
    """
    words = sequence(value)
    try:
        if isinstance(words, str):
            words = shlex.split(words)
    except ValueError as error:
        raise SpecError(f"{name}: {shown(value)} is no command: {error}") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise SpecError(f'{name} must be a command such as "ssh" or ["ssh", "-p", "2222"], got {shown(value)}')
    return tuple(words)


def remote(ssh: Sequence[str], target: SshTarget, words: Sequence[str]) -> list[str]:
    """Return the command that runs these words on a host."""
    return [*ssh, *OPTIONS, target.destination, shlex.join(words)]


def survey(ssh: Sequence[str], hosts: Sequence[SshTarget], python: str, devices: str = "auto") -> list[Surveyed]:
    """Ask all hosts what they have, at the same time.

    Raises:
        ResourceError: one cannot be reached, or lacks something; one sentence for each such host.
    """
    results = ask_all(ssh, hosts, python, devices)
    if faults := [result for result in results if isinstance(result, str)]:
        raise ResourceError("; ".join(faults))
    return [result for result in results if isinstance(result, Surveyed)]


def ask_all(ssh: Sequence[str], hosts: Sequence[SshTarget], python: str, devices: str = "auto") -> list[Surveyed | str]:
    """Return what each host has, or why it cannot be used. `devices`: "none" leaves GPUs alone."""
    with ThreadPoolExecutor(min(len(hosts), 32)) as pool:
        return list(pool.map(lambda target: _ask(ssh, target, python, devices), hosts))


def _ask(ssh: Sequence[str], target: SshTarget, python: str, devices: str) -> Surveyed | str:
    words = remote(ssh, target, [python, "-c", one_line(ASK), __version__, PYTHON])
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
            start_new_session=True,
        )
    except OSError as error:
        return f"{target.host}: {ssh[0]} cannot be run: {error.strerror}; hy.Hosts(ssh=…) names another command"
    except subprocess.TimeoutExpired:
        return f"{target.host} has not said within {ASK_SECONDS:.0f} seconds what it has; try {by_hand(ssh, target)}"
    now = time.time()
    line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), "")
    if not line:
        return explained(ssh, target, python, done.returncode, done.stderr)
    try:
        answer = read_answer(line.removeprefix(MARK))
    except UNREADABLE as error:
        return f"{target.host} answers what cannot be read: {error}"
    gpus = answer.gpus if devices == "auto" else ()
    return _fault(target, python, answer) or Surveyed(
        target,
        target.slots or len(gpus) or answer.cores,
        answer.cores,
        gpus,
        tuple(map(escaped, answer.frameworks)),
        escaped(answer.host),
        answer.time - now,
    )


def _fault(target: SshTarget, python: str, answer: HostAnswer) -> str:
    """Return what a host lacks; "" where it is nothing."""
    host, version = target.host, escaped(answer.version)
    if answer.python != PYTHON:
        return (
            f"{host} has Python {escaped(answer.python)} as {python}, and this process is {PYTHON}: neither reads the "
            f"other's pickles; give hy.Hosts(python=…) a Python {PYTHON} there"
        )
    if answer.fault:
        return (
            f"{host} has no Hopyard in {python} ({escaped(answer.fault)}): install it there "
            f"(pip install hopyard=={__version__}), or give hy.Hosts(python=…) a Python that has it"
        )
    if answer.version != __version__:
        return f"{host} has Hopyard {version} in {python}, and this process {__version__}: install the same on both"
    return ""


def explained(ssh: Sequence[str], target: SshTarget, python: str, code: int, errors: str) -> str:
    """Return in one sentence why a command on a host has ended.

    Args:
        ssh: the command that ran it.
        target: the host.
        python: the Python that it was to run there.
        code: the exit code.
        errors: what was printed to standard error.
    """
    lines = [escaped(line.strip()) for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {code}"
    if code == FAILED:
        return f"{target.host}: {last}; try {by_hand(ssh, target)}"
    if code in (126, 127):
        return f"{target.host} has no Python at {python} ({last}); give hy.Hosts(python=…) the path of one there"
    return f"{target.host}: {last}"


def by_hand(ssh: Sequence[str], target: SshTarget) -> str:
    """Return a command with which people can try the login."""
    return f"`{shlex.join([*ssh, target.destination, 'true'])}`"


def destination_address(ssh: Sequence[str], target: SshTarget) -> str:
    """Return the address of a host as this one knows it; "": its name means nothing here."""
    name = target.host
    try:  # what ssh makes of the name: it may be an alias in its settings
        settings = subprocess.run(
            [*ssh, "-G", target.destination],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
        name = next((line[9:] for line in settings.stdout.splitlines() if line.startswith("hostname ")), name)
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def address_for(ssh: Sequence[str], target: SshTarget) -> str:
    """Return the address of this host that a connection to a host would have; "": that is not known."""
    address = destination_address(ssh, target)
    return address_towards(address) if address else ""

"""The address and the credentials with which a supervisor dials the driver. A ticket goes in a Spark task, by ssh on
standard input, in a file that only its owner may read, or in a Secret; never on a command line, and in no log."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hopyard.certificate import make_certificate
from hopyard.core.facts import UNREADABLE
from hopyard.engines.supervisors.messages import Prepare
from hopyard.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ticket:
    """It lets supervisors in. What their agents need comes with it, or later by `Prepare`."""

    host: str
    """The host by which supervisors dial the driver."""
    port: int
    token: str = field(repr=False)
    prepare: Prepare | None = field(default=None, repr=False)
    """What the agents get; None: the driver sends it."""
    job: int = 0
    """Number of what places the supervisor: of the Spark job whose task this is."""
    certificate: str = field(default="", repr=False)
    """The key and certificate of both ends, see `certificate.py`; empty: the line is in clear, as Spark's own traffic
    may be."""


def line_of(ticket: Ticket) -> bytes:
    """Return a ticket as one line."""
    return msgspec.json.encode(ticket) + b"\n"


def ticket_of(line: bytes) -> Ticket:
    """Return the ticket of a line.

    Raises:
        UsageError: it is none.
    """
    try:
        return msgspec.json.decode(line, type=Ticket)
    except UNREADABLE as error:
        raise UsageError(f"this is no ticket of this version of Hopyard: {error}") from None


def new(host: str, port: int) -> Ticket:
    """Return a new ticket of a pool: for all supervisors that dial this host at the port after this one, which is the
    one for messages; the next one is for States."""
    return Ticket(host, port + 1, secrets.token_hex(16), certificate=make_certificate())


def write(path: Path, ticket: Ticket) -> None:
    """Write a ticket to a new file that only this user may read.

    Raises:
        UsageError: the file is there already, or cannot be written.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already; delete it first, or give another name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(line_of(ticket))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def read(path: Path) -> Ticket:
    """Return the ticket in a file that its owner alone may read, or in a Secret, as Kubernetes mounts it for a group.

    Raises:
        UsageError: there is none, or others may read it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; `hopyard ticket` makes one") from None
    mode, groups = stat.S_IMODE(status.st_mode), (os.getegid(), *os.getgroups())
    secret = mode == 0o440 and status.st_uid == 0 and status.st_gid in groups
    if mode & 0o077 and not secret:
        raise UsageError(
            f"{path} has mode {mode:04o}: others may read it, and whoever has a ticket may run code in its name; "
            f"chmod 600 {path}, and make another ticket if somebody may have read this one"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{path} belongs to another user (number {status.st_uid}): a ticket must be one's own")
    try:
        return ticket_of(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None

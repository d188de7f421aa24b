"""Who may write a file: what lies in the folder of another user may be another's code."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def other_writers(path: Path) -> str:
    """Return who but this user and root may write a file or replace it in its folder; "" where nobody else may.

    A group that is its user's own, as many systems make one for each user, is that user.

    Raises:
        OSError: the file is not there, or cannot be looked at.
    """
    for place, what in ((path, "it"), (path.absolute().parent, "its folder"), (path.resolve().parent, "its folder")):
        status = place.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (os.geteuid(), 0):
            return f"{what} belongs to {_user(status.st_uid)}"
        if mode & stat.S_IWOTH:
            return f"all users may write {what} (mode {mode:04o})"
        if mode & stat.S_IWGRP and not _is_own(status.st_gid, status.st_uid):
            return f"the group {_group(status.st_gid)} may write {what} (mode {mode:04o})"
    return ""


def _is_own(gid: int, uid: int) -> bool:
    try:
        name, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

"""Who may write a file: what lies in the folder of another user may be another's code."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def other_writers(path: Path, file: int | None = None) -> str:
    """Return who but this user and root may write a file or replace it in its folder; "" where nobody else may.

    A group that is its user's own, as many systems make one for each user, is that user. Folders above are not looked
    at.

    Args:
        path: of the file.
        file: its descriptor, where it is open: then that file is meant, whatever is at the path by now.

    Raises:
        OSError: the file is not there, or cannot be looked at.
    """
    folders = {path.absolute().parent, path.resolve().parent}
    for place, what in [(path if file is None else file, "it"), *((folder, "its folder") for folder in folders)]:
        status = os.stat(place)  # noqa: PTH116 - a descriptor, perhaps
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (os.geteuid(), 0):
            return f"{what} belongs to {_user(status.st_uid)}"
        if mode & stat.S_IWOTH:
            return f"all users may write {what} (mode {mode:04o})"
        if mode & stat.S_IWGRP and _has_list(place):
            return f"an access control list says who may write {what}"
        if mode & stat.S_IWGRP and not _is_own(status.st_gid, status.st_uid):
            return f"the group {_group(status.st_gid)} may write {what} (mode {mode:04o})"
    return ""


def _has_list(place: Path | int) -> bool:
    try:
        return bool(os.getxattr(place, "system.posix_acl_access"))
    except (OSError, AttributeError):  # none, none on this file system, none on this operating system
        return False


def _is_own(gid: int, uid: int) -> bool:
    """Whether a group has only this user. Root's own is another's for everybody else: whole containers are in it."""
    if gid == 0:
        return os.geteuid() == 0
    try:
        name, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    others = {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid} | set(group.gr_mem)
    return group.gr_name == name and others <= {name}


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

"""Who runs a container: the securityContext of a pod and of its container, and the `setpriv` that applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT = frozenset(
    {
        *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "net_raw"),
        *("setfcap", "setgid", "setpcap", "setuid", "sys_chroot"),
    }
)
"""The capabilities of a container that names none, as of containerd."""


class ConfigError(Exception):
    """A container cannot be made of its pod: CreateContainerConfigError, with this message."""


@dataclass(frozen=True)
class Identity:
    """The user, groups and capabilities of a container."""

    user: int
    group: int
    groups: tuple[int, ...]
    capabilities: frozenset[str]
    no_new_privileges: bool

    def setpriv(self) -> list[str]:
        """Return the command that runs another so; it ends when its parent does."""
        bounding = ",".join(["-all", *(f"+{name}" for name in sorted(self.capabilities))])
        words = ["setpriv", f"--reuid={self.user}", f"--regid={self.group}", f"--bounding-set={bounding}"]
        words.append(f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups")
        return [*words, "--inh-caps=-all", *["--no-new-privs"] * self.no_new_privileges, "--pdeathsig=KILL", "--"]


def identity(pod: Mapping[str, Any], container: Mapping[str, Any], user: int = 0) -> Identity:
    """Return the identity of a container, whose image has this user. Raises ConfigError if it may not run as root."""
    shared, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    both = {**shared, **own}
    if both.get("runAsNonRoot") and both.get("runAsUser", user) == 0:
        meta = pod["metadata"]
        where = f'(pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: {container["name"]})'
        if "runAsUser" in both:
            raise ConfigError(f"container's runAsUser breaks non-root policy {where}")
        raise ConfigError(f"container has runAsNonRoot and image will run as root {where}")
    groups = {*shared.get("supplementalGroups", ()), *([shared["fsGroup"]] if "fsGroup" in shared else [])}
    changes = own.get("capabilities") or {}
    dropped, added = _names(changes.get("drop")), _names(changes.get("add"))
    return Identity(
        user=both.get("runAsUser", user),
        group=both.get("runAsGroup", 0),
        groups=tuple(sorted(groups)),
        capabilities=(frozenset() if "all" in dropped else DEFAULT - dropped) | added,
        no_new_privileges=own.get("allowPrivilegeEscalation") is False,
    )


def _names(words: list[str] | None) -> frozenset[str]:
    """Return names of capabilities as `setpriv` has them."""
    return frozenset(word.lower().removeprefix("cap_") for word in words or ())

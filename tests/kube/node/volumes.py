"""The volumes of a pod, mounted as a kubelet does: Secrets, ConfigMaps, claims, empty and host directories.

A claim is a folder of the node. Service accounts other than the default one have their token where pods look for it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kube.node.client import Object

Fetch = Callable[[str, str], Object | None]
"""(resource, name) → the object of the pod's namespace, or None."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SOURCES = {"secret": ("secrets", "secretName"), "configMap": ("configmaps", "name")}
"""Kind of a volume → the resource whose object it shows, and the key of that object's name."""


ACCOUNT, ACCOUNT_FOLDER = "service-account", "/run/secrets/kubernetes.io/serviceaccount"
"""The volume with the credentials of a pod, and its place (/var/run leads to /run)."""
ROOT_CA = "kube-root-ca.crt"
"""ConfigMap that each namespace has, with the authority of the API server."""


class MountError(Exception):
    """A volume cannot be mounted, yet or ever: FailedMount, with this message."""


@dataclass(frozen=True)
class Mount:
    """A folder of the node, or a tmpfs, that a container has at `target`."""

    target: str
    source: str
    read_only: bool = False


@dataclass(frozen=True)
class Memory:
    """A tmpfs that is mounted at a folder of the node, in the pod's mount namespace only."""

    folder: str
    options: str


def quantity(text: str | int) -> int:
    """Return a quantity of Kubernetes, such as 64Mi, in bytes."""
    words = str(text)
    unit = next((unit for unit in UNITS if words.endswith(unit)), "")
    return int(float(words.removesuffix(unit)) * UNITS.get(unit, 1))


class Volumes:
    """The volumes of one pod, below a folder of the node.

    Args:
        pod: its manifest.
        folder: that of the node.
        fetch: gets objects.
        claims: the folder with those of claims, which stay.
        token: service account → a token of it.
    """

    def __init__(self, pod: Object, folder: Path, fetch: Fetch, claims: Path, token: Callable[[str], str]) -> None:
        spec = pod["spec"]
        self._claims, self._token, self._namespace = claims, token, pod["metadata"]["namespace"]
        account = spec.get("serviceAccountName", "default")
        self._account = account if account != "default" and spec.get("automountServiceAccountToken", True) else ""
        self._folder, self._fetch = folder, fetch
        self._volumes: list[Object] = spec.get("volumes") or []
        self._group: int | None = (spec.get("securityContext") or {}).get("fsGroup")
        limit = (spec["containers"][0].get("resources") or {}).get("limits", {}).get("memory")
        self._memory = None if limit is None else quantity(limit)
        self._mounts: list[Object] = spec["containers"][0].get("volumeMounts") or []
        self._shown: dict[str, dict[str, tuple[bytes, int]]] = {}
        """Volume → what it shows: path → content and mode."""
        self.memory: list[Memory] = []
        self.live = any(kind in volume for volume in self._volumes for kind in SOURCES)
        """Whether the content of some may change."""

    def set_up(self) -> None:
        """Make all that are not there. Raises MountError for the first that cannot be mounted."""
        self.memory = []
        for volume in self._volumes:
            try:
                self._set_up(volume)
            except MountError as error:
                raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from None
        if self._account:
            authority = self._fetch("configmaps", ROOT_CA) or {"data": {}}
            files = {"token": self._token(self._account), "namespace": self._namespace, **authority["data"]}
            self._write(self._folder / ACCOUNT, {name: (text.encode(), 0o644) for name, text in files.items()})

    def refresh(self) -> None:
        """Bring Secrets and ConfigMaps up to date. One that is required and gone stays as it is."""
        for volume in self._volumes:
            for kind in SOURCES:
                if kind in volume:
                    with contextlib.suppress(MountError):
                        self._show(volume["name"], kind, volume[kind])

    def mounts(self) -> list[Mount]:
        """Return what the container has where, outer folders first."""
        volumes, mounts = {volume["name"]: volume for volume in self._volumes}, []
        for mount in sorted(self._mounts, key=lambda mount: str(mount["mountPath"])):
            volume = volumes[mount["name"]]
            source = volume["hostPath"]["path"] if "hostPath" in volume else str(self._folder / mount["name"])
            read_only = bool(mount.get("readOnly")) or any(kind in volume for kind in SOURCES)
            if "persistentVolumeClaim" in volume:
                source = str(self._claim(volume["persistentVolumeClaim"]["claimName"]))
            mounts.append(Mount(mount["mountPath"], source, read_only))
        if self._account:
            mounts.append(Mount(ACCOUNT_FOLDER, str(self._folder / ACCOUNT), read_only=True))
        return mounts

    def _claim(self, name: str) -> Path:
        """Return the folder of a claim."""
        return self._claims / f"{self._namespace}_{name}"

    def _set_up(self, volume: Object) -> None:
        (kind,) = [key for key in volume if key != "name"] or ["emptyDir"]
        folder, options = self._folder / volume["name"], volume.get(kind) or {}
        if any("subPath" in mount for mount in self._mounts if mount["name"] == volume["name"]):
            raise MountError("this kubelet knows no subPath")
        if kind in SOURCES:
            self._show(volume["name"], kind, options)
        elif kind == "emptyDir":
            self._own(folder, 0o777)
            if options.get("medium") == "Memory":
                self._add_memory(folder, options)
            elif options.get("medium"):
                raise MountError(f"this kubelet has no medium {options['medium']}")
        elif kind == "persistentVolumeClaim":
            if self._fetch("persistentvolumeclaims", options["claimName"]) is None:
                raise MountError(f'persistentvolumeclaim "{options["claimName"]}" not found')
            self._own(self._claim(options["claimName"]), 0o777)
        elif kind == "hostPath":
            if not Path(options["path"]).is_dir():
                raise MountError(f"hostPath type check failed: {options['path']} is not a directory")
        else:
            raise MountError(f"this kubelet has no volumes of kind {kind}")

    def _add_memory(self, folder: Path, options: Object) -> None:
        """Have a tmpfs mounted there, as large as the limit, or else as the memory of the pod."""
        sizes = [quantity(options["sizeLimit"])] if options.get("sizeLimit") else []
        size = min(sizes + ([self._memory] if self._memory else []), default=None)
        group = "" if self._group is None else f",gid={self._group}"
        mode = "1777" if self._group is None else "3777"
        self.memory.append(Memory(str(folder), f"mode={mode}{group}" + ("" if size is None else f",size={size}")))

    def _show(self, name: str, kind: str, options: Object) -> None:
        """Let a volume have what its object has now."""
        resource, key = SOURCES[kind]
        found, optional = self._fetch(resource, options[key]), bool(options.get("optional"))
        if found is None and not optional:
            raise MountError(f'{kind.lower()} "{options[key]}" not found')
        content = {} if found is None else _content(resource, found)
        mode, files = options.get("defaultMode", 0o644), {}
        for item in options.get("items") or [{"key": entry, "path": entry} for entry in content]:
            if item["key"] in content:
                files[item["path"]] = (content[item["key"]], item.get("mode", mode))
            elif not optional:
                raise MountError(f"references non-existent {kind.lower()} key: {item['key']}")
        self._write(self._folder / name, files)

    def _write(self, folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
        """Show these files, all at once: names lead to `..data`, that to a folder of this moment."""
        if self._shown.get(folder.name) == files:
            return
        self._own(folder, 0o1777)
        data = folder / "..data"
        old = folder / os.readlink(data) if data.is_symlink() else None
        new = folder / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S.%f}"
        self._own(new, 0o755)
        for name, (content, mode) in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(content)
            if self._group is not None:
                os.chown(new / name, 0, self._group)
            (new / name).chmod(mode if self._group is None else mode | 0o440)
        link = folder / "..data_tmp"
        link.symlink_to(new.name)
        link.replace(data)
        tops = {Path(name).parts[0] for name in files}
        for name in tops:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        for name in set(os.listdir(folder)) - tops:
            if not name.startswith(".."):
                (folder / name).unlink()
        if old is not None:
            shutil.rmtree(old)
        self._shown[folder.name] = files

    def _own(self, folder: Path, mode: int) -> None:
        """Make a folder, unless it is there, that the pod's group owns."""
        if not folder.exists():
            folder.mkdir(parents=True)
            if self._group is not None:
                os.chown(folder, 0, self._group)
                mode |= 0o2070 if mode & 0o002 else 0o2050
            folder.chmod(mode)


def _content(resource: str, found: Object) -> dict[str, bytes]:
    """Return the files of a Secret or a ConfigMap."""
    if resource == "secrets":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return binary | {key: value.encode() for key, value in (found.get("data") or {}).items()}

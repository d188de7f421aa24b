"""The life of one pod on its node: volumes, image, container, end. Each has a thread, which alone acts for it."""

from __future__ import annotations

import contextlib
import select
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kube.node import cgroups, statuses
from kube.node.cgroups import Cgroup
from kube.node.client import AWAY, Client, Object, RefusedError
from kube.node.containers import Image, StartError, container
from kube.node.events import Events
from kube.node.identities import ConfigError
from kube.node.sandbox import Address, Container, Sandbox, SandboxError
from kube.node.volumes import MountError, Volumes, quantity

TICK = 0.05
"""Seconds after which a pod that runs is looked at."""


@dataclass(frozen=True)
class Delays:
    """How long a kubelet waits, in seconds: for less than a real one does. What fails again waits twice as long."""

    heartbeat: float = 10.0
    mount: float = 0.5
    """Before a volume that cannot be mounted is tried again."""
    image: float = 2.0
    """Before an image that cannot be pulled is tried again."""
    config: float = 1.0
    """Before a container that cannot be made of its pod is tried again."""
    content: float = 1.0
    """Until a volume shows a change of its Secret."""
    longest: float = 30.0


@dataclass(frozen=True)
class Node:
    """What the pods of a node share."""

    client: Client
    events: Events
    directory: Path
    bridge: str
    images: Mapping[str, Image]
    delays: Delays
    group_kill: bool
    server: str
    """URL of the API server."""

    @property
    def logs(self) -> Path:
        """The folder of the logs, `<namespace>_<pod>.log`."""
        return self.directory / "logs"


class DeletedError(Exception):
    """The pod was deleted before its container began, or its node is gone."""


class Pod:
    """A pod that was bound to this node. `manifest` is what the API server has last told of it."""

    def __init__(self, manifest: Object, node: Node, address: Address) -> None:
        self.manifest, self.address = manifest, address
        self.sandbox: Sandbox | None = None
        self.over = threading.Event()
        """Nothing is left of it on this node."""
        meta = manifest["metadata"]
        self.name = str(meta["name"])
        self._node, self._namespace = node, f"/api/v1/namespaces/{meta['namespace']}"
        self._path = f"{self._namespace}/pods/{self.name}"
        self._folder = node.directory / "pods" / meta["uid"]
        self._log = node.logs / f"{meta['namespace']}_{self.name}.log"
        claims = node.directory / "claims"
        self._volumes = Volumes(manifest, self._folder / "volumes", self._fetch, claims, self._token)
        self._began, self._id = "", ""
        self._ending = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._live, name=f"pod {self.name}", daemon=True)
        self._thread.start()

    def update(self, manifest: Object) -> None:
        """Take what the API server has now."""
        self.manifest = manifest
        if "deletionTimestamp" in manifest["metadata"]:
            self._ending.set()

    def kill(self) -> None:
        """End it at once, and report nothing."""
        self._silent = True
        self._ending.set()
        if self.sandbox is not None:
            self.sandbox.kill()

    def join(self) -> None:
        """Wait until its thread has ended."""
        self._thread.join()

    # The rest runs in the thread of the pod.

    def _live(self) -> None:
        try:
            self._run()
            self._ending.wait()
            self._remove()
        finally:
            self.over.set()

    def _run(self) -> None:
        """Run the container, and report how it ended."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.over.set)
            self._folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, self._folder)
            cgroup = self._cgroup()
            if cgroup is not None:
                stack.callback(cgroup.close)
            try:
                sandbox = self.sandbox = self._start(cgroup)
            except DeletedError:
                message = "The container could not be located when the pod was terminated"
                self._report(statuses.ended(self.manifest, 137, "ContainerStatusUnknown", message))
            except (StartError, SandboxError) as error:
                self._event("Warning", "Failed", f"Error: {error}")
                self._report(statuses.ended(self.manifest, 128, "StartError", str(error)))
            else:
                stack.callback(sandbox.close)
                self._report(
                    statuses.running(self.manifest, self.address.gateway, self.address.ip, self._id, self._began)
                )
                self._event("Normal", "Started", "Container started")
                self._wait(sandbox, cgroup)
                self._report(self._ended(sandbox, cgroup))

    def _cgroup(self) -> Cgroup | None:
        """Return a cgroup with the memory limit of the pod; None where none can be made."""
        version, _ = cgroups.version()
        limits = (self.manifest["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
        limit = quantity(limits["memory"]) if "memory" in limits else None
        name = self.manifest["metadata"]["uid"]
        return None if version is None else Cgroup(version, self._node.bridge, name, limit, self._node.group_kill)

    def _start(self, cgroup: Cgroup | None) -> Sandbox:
        """Return the sandbox with the container, once all is there that it needs."""
        self._report(self._waiting("ContainerCreating"))
        self._mount()
        made = self._container(self._image())
        self._event("Normal", "Created", "Container created")
        sandbox = Sandbox(made, self.address, self._folder, self._log, cgroup)
        self._began, self._id = statuses.now(), f"containerd://{uuid.uuid4().hex}"
        return sandbox

    def _mount(self) -> None:
        """Set up the volumes, however long it takes."""
        pause = self._node.delays.mount
        while True:
            try:
                return self._volumes.set_up()
            except MountError as error:
                self._event("Warning", "FailedMount", str(error))
            except AWAY:
                pass
            pause = self._pause(pause)

    def _image(self) -> Image:
        """Return the image of the container, once there is one."""
        name, pause = self.manifest["spec"]["containers"][0]["image"], self._node.delays.image
        while (image := self._node.images.get(name)) is None:
            full = name if "/" in name else f"docker.io/library/{name}"
            error = (
                f'rpc error: code = NotFound desc = failed to pull and unpack image "{full}": failed to resolve '
                f'reference "{full}": {full}: not found'
            )
            back_off = f'Back-off pulling image "{name}"'
            self._event("Normal", "Pulling", f'Pulling image "{name}"')
            self._event("Warning", "Failed", f'Failed to pull image "{name}": {error}')
            self._event("Warning", "Failed", "Error: ErrImagePull")
            self._report(self._waiting("ErrImagePull", error))
            self._pause(self._node.delays.image / 2)
            self._event("Normal", "BackOff", back_off)
            self._event("Warning", "Failed", "Error: ImagePullBackOff")
            self._report(self._waiting("ImagePullBackOff", f"{back_off}: ErrImagePull: {error}"))
            pause = self._pause(pause)
        self._event("Normal", "Pulled", f'Container image "{name}" already present on machine')
        return image

    def _container(self, image: Image) -> Container:
        """Return what the container is made of, once the pod allows it."""
        address, reported = self.address, ""
        while True:
            try:
                node = self._node.server
                return container(self.manifest, address.gateway, image, self._volumes, self._fetch, address.ip, node)
            except ConfigError as error:
                self._event("Warning", "Failed", f"Error: {error}")
                if reported != str(error):
                    self._report(self._waiting("CreateContainerConfigError", str(error)))
                    reported = str(error)
            except AWAY:
                pass
            self._pause(self._node.delays.config)

    def _wait(self, sandbox: Sandbox, cgroup: Cgroup | None) -> None:
        """Wait until the container is over: end it if the pod is deleted, and keep its volumes up to date."""
        poll = select.poll()
        poll.register(sandbox.pidfd, select.POLLIN)
        kill_at, refresh_at = None, time.monotonic() + self._node.delays.content
        while not poll.poll(1000 * TICK):
            now = time.monotonic()
            if self._silent:
                sandbox.kill()
            elif self._ending.is_set() and kill_at is None:
                name = self.manifest["spec"]["containers"][0]["name"]
                self._event("Normal", "Killing", f"Stopping container {name}")
                sandbox.terminate()
                kill_at = now
            if kill_at is not None and now >= kill_at + self.manifest["metadata"].get("deletionGracePeriodSeconds", 30):
                sandbox.kill()
            if self._node.group_kill and cgroup is not None and cgroup.ran_out():
                sandbox.kill()
            if self._volumes.live and now >= refresh_at:
                with contextlib.suppress(RefusedError, *AWAY):
                    self._volumes.refresh()
                refresh_at = time.monotonic() + self._node.delays.content

    def _ended(self, sandbox: Sandbox, cgroup: Cgroup | None) -> Object:
        """Return the status of a pod whose container is over."""
        code = sandbox.wait()
        reason = "OOMKilled" if cgroup is not None and cgroup.ran_out() else "Error" if code else "Completed"
        message = sandbox.message()
        policy = self.manifest["spec"]["containers"][0].get("terminationMessagePolicy")
        if code and not message and policy == "FallbackToLogsOnError":
            message = "".join(self._log.read_text(errors="replace")[-2048:].splitlines(keepends=True)[-80:])
        return statuses.ended(self.manifest, code, reason, message, self._began, self._id)

    def _waiting(self, reason: str, message: str = "") -> Object:
        return statuses.waiting(self.manifest, self.address.gateway, reason, message)

    def _event(self, kind: str, reason: str, message: str) -> None:
        if not self._silent:
            self._node.events.add(self.manifest, kind, reason, message)

    def _fetch(self, resource: str, name: str) -> Object | None:
        """Return an object of the pod's namespace, or None."""
        try:
            return self._node.client.call("GET", f"{self._namespace}/{resource}/{name}")
        except RefusedError as error:
            if error.code != 404:
                raise
            return None

    def _token(self, account: str) -> str:
        """Return a token of a service account of the pod's namespace."""
        path = f"{self._namespace}/serviceaccounts/{account}/token"
        return str(self._node.client.call("POST", path, {})["status"]["token"])

    def _report(self, status: Object) -> None:
        """Tell the API server, however long it is away."""
        status |= {"startTime": self.manifest["status"].get("startTime") or statuses.now()}
        self.manifest = {**self.manifest, "status": {**self.manifest["status"], **status}}
        self._insist(lambda: self._node.client.patch_status(self._path, status))

    def _remove(self) -> None:
        """Let the API server remove a pod that was deleted and is over."""
        uid = self.manifest["metadata"]["uid"]
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._insist(lambda: self._node.client.call("DELETE", self._path, options))

    def _insist(self, request: Callable[[], object]) -> None:
        """Make a request until it is answered, unless this pod is to be silent, or is gone."""
        while not self._silent:
            try:
                request()
                return
            except RefusedError as error:
                if error.code in (404, 409):  # it is gone, or there is another of this name
                    return
                if error.code not in (429, 500, 503, 504):
                    raise
            except AWAY:
                pass
            time.sleep(0.2)

    def _pause(self, seconds: float) -> float:
        """Wait, and return how long to wait the next time. Raises DeletedError if the pod is to end."""
        if self._ending.wait(seconds):
            raise DeletedError
        return min(2 * seconds, self._node.delays.longest)

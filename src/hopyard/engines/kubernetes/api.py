"""The Kubernetes API: a few calls, in raw JSON, by the official client.

The client brings kubeconfig, plugins for credentials, renewal of tokens, proxies and TLS. Its models are not used.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from hopyard import __version__
from hopyard.engines.kubernetes.configuration import configure
from hopyard.errors import SpecError, UsageError
from hopyard.text import error_line, escaped, shown

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
"""Time-outs of each call."""
KEEP_ALIVE = {"idle": 10, "interval": 5, "count": 2}
"""TCP keepalive: the kernel ends a connection 20 s after the last sign of the other end."""
LOG_LINES = 200
JSON = "application/json"
GROUPS = {"jobs": "batch/v1", "podgroups": "scheduling.k8s.io/v1beta1"}
"""Resource → its group of the API and version; others are in the core group."""
Query = Sequence[tuple[str, str]]
UNTRUSTED = "Untrusted"
"""Reason of an error: the server's certificate is not one that the kubeconfig trusts."""
_DISTRUST = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|$)")
"""In the words of OpenSSL."""
INSTALL = "hy.Kubernetes needs the Kubernetes client: pip install 'hopyard[kubernetes]'"


class ApiError(Exception):
    """A call failed.

    Attributes:
        status: of HTTP; 0: the API could not be reached, or what answered was no API.
        reason: in one word, "Forbidden" for example.
        message: the server's sentence.
        retry_after: seconds to wait, as the server asks for; 0: it does not.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        self.status, self.reason, self.retry_after = status, escaped(reason), retry_after
        self.message = escaped(" ".join(message.split()))[:1000]
        super().__init__(self.message if not status else f"{self.message} ({status} {self.reason})")

    @property
    def away(self) -> bool:
        """Return True if it may pass by itself: the API is away or overloaded, or a quota is full or was changed."""
        busy = self.reason == "Conflict" or "exceeded quota" in self.message
        return self.reason != UNTRUSTED and (busy or self.status in {0, 429} or self.status >= 500)

    @classmethod
    def of(cls, status: int, body: bytes | dict[str, Any], retry_after: str = "") -> ApiError:
        """Return the error that an answer means, a `Status` object as a rule."""
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        try:
            about = json.loads(body) if isinstance(body, bytes) else body
            wait = seconds or float((about.get("details") or {}).get("retryAfterSeconds") or 0)
            return cls(status, about.get("reason") or "", about["message"], wait)
        except (ValueError, AttributeError, TypeError, KeyError):  # what a proxy says
            text = body[:300].decode(errors="replace") if isinstance(body, bytes) else shown(body)
            return cls(status, "", text or "no text", seconds)


class Api:
    """A namespace of a cluster, for any number of threads.

    Args:
        context: of the kubeconfig; None: its current one, or the cluster in which this process is a pod.
        namespace: None: the context's, or that of this pod, or "default".

    Raises:
        SpecError: there is no configuration, or no such context.
        UsageError: the client is not installed.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        try:
            import urllib3
            from kubernetes.client import Configuration
            from kubernetes.client.exceptions import ApiException
            from kubernetes.config.config_exception import ConfigException
            from kubernetes.utils.keepalive import tcp_keepalive_socket_options
        except ImportError as error:
            raise UsageError(f"{INSTALL} ({error})") from None
        self.failures = (urllib3.exceptions.HTTPError, ApiException, ConfigException, OSError)
        """Exceptions of the client for an API server that cannot be reached."""
        self._lock = threading.Lock()
        self._configuration = Configuration()
        self._configuration.retries = False  # waiting is the caller's matter
        self._configuration.socket_options = tcp_keepalive_socket_options(**KEEP_ALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: nothing is probed while something sent is not acknowledged
            most = 1000 * (KEEP_ALIVE["idle"] + KEEP_ALIVE["interval"] * KEEP_ALIVE["count"])
            self._configuration.socket_options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, most))
        self.context, own = configure(self._configuration, context)
        self.server: str = self._configuration.host
        self.host: str = urlsplit(self.server).hostname or ""
        self.namespace: str = namespace or own or "default"
        self._client = self.new_client()

    def new_client(self) -> Any:
        """Return a client with connections of its own."""
        from kubernetes.client import ApiClient

        client = ApiClient(self._configuration)
        client.user_agent = f"hopyard/{__version__}"
        return client

    def create(self, resource: str, manifest: dict[str, Any]) -> Any:
        """Create an object, and return it. Unknown fields are refused."""
        return self.call("POST", self.path(resource), manifest, [("fieldValidation", "Strict")])

    def get(self, resource: str, name: str) -> Any:
        """Return an object."""
        return self.call("GET", self.path(resource, name))

    def patch(self, resource: str, name: str, changes: dict[str, Any]) -> Any:
        """Change an object by a JSON merge patch, which replaces lists as a whole, and return it."""
        return self.call("PATCH", self.path(resource, name), changes, kind="application/merge-patch+json")

    def delete(self, resource: str, name: str, version: str = "") -> None:
        """Delete an object; what it owns is deleted soon after. None is deleted that is not there. `version`: its
        `resourceVersion`; an object that was changed since then stays, and the error has the reason "Conflict"."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if version:
            options["preconditions"] = {"resourceVersion": version}
        try:
            self.call("DELETE", self.path(resource, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def list(self, resource: str, labels: str = "", fields: str = "") -> Any:
        """Return the objects that these selectors choose, as a list object with `items`."""
        selectors = [(key, text) for key, text in (("labelSelector", labels), ("fieldSelector", fields)) if text]
        return self.call("GET", self.path(resource), query=selectors)

    def events(self, kind: str, name: str) -> Any:
        """Return the events of an object; `kind`: "Job" or "Pod"."""
        return self.list("events", fields=f"involvedObject.kind={kind},involvedObject.name={name}")["items"]

    def version(self) -> tuple[int, int]:
        """Return the server's version, (1, 36) for example."""
        about = self.call("GET", "/version")
        numbers = re.findall(r"\d+", f"{about.get('major')} {about.get('minor')}")  # "30+" at some providers
        return int(numbers[0]), int(numbers[1])

    def serves(self, resource: str) -> bool:
        """Return whether the API server has a resource of `GROUPS`. Raises ApiError if that is not known."""
        try:
            listing = self.call("GET", f"/apis/{GROUPS[resource]}")
        except ApiError as error:
            if error.status in {403, 404}:
                return False
            raise
        return any(each["name"] == resource for each in listing["resources"])

    def allowed(self, verb: str, resource: str, subresource: str = "") -> bool:
        """Return whether this user may do that in the namespace."""
        group = GROUPS.get(resource, "").partition("/")[0]
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked | ({"subresource": subresource} if subresource else {})},
        }
        answer = self.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer["status"].get("allowed"))

    def log(self, pod: str) -> str:
        """Return the last lines that a pod's container `hopyard` printed."""
        query = [("container", "hopyard"), ("tailLines", str(LOG_LINES))]
        with self.request("GET", self.path("pods", pod) + "/log", query=query) as body:
            return bytes(body.data).decode(errors="replace")

    def why(self, error: ApiError) -> str:
        """Return a sentence about a call that failed, with the next step."""
        if error.reason == UNTRUSTED:
            return f"{error}; give its authority in the kubeconfig, as certificate-authority-data"
        if error.status == 0:
            return f"{error}; see whether `kubectl get pods` works"
        which = f"the API server {self.server}"
        if error.status == 401:
            return f"{which} does not know this user (401 Unauthorized); log in again, or renew the kubeconfig's token"
        if error.status == 404 and f'namespaces "{self.namespace}"' in error.message:
            return f"{which} has no namespace {self.namespace}; create it, or give another namespace="
        if error.status == 403 and " cannot " in error.message:
            role = "let the user have the Role of docs/kubernetes.md, or give another namespace="
            return f"{which} refuses: {error.message}; {role}"
        return f"{which} {'does not answer' if error.away else 'refuses'}: {error}"

    def path(self, resource: str, name: str = "") -> str:
        """Return the path of a resource of the namespace, or of one of its objects."""
        root = f"apis/{GROUPS[resource]}" if resource in GROUPS else "api/v1"
        parts = [root, "namespaces", quote(self.namespace, ""), resource]
        return "/".join(["", *parts, *([quote(name, "")] if name else [])])

    def call(self, method: str, path: str, body: Any = None, query: Query = (), **more: Any) -> Any:
        """Return the JSON of the answer. Raises ApiError."""
        with self.request(method, path, body, query, **more) as response:
            data = response.data
        try:
            return json.loads(data)
        except ValueError:
            raise ApiError(0, "", f"{self.server} gave no JSON but {shown(data[:200])}: is it the API?") from None

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, body: Any = None, query: Query = (), kind: str = JSON, client: Any = None,
        read_seconds: float | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Give the response, whose body has not been read yet. Raises ApiError, also for what fails in the block."""
        try:
            response = self._send(client or self._client, method, path, body, query, kind, read_seconds or READ_SECONDS)
            try:
                yield response
            finally:
                response.close()  # what was read to its end has given its connection back already
        except self.failures as error:
            fault = error_line(error)
            if distrust := _DISTRUST.search(fault):
                why = f"the certificate of the API server {self.server} is not trusted: {distrust[1]}"
                raise ApiError(0, UNTRUSTED, why) from None
            fault = fault.rpartition("Failed to establish a new connection: ")[2]
            raise ApiError(0, "", f"the API server {self.server} cannot be reached: {fault}") from None

    def _send(self, client: Any, method: str, path: str, body: Any, query: Query, kind: str, read: float) -> Any:
        for first in (True, False):
            headers = {"Accept": f"{JSON}, */*", "Content-Type": kind}
            with self._lock:  # a plugin may be run for a token, once
                request = client.param_serialize(
                    *(method, path), query_params=list(query), header_params=headers, body=body,
                    auth_settings=["BearerToken"],
                )  # fmt: skip
            response = client.call_api(*request, _request_timeout=(CONNECT_SECONDS, read)).response
            if 200 <= response.status < 300:
                return response
            text = response.data
            if response.status != 401 or not first:
                break
            with self._lock, contextlib.suppress(SpecError):  # a token that was replaced in its file, in days of a run
                configure(self._configuration, self.context)
        raise ApiError.of(response.status, text, response.headers.get("Retry-After", ""))

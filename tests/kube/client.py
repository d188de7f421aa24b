"""A plain client of a Kubernetes API, for tests."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON = "application/json"


class Failed(Exception):
    """An answer of 400 or more."""

    def __init__(self, code: int, status: Object, headers: dict[str, str]) -> None:
        super().__init__(f"{code} {status.get('reason')}: {status.get('message')}")
        self.code, self.status, self.headers = code, status, headers


class Client:
    """Asks as one user.

    Args:
        ca: the file of the authority that signed the server's certificate.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None, ca: Path | None = None) -> None:
        self.url, self.headers = url, headers or {}
        self._context = ssl.create_default_context(cafile=str(ca)) if ca is not None else None

    def open(self, method: str, path: str, body: Any = None, kind: str = JSON, timeout: float | None = 60) -> Any:
        """Return the response of urllib.

        Raises:
            Failed: the server refused.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": JSON, "Content-Type": kind, **self.headers}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            return urllib.request.urlopen(request, context=self._context, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text.decode(errors="replace")}
            raise Failed(error.code, status, dict(error.headers)) from None

    def call(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Object:
        """Return the object that a request is answered with."""
        with self.open(method, path, body, kind) as response:
            answer: Object = json.load(response)
            return answer

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def post(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Object) -> Object:
        """PATCH with a JSON merge patch."""
        return self.call("PATCH", path, body, MERGE)

    def delete(self, path: str, body: Object | None = None) -> Object:
        return self.call("DELETE", path, body)

    def refusal(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Object:
        """Return the Status of a request that must be refused."""
        try:
            answer = self.call(method, path, body, kind)
        except Failed as failed:
            return failed.status
        raise AssertionError(f"{method} {path} was not refused, but answered with {answer}")

    def watch(self, path: str, timeout: float | None = 60) -> Iterator[Object]:
        """Iterate over the events of a watch."""
        with self.open("GET", path, timeout=timeout) as response:
            for line in response:
                yield json.loads(line)

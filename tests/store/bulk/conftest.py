"""A server of bytes, in clear and encrypted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopyard.certificate import make_certificate
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server


@pytest.fixture(scope="module")
def pem() -> str:
    return make_certificate()


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def encrypt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def credentials(encrypt: bool, pem: str) -> Credentials:
    return Credentials("the token", pem if encrypt else "")


@pytest.fixture
def server(request: pytest.FixtureRequest, credentials: Credentials, encrypt: bool) -> Iterator[Server]:
    """It does what `SERVICES` of the test's module says."""
    made = Server("127.0.0.1", credentials, request.module.SERVICES, encrypt=encrypt)
    yield made
    made.close()

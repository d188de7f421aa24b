"""The process as it was before each test: a worker sets it up for exactness, and would leave it so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    yield
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.use_deterministic_algorithms(False)

"""`rows.py` beside the tests, and torch's threads as they were before each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def exact() -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")

"""`rows.py` beside the tests, and torch as it was before each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact, warn_only=warn)


@pytest.fixture
def exact() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

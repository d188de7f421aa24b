"""Torch's threads as they were before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def exact() -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")

"""How tests are distributed over processes."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there is one process")
@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads them from the ends of names; without, each process makes what a group shares."""
    assert request.node.nodeid.endswith("@together")

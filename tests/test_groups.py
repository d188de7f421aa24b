"""How tests are distributed over processes."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads them from the ends of names; without, each process makes what a group shares."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not run with --dist loadgroup")
    assert request.node.nodeid.endswith("@together")

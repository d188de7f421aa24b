"""What paths a source takes."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.data.sources.paths import find
from hopyard.errors import SpecError

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("source", [CIRCLE, [["a.parquet"]], ["a.parquet", 3]])
def test_a_list_of_paths_has_paths(source: Any) -> None:
    with pytest.raises(SpecError, match=r"source\[\d\] must be .*got"):
        find(source, "Parquet")

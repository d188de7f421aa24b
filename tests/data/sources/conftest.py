"""What the tests of sources share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest


@pytest.fixture
def rows() -> pa.Table:
    """600 rows with nulls, text beyond the twelve bytes of a view, and an id for key=."""
    n = np.arange(600)
    names = np.array(["Ulm", "Bern", "Llanfairpwllgwyngyll"])[n % 3]
    return pa.table(
        {
            "id": n,
            "age": pa.array(np.sin(n), mask=n % 7 == 0),
            "many": n % 9,
            "city": pa.array(names, mask=n % 11 == 0),
            "left": n % 2,
        }
    )

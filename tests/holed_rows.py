"""Rows with missing values and rare categories, and how to make a data set of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import hopyard as hy

ROWS = 400


def frame(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Numbers and cities with holes; one city in fifty rows is rare; `held` names the rows that validate."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 10, rows)
    age[rng.random(rows) < 0.2] = np.nan
    city = rng.choice(["bern", "oslo", "rome"], rows, p=[0.2, 0.5, 0.3]).astype(object)
    city[:: rows // 8] = [f"village {n}" for n in range(len(city[:: rows // 8]))]
    city[rng.random(rows) < 0.1] = None
    held = rng.random(rows) < 0.25
    city[np.flatnonzero(held)[:3]] = "paris"  # validation rows alone have it
    kids = pd.array(rng.integers(0, 4, rows), dtype="Int64")
    kids[rng.random(rows) < 0.3] = pd.NA
    return pd.DataFrame({"n": np.arange(rows), "age": age, "city": city, "kids": kids, "held": held})


OPTIONS: dict[str, Any] = {
    "features": ["age", "kids", "city"],
    "label": "n",
    "validation": "held",
    "partitions": 3,
    "encode": {"city": hy.Categories("one-hot", min_frequency=10)},
    "impute": {"age": "mean", "kids": 1, "city": "most_frequent"},
}

"""A Trainable that does nothing, for runs in which all that takes time is Hopyard."""

from __future__ import annotations

from typing import Any

import numpy as np

import hopyard as hy


class Nothing(hy.Trainable):
    """A Trainable that does nothing."""

    batch_size = 64

    def state(self) -> Any:
        return {"weights": np.zeros(4)}

    def load(self, tree: Any) -> None:
        pass

    def train(self, batch: Any) -> Any:
        return {"loss": (0.0, batch.rows)}

    evaluate = train


def rows(partitions: int = 1) -> hy.Dataset:
    """A Dataset of one row a partition."""
    return hy.Dataset.numpy(np.zeros((partitions, 1), np.float32), np.zeros(partitions), partitions=partitions)

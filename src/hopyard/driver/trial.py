"""What the user holds of one trial: how it went, and the model it gave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hopyard.agent.build import Built, Plan, build, undisturbed
from hopyard.agent.work import over
from hopyard.core.books import TrialBook
from hopyard.data.encode import apply
from hopyard.data.feed import PartitionFeed
from hopyard.driver.saved import save
from hopyard.errors import HopyardError, SpecError, TrialFailed
from hopyard.frameworks import TOOLS, restore, tools
from hopyard.ports import Folding, Predicting, Store
from hopyard.spec import Config
from hopyard.store.tree import StateError, decode, digest


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where a run's models come from."""

    plan: Plan
    store: Store
    transform: Any


class Trial:
    """One trial of a run.

    Attributes:
        id: its number.
        config: its configuration.
        status: "waiting", "running", "completed" or "failed"; as its run's where that ended in the midst of it.
        epoch: the epoch with the best value of the run's metric; None before any is all in.
        metrics: of the last epoch that is all in; of `run.best`: of its best epoch.
        history: epoch → metrics.
        state: digest of its final State; "" before it is durable.
        error: why it failed, else "".
    """

    def __init__(self, book: TrialBook, steps: int, partitions: int, shelf: Any, best: bool = False) -> None:
        self._book = book
        self._steps = steps
        self._partitions = partitions
        self._shelf = shelf
        self.id = book.id
        self.config: Config = dict(book.config)
        self.status: str = book.status
        self.epoch = book.best
        self.history = {epoch: dict(values) for epoch, values in sorted(book.history.items())}
        self.metrics = dict(self.history[book.best] if best and book.best is not None else book.metrics)
        self.state = book.digests.get(steps, "")
        self.error = book.error

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return f"<Trial {self.id} {self.status} {self.config} epoch={self.epoch} {metrics}>"

    def model(self, which: Literal["best", "last"] = "best") -> Any:
        """The trained model: a torch module in evaluation mode, a compiled keras.Model, or the recipe's own Trainable.

        Raises:
            TrialFailed: there is no such model.
        """
        trainable = self._built(which).trainable
        framework = getattr(trainable, "framework", None)
        return trainable if framework not in TOOLS else tools(framework).net(trainable)

    def predict(self, data: Any, which: Literal["best", "last"] = "best") -> Any:
        """The model's outputs for every row of `data`, in its order.

        Args:
            data: a Dataset, a pandas DataFrame, an Arrow table, arrays, or a dict of arrays. The encoding that the
                run's own data had is applied; a label is not needed.
            which: whose weights.

        Returns:
            Array of shape (rows, …), or a dict of such.
        """
        built = self._built(which)
        if not isinstance(built.trainable, Predicting):
            raise HopyardError(f"{type(built.trainable).__name__} has no method predict(batch)")
        parts = []
        with undisturbed():
            for batch in self._feed(data, built, targets=False):
                parts.append(built.trainable.predict(batch))
        if parts and isinstance(parts[0], dict):
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return np.concatenate(parts)

    def evaluate(self, data: Any, which: Literal["best", "last"] = "best") -> dict[str, float]:
        """Loss and metrics over all rows of `data`, which has the label too."""
        built = self._built(which)
        feed = self._feed(data, built, targets=True)
        if feed.columns.targets is None and self._shelf().plan.manifest.targets:
            raise SpecError(f"evaluate: the data lacks the label ({', '.join(self._shelf().plan.manifest.targets)})")
        with undisturbed():
            sums = over(built.trainable, feed, train=False)
        values = {}
        for name, (total, rows) in sums.items():
            if isinstance(total, list):
                if not isinstance(built.trainable, Folding):
                    raise HopyardError(f"metric {name!r} is an array and the model has no result(name, total, rows)")
                values[name] = float(built.trainable.result(name, total, rows))
            else:
                values[name] = total / rows if rows else float("nan")
        return values

    def save(self, directory: str | Path, which: Literal["best", "last"] = "best") -> Path:
        """Write `config.json`, the weights, and the pickled recipe; `hy.load_model` reads them."""
        built = self._built(which)
        epoch = self.epoch if which == "best" else max(self.history, default=None)
        return save(Path(directory), self._shelf().plan, self._book, epoch, built)

    def _step(self, which: str) -> int:
        if which not in ("best", "last"):
            raise SpecError(f'which = {which!r}: "best" or "last" is needed')
        if which == "last" or self._book.best is None:
            return self._book.safe
        return (self._book.best + 1) * self._partitions

    def _built(self, which: str) -> Built:
        """The model with the weights of that epoch.

        Raises:
            TrialFailed: no State of it is stored.
            StateError: the stored State is damaged.
        """
        step = self._step(which)
        state = self._book.states.get(step)
        if state is None or not state.digest:
            raise TrialFailed(
                f"trial {self.id} ({self.status}) has no stored model" + (f": {self.error}" if self.error else "")
            )
        shelf: Shelf = self._shelf()
        data = shelf.store.get(state.ref)
        if (found := digest(data)) != state.digest:
            raise StateError(
                f"the stored State {state.ref} is damaged: its digest is {found[:16]}, the journal has "
                f"{state.digest[:16]}"
            )
        with undisturbed():
            built = build(replace(shelf.plan, threads=0), self.id, self.config)
        restore(built.trainable, decode(data))
        return built

    def _feed(self, data: Any, built: Built, targets: bool) -> PartitionFeed:
        shelf: Shelf = self._shelf()
        return PartitionFeed(
            apply(shelf.plan.manifest, data, shelf.transform, targets=targets), built.batch_size, None, None
        )

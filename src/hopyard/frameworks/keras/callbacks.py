"""Calls Keras' callbacks in a model that hops: hooks of epochs and training batches, once each, on any worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from hopyard.errors import SpecError
from hopyard.frameworks.tree import on_host

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_UNSUPPORTED_HOOKS = tuple(
    f"on_{event}"
    for event in (
        *("train_begin", "train_end"),
        *(f"{step}_{part}" for step in ("test", "predict") for part in ("begin", "end", "batch_begin", "batch_end")),
    )
)
"""Hooks that are never called: a model trains on many workers, and is validated beside its training."""
_INSTEAD_OF = {
    "EarlyStopping": "the run keeps each trial's best epoch by itself (run.best.epoch), and stop=hy.Patience(n) of "
    "hy.select and hy.fit ends a trial that gets no better",
    "ReduceLROnPlateau": "it needs val_loss, which is known only after the next epoch began; give the optimizer a "
    "learning-rate schedule",
    "ModelCheckpoint": "every epoch is stored by itself; run.best.save(directory) writes a model",
    "BackupAndRestore": "every State is stored by itself; hy.resume(directory) goes on",
    "TensorBoard": "the run directory has all metrics: `hopyard tensorboard` shows them, run.to_pandas() gives them",
    "CSVLogger": "run.to_pandas() gives all metrics",
    "RemoteMonitor": "run.to_pandas() gives all metrics",
    "ProgbarLogger": "the run shows its own progress",
    "History": "run.trials[i].history has it",
    "SwapEMAWeights": "validation goes on beside training and must not change weights",
}


class Hooks:
    """The callbacks of one model, and its position in its epochs. False when there are none.

    Raises:
        SpecError: a callback cannot work here; names the alternative.
    """

    def __init__(self, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = list(callbacks)
        self._epoch = 0
        self._begun = False
        self._batch = 0
        for callback in self._callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise SpecError(f"hopyard.keras.Model: callbacks: {callback!r} is not a keras.callbacks.Callback")
            for kind in type(callback).__mro__:
                if kind.__module__.startswith("keras.") and kind.__name__ in _INSTEAD_OF:
                    raise SpecError(
                        f"hopyard.keras.Model: callbacks: {kind.__name__} has no use here: {_INSTEAD_OF[kind.__name__]}"
                    )
            for name in _UNSUPPORTED_HOOKS:
                if _overridden(callback, name):
                    raise SpecError(
                        f"hopyard.keras.Model: callbacks: {type(callback).__name__} has {name}, which is never called "
                        "here, as a model hops between workers and is validated beside its training: use the hooks of "
                        "epochs and training batches"
                    )
            callback.set_model(model)
        self._model = model
        watched = any(_overridden(callback, name) for callback in self._callbacks for name in _BATCH_HOOKS)
        self.batch_hook: Callable[[Callable[[], Any]], None] | None = self._between_hooks if watched else None
        """Runs one step between the hooks of a batch; None when no callback has such hooks."""

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def state(self) -> dict[str, Any]:
        """Return the position of the model in its epochs."""
        return {"epoch": self._epoch, "begun": self._begun, "batch": self._batch}

    def load(self, tree: dict[str, Any]) -> None:
        """Restores the position."""
        self._epoch, self._begun, self._batch = tree["epoch"], tree["begun"], tree["batch"]

    def begin(self) -> None:
        """Begins a partition; the first one of an epoch also begins the epoch."""
        if self._callbacks and not self._begun:
            self._begun, self._batch = True, 0
            self._call("on_epoch_begin", self._epoch)

    def end(self) -> None:
        """Ends an epoch."""
        if self._callbacks:
            self._call("on_epoch_end", self._epoch)
            self._epoch, self._begun = self._epoch + 1, False

    def _between_hooks(self, step: Callable[[], Any]) -> None:
        self._call("on_train_batch_begin", self._batch)
        step()
        results = self._model.get_metrics_result().items()
        logs = {name: float(on_host(value)) for name, value in results if getattr(value, "shape", ()) == ()}
        self._call("on_train_batch_end", self._batch, logs)
        self._batch += 1

    def _call(self, name: str, number: int, logs: dict[str, float] | None = None) -> None:
        for callback in self._callbacks:
            getattr(callback, name)(number, dict(logs or {}))


def _overridden(callback: keras.callbacks.Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)

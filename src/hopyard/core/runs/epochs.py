"""How an epoch's metrics come in: sums of its partitions, added up when all are there; arrays are folded by a slot.

Functions over one TrialRecord of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hopyard.core.runs import lifecycle, retention
from hopyard.core.runs.events import Warn
from hopyard.core.runs.records import EpochRecord, TrialRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.spec import Part


def trained(run: RunRecord, trial: TrialRecord, epoch: int, parts: Sequence[Part]) -> None:
    """Sums of training partitions are in; the trial's step has moved on already."""
    if epoch in trial.history:  # it was done again, for its States
        return
    record = trial.epochs.get(epoch)
    if record is None:
        record = trial.epochs[epoch] = EpochRecord()
    for part in parts:
        record.train[part.partition] = part.sums
    if trial.step % run.spec.partitions == 0:
        record.left = set(range(run.spec.validation)).difference(record.validate)
        if record.left:
            run.scheduler.offer_validation(trial, epoch)
        _close(run, trial, epoch, record)


def validated(run: RunRecord, trial: TrialRecord, epoch: int, parts: Sequence[Part]) -> None:
    """Sums of validation partitions are in."""
    record = trial.epochs.get(epoch)
    if record is None:  # its metrics are in, or are not wanted any longer
        return
    for part in parts:
        record.validate[part.partition] = part.sums
    run.scheduler.learn_validation(trial, sum([part.seconds for part in parts]), len(parts))
    _close(run, trial, epoch, record)


def folded(run: RunRecord, trial: TrialRecord, epoch: int, values: dict[str, float]) -> None:
    """A slot has turned the arrays of the epoch into values."""
    record = trial.epochs.get(epoch)
    if record is not None:
        complete(run, trial, epoch, {**record.totals()[0], **values})


def complete(run: RunRecord, trial: TrialRecord, epoch: int, values: dict[str, float]) -> None:
    """The metrics of an epoch are all in, for whatever is decided by them."""
    partitions = run.spec.partitions
    trial.add_epoch(epoch, values, run.spec)
    step = (epoch + 1) * partitions
    if step < trial.step or step == run.spec.steps:
        retention.release_memory(trial, step, partitions, run.slots, run.commands)
    retention.collect(trial, partitions, run.commands)
    lifecycle.complete(run, trial)


def _close(run: RunRecord, trial: TrialRecord, epoch: int, record: EpochRecord) -> None:
    """All sums of an epoch may be in: turn them into metrics, or ask a slot to (additive arrays)."""
    if record.folding or record.left is None or len(record.validate) < run.spec.validation:
        return
    try:
        values, arrays = record.totals()
    except ValueError as error:
        lifecycle.fail(run, trial, "user", str(error), "")
        return
    loss = values.get("val_loss", 0.0)
    if run.spec.void_epochs and not math.isfinite(loss):
        _void(run, trial, epoch, loss, [*values, *arrays])
    elif arrays:
        record.folding = True
        run.scheduler.offer_fold(trial, epoch)
    else:
        complete(run, trial, epoch, values)


def _void(run: RunRecord, trial: TrialRecord, epoch: int, loss: float, names: list[str]) -> None:
    """The outputs of such an epoch are not numbers, so what else was counted of them (a class for NaN, a bin) is worth
    nothing. The trial goes on: another epoch may be its best."""
    if not any(math.isnan(values.get("val_loss", 0.0)) for values in trial.history.values()):
        run.commands.append(
            Warn(
                f"trial {trial.id}, epoch {epoch + 1}: the validation loss is {loss}; all metrics of such an epoch "
                "are NaN"
            )
        )
    complete(run, trial, epoch, dict.fromkeys(names, math.nan))

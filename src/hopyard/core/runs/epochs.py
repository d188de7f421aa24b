"""How an epoch's metrics come in: sums of its partitions, added when all are in; a slot folds arrays.

Functions over one TrialRecord of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Warn
from hopyard.core.runs.records import EpochRecord, TrialRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.core.runs.states import retention
from hopyard.spec import Part


def trained(run: RunRecord, trial: TrialRecord, epoch: int, parts: Sequence[Part]) -> None:
    """Record sums of training partitions; the trial's step has moved on already."""
    if trial.step == trial.target and (trial.paused or trial.stopped):
        trial.status = "paused" if trial.paused else "stopped"
    if epoch in trial.history or trial.stopped:  # it was done again, for its States
        return
    record = trial.epochs.get(epoch)
    if record is None:
        record = trial.epochs[epoch] = EpochRecord()
    for part in parts:
        record.train[part.partition] = part.sums
    if trial.step % run.spec.partitions == 0:
        record.pending = set(range(run.spec.validation)).difference(record.validate)
        if record.pending:
            run.scheduler.offer_validation(trial, epoch)
        _close(run, trial, epoch, record)
    elif trial.step == trial.target and run.search.awaits(trial):
        try:
            run.search.look(trial, record.totals()[0])
        except ValueError as error:
            lifecycle.fail(run, trial, "user", str(error), "")


def validated(run: RunRecord, trial: TrialRecord, epoch: int, parts: Sequence[Part]) -> None:
    """Record sums of validation partitions."""
    record = trial.epochs.get(epoch)
    if record is None:  # its metrics are in, or are not wanted any longer
        return
    for part in parts:
        record.validate[part.partition] = part.sums
    run.estimates.learn_validation(trial, sum([part.seconds for part in parts]), len(parts))
    _close(run, trial, epoch, record)


def folded(run: RunRecord, trial: TrialRecord, epoch: int, values: dict[str, float]) -> None:
    """Record the values into which a slot has turned the arrays of the epoch."""
    record = trial.epochs.get(epoch)
    if record is not None:
        complete(run, trial, epoch, {**record.totals()[0], **values})


def complete(run: RunRecord, trial: TrialRecord, epoch: int, values: dict[str, float]) -> None:
    """Record the metrics of an epoch, which are all in, and do what depends on them."""
    partitions = run.spec.partitions
    trial.add_epoch(epoch, values, run.spec)
    step = (epoch + 1) * partitions
    if step < trial.step or step == run.spec.steps:
        retention.release_memory(trial, step, partitions, run.slots, run.commands)
    retention.collect(trial, partitions, run.slots, run.commands)
    run.search.report(trial, values)
    lifecycle.complete(run, trial)


def _close(run: RunRecord, trial: TrialRecord, epoch: int, record: EpochRecord) -> None:
    """If all sums of an epoch are in, turn them into metrics, or ask a slot to do so (additive arrays)."""
    if record.folding or record.pending is None or len(record.validate) < run.spec.validation:
        return
    try:
        values, arrays = record.totals()
    except ValueError as error:
        lifecycle.fail(run, trial, "user", str(error), "")
        return
    loss = values.get("val_loss", 0.0)
    if not math.isfinite(loss):
        _void(run, trial, epoch, loss, [*values, *arrays])
    elif arrays:
        record.folding = True
        run.scheduler.offer_fold(trial, epoch)
    else:
        complete(run, trial, epoch, values)


def _void(run: RunRecord, trial: TrialRecord, epoch: int, loss: float, names: list[str]) -> None:
    """Set all metrics of the epoch to NaN: its outputs are not numbers, so other counts of them (a class for NaN, a
    bin) are worth nothing. The trial goes on: another epoch may be its best."""
    if not any(math.isnan(values.get("val_loss", 0.0)) for values in trial.history.values()):
        run.commands.append(
            Warn(
                f"trial {trial.id}, epoch {epoch + 1}: the validation loss is {loss}; all metrics of such an epoch "
                "are NaN"
            )
        )
    complete(run, trial, epoch, dict.fromkeys(names, math.nan))

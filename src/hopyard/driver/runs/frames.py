"""The trials of a run as data frames of pandas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hopyard.driver.runs.trial import Trial
from hopyard.errors import UsageError
from hopyard.spec import Config


def by_trial(trials: Sequence[Trial]) -> Any:
    """Return `Run.to_pandas`."""
    own = {"trial", "status", "epoch", "seconds", "digest", "error", "reason"}
    taken = own.union(*[(*_metrics(t.metrics, own), *_metrics(_last(t), own, "last_")) for t in trials])
    return _frame(
        (
            {"trial": t.id, "status": t.status, "epoch": t.epoch, "seconds": t.seconds},
            _config(t.config, taken),
            _metrics(t.metrics, own),
            _metrics(_last(t), own, "last_"),
            {"digest": t.digest, "error": t.error, "reason": t.reason},
        )
        for t in trials
    )


def by_epoch(trials: Sequence[Trial], seconds: Mapping[int, Mapping[int, float]], config: bool) -> Any:
    """Return `Run.history`; `seconds` has those of each trial and epoch (from 1)."""
    own = {"trial", "epoch", "seconds"}
    taken = own.union(*[_metrics(values, own) for t in trials for values in t.history.values()])
    return _frame(
        (
            {"trial": t.id, "epoch": epoch, "seconds": seconds.get(t.id, {}).get(epoch, 0.0)},
            _config(t.config, taken) if config else {},
            _metrics(values, own),
        )
        for t in trials
        for epoch, values in t.history.items()
    )


def _last(trial: Trial) -> dict[str, float]:
    """Return the metrics of the last epoch that is all in."""
    return trial.history[max(trial.history)] if trial.history else {}


def _metrics(values: Mapping[str, float], own: Collection[str], prefix: str = "") -> dict[str, float]:
    """Return column → value. `own`: columns that are no metrics."""
    return {f"metrics/{name}" if (name := prefix + metric) in own else name: v for metric, v in values.items()}


def _config(config: Config, taken: Collection[str]) -> dict[str, Any]:
    """Return column → value of a configuration. `taken`: names of other columns."""
    return {f"config/{name}" if name in taken else name: value for name, value in config.items()}


def _frame(rows: Iterable[tuple[dict[str, Any], ...]]) -> Any:
    """Return rows as a pandas DataFrame, whose columns are in the order of the parts of the rows."""
    try:
        import pandas
    except ImportError:
        raise UsageError("tables of a run need pandas: pip install pandas") from None
    rows = list(rows)
    columns = dict.fromkeys(name for parts in zip(*rows, strict=True) for part in parts for name in part)
    return pandas.DataFrame([{k: v for part in row for k, v in part.items()} for row in rows], columns=list(columns))

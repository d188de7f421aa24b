"""How long trials take, and how much of their training remains: estimates from what units took."""

from __future__ import annotations

from hopyard.core.runs.records import TrialRecord

SMOOTH = 0.5
"""Weight of the newest measurement in a trial's seconds per partition, for training and for validation."""


class Estimates:
    """The estimates of one run. Owner: `Machine`.

    Attributes:
        remaining: seconds of training left in all trials.
    """

    def __init__(self) -> None:
        self.remaining = 0.0
        self._work = 0.0
        """Seconds of training done, in `_parts` partitions."""
        self._parts = 0

    def learn(self, trial: TrialRecord, seconds: float, count: int) -> None:
        """Update the estimate after `count` partitions in so many seconds; call it after the step has moved."""
        each = seconds / count
        trial.seconds += (each - trial.seconds) * (SMOOTH if trial.seconds else 1.0)
        self._work += seconds
        self._parts += count
        remaining = (trial.target - trial.step) * trial.seconds
        self.remaining += remaining - trial.remaining
        trial.remaining = remaining

    def learn_validation(self, trial: TrialRecord, seconds: float, count: int) -> None:
        """Learn that the trial was validated on `count` partitions in so many seconds."""
        each = seconds / count
        trial.check_seconds += (each - trial.check_seconds) * (SMOOTH if trial.check_seconds else 1.0)

    def renew(self, trial: TrialRecord) -> None:
        """Estimate how long the trial still takes; a trial without measurements gets the mean."""
        each = trial.seconds or (self._work / self._parts if self._parts else 1.0)
        remaining = 0.0 if trial.ended else (trial.target - trial.step) * each
        self.remaining += remaining - trial.remaining
        trial.remaining = remaining

"""The rules by which a search looks at its trials before their last epoch, and stops, pauses or promotes them.

A rule is a frozen value, which the first line of a run's journal holds. One file has all of it: its arguments, whether
it fits a run (`check`), and the `Judge` that decides for it (`judge`). `compares`: whether it compares trials with each
other; `sync`: whether what it decides is independent of time. Epochs count from 1 here, as users see them.

What rules share: `standing` is what they know of a run, `rung` one place where trials are looked at. The judges are
`halving` (promotes as results come), `cohorts` (trials wait for each other) and `curves` (looks at one trial).
"""

from __future__ import annotations

from hopyard.stopping.asha import ASHA
from hopyard.stopping.curves import Asked, Lengths
from hopyard.stopping.hyperband import Hyperband
from hopyard.stopping.median import Median
from hopyard.stopping.patience import Patience

__all__ = ["ASHA", "RULES", "Asked", "Hyperband", "Lengths", "Median", "Patience", "Rule"]

Rule = ASHA | Hyperband | Median | Patience | Asked | Lengths
"""All rules, by which a journal is read."""
RULES = (ASHA, Hyperband, Median, Patience)
"""Those that users give."""

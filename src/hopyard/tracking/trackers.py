"""The trackers, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.text import shown
from hopyard.tracking.follower import Tracker

TRACKERS = {
    "kubeflow": "hopyard.tracking.kubeflow",
    "mlflow": "hopyard.tracking.mlflow.tracker",
    "tensorboard": "hopyard.tracking.tensorboard",
}
"""Name → module with `connect(target, layout, environ) -> Tracker`."""


def connect(track: str, layout: Layout, environ: Mapping[str, str]) -> Tracker:
    """Return a tracker of this run.

    Args:
        track: NAME or NAME=TARGET.
        layout: of the run.
        environ: credentials, and targets that are not given.

    Raises:
        SpecError: there is no such tracker.
        Refused: something that it needs is missing.
    """
    name, _, target = track.partition("=")
    if name not in TRACKERS:
        raise SpecError(f"track = {shown(track)}: no such tracker; there are {', '.join(TRACKERS)}")
    tracker: Tracker = import_module(TRACKERS[name]).connect(target, layout, environ)
    return tracker

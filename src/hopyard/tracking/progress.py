"""How far each tracker of a run is, for people: its follower writes it down, and no follower reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import msgspec

from hopyard.store.layout import Layout
from hopyard.store.standing import held
from hopyard.system.files import replacing
from hopyard.text import escaped
from hopyard.views.words import duration


class Progress(msgspec.Struct, frozen=True):
    """How far one tracker is."""

    track: str
    """The tracker: NAME or NAME=TARGET."""
    at: float = 0.0
    """When the last line of the journal was written that the tracker has; 0: it has none."""
    status: str = ""
    """The run's status then."""
    problem: str = ""
    """Why the last try failed; empty: it did not."""


def note(layout: Layout, progress: Progress) -> None:
    """Write it into the run directory, or leave it out where there is no room."""
    with contextlib.suppress(OSError), replacing(layout.tracking_progress(progress.track)) as part:
        part.write_bytes(msgspec.json.encode(progress))


def progress_of(layout: Layout, requested: Sequence[str]) -> list[Progress]:
    """Return how far the trackers of a run are: those that it was started with (`requested`), and all others that a
    follower brought it to. What cannot be read is left out."""
    found = {track: Progress(track) for track in requested}
    for path in sorted(layout.logs.glob("tracking-*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            progress = msgspec.json.decode(path.read_bytes(), type=Progress)
            found[progress.track] = progress
    return list(found.values())


def requested_by(layout: Layout) -> tuple[str, ...]:
    """Return the trackers that a run was started with, as its `run.json` has them."""
    try:
        value = json.loads(layout.about.read_bytes()).get("track", ())
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else ()


def sentence(layout: Layout, progress: Progress, at: float, status: str) -> str:
    """Return how far a tracker is, in words.

    Args:
        layout: of the run.
        progress: of the tracker.
        at: when the last line of the journal was written.
        status: the run's status.
    """
    if progress.at >= at and progress.status == status and not progress.problem:
        return "has all"
    behind = at - progress.at
    far = f"{duration(behind)} behind" if behind > 0 else "has all but the end"
    if not progress.at:
        far = "has nothing yet"
    if progress.problem:
        far += f": {escaped(progress.problem)}"
    if held(layout.tracking_log(progress.track)):
        return far + ("; tried again" if progress.problem else "; a follower is at work")
    return f"{far}; `hopyard track {layout.shown}` goes on"

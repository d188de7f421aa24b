"""`python -m hopyard.tracking [--once] [--no-wait] TRACKER DIRECTORY`: a follower, for drivers and `hopyard track`.

TRACKER is a name, or NAME=TARGET; for the options see `follower.follow`. What it logs goes to standard error, which is
`logs/tracking-….log` of the run where a driver has started it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path


def yield_cores() -> None:
    """Take the lowest priority: the run needs the cores more. Linux compares the processes of a session with those of
    others by the session's own nice value, where it groups them (man 7 sched, "The autogroup feature")."""
    os.nice(19)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19")


def main(*words: str) -> int:
    """Follow the run until nothing is left to send, or nothing more can be sent."""
    yield_cores()  # from the imports on
    from hopyard.errors import HopyardError
    from hopyard.store.layout import Layout
    from hopyard.tracking.follower import ONCE, USUAL, follow
    from hopyard.tracking.trackers import connect

    *options, track, directory = words
    once, layout = "--once" in options, Layout(Path(directory))
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    log = logging.getLogger(__name__)
    try:
        connected = lambda: connect(track, layout, os.environ)  # noqa: E731
        follow(layout, track, connected, ONCE if once else USUAL, once, wait="--no-wait" not in options)
    except HopyardError as error:
        log.error("%s: nothing more is sent: %s", track, error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    log.info("%s has all of %s", track, layout.shown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

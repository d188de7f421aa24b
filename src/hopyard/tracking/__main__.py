"""`python -m hopyard.tracking [--once] [--no-wait] TRACKER DIRECTORY`: a follower, for drivers and `hopyard track`.

TRACKER is a name, or NAME=TARGET; for the options see `follower.follow`. What it logs goes to standard error, which is
`logs/tracking-….log` of the run where a driver has started it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from importlib import import_module
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
    from hopyard.text import error_line
    from hopyard.trackers import MODULES
    from hopyard.tracking.follower import follow

    *options, track, directory = words
    name, _, target = track.partition("=")
    layout = Layout(Path(directory))
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    log = logging.getLogger(__name__)
    try:
        connect = import_module(MODULES[name]).connect
        follow(
            layout,
            track,
            lambda: connect(target, layout, os.environ),
            once="--once" in options,
            wait="--no-wait" not in options,
        )
    except HopyardError as error:
        log.error("%s: nothing more is sent: %s", track, error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - of a tracker's library
        log.error("%s: nothing more is sent: %s", track, error_line(error))
        return 1
    log.info("%s has all of %s", track, layout.shown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

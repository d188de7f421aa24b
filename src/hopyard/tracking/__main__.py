"""`python -m hopyard.tracking TRACKER DIRECTORY`: how a driver starts a follower of its run (`engines/followers.py`).

TRACKER is a name, or NAME=TARGET. What it logs goes to standard error, which is `logs/tracking-….log` of the run.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main(track: str, directory: str) -> int:
    """Follow the run until nothing is left to send, or nothing more can be sent."""
    os.nice(19)  # the run needs the cores more, from the imports on
    from hopyard.errors import HopyardError
    from hopyard.store.layout import Layout
    from hopyard.tracking.follower import follow
    from hopyard.tracking.trackers import connect

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    log = logging.getLogger(__name__)
    layout = Layout(Path(directory))
    try:
        follow(layout, track, lambda: connect(track, layout, os.environ))
    except HopyardError as error:
        log.error("nothing more is sent: %s", error)
        return error.exit_code
    log.info("the run has ended, and the tracker has its last state")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

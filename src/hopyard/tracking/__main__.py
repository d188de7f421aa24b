"""`python -m hopyard.tracking TRACKER DIRECTORY`: how a driver starts a follower of its run (`engines/followers.py`).

What it logs goes to standard error, which is `logs/tracking-TRACKER.log` of the run.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main(tracker: str, directory: str) -> int:
    """Follow the run until nothing is left to send, or nothing more can be sent."""
    os.nice(19)  # the run needs the cores more, from the imports on
    from hopyard.errors import HopyardError
    from hopyard.store.layout import Layout
    from hopyard.tracking import kubeflow
    from hopyard.tracking.follower import follow

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    log = logging.getLogger(__name__)
    trackers = {"kubeflow": kubeflow.connect}
    try:
        follow(Layout(Path(directory)), tracker, trackers[tracker](os.environ))
    except HopyardError as error:
        log.error("nothing more is sent: %s", error)
        return error.exit_code
    log.info("the run has ended, and the tracker has its last state")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

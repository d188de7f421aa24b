"""`python -m hopyard.engines.supervisors SLOTS DEVICES`: how ssh starts the supervisors of a host.

The ticket comes as the first line of standard input; the end of that ends all. With `--ticket FILE` it is the process 1
of a pod, see `pod.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> int:
    """Read the ticket, and run supervisors until the driver ends them."""
    slots, devices, *more = sys.argv[1:]
    if more:
        # Process 1 gets no SIGTERM without a handler, and the imports take a moment.
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
        from hopyard.engines.supervisors import pod

        return pod.run(int(slots), devices, Path(more[more.index("--ticket") + 1]))
    from hopyard.engines.supervisors.host import SupervisorHost, shares
    from hopyard.engines.supervisors.ticket import ticket_of

    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return 1
        data += piece
    return SupervisorHost(ticket_of(data), shares(int(slots), devices), input_file=0).run()


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m hopyard.engines.supervisors SLOTS DEVICES`: how ssh starts the supervisors of a host.

The ticket comes as the first line of standard input; the end of that ends all.
"""

from __future__ import annotations

import os
import sys

from hopyard.engines.supervisors.host import SupervisorHost, shares
from hopyard.engines.supervisors.ticket import ticket_of


def main() -> int:
    """Read the ticket, and run supervisors until the driver ends them."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return 1
        data += piece
    return SupervisorHost(ticket_of(data), shares(int(sys.argv[1]), sys.argv[2]), input_file=0).run()


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m hopyard` is `hopyard`."""

import os
import signal
import sys

if os.getpid() == 1:  # of a pod: such a process ignores SIGTERM before it has a handler
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))

from hopyard.cli import main

if __name__ == "__main__":
    main()

"""torch's store for a program's processes, on a socket that listens already: `… torch_store FD HOST`."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

from hopyard.agent.parent import end_with


def main() -> None:
    """Serve until killed."""
    end_with(os.getppid())
    file, host = int(sys.argv[1]), sys.argv[2]
    port = socket.socket(fileno=os.dup(file)).getsockname()[1]
    import torch.distributed as dist

    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, True, wait_for_workers=False, master_listen_fd=file
    )
    signal.pause()
    del store


if __name__ == "__main__":
    main()
